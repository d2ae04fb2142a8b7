// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// NoDevice returns the error for a device that is missing in a namespace. If the device exists in the
// other namespace, the error reports that and, if there is one, the command that corrects it.
func (s *Set) NoDevice(id uint8, name datapath.PortName, device string) error {
	object := string(name)
	if strings.HasPrefix(object, overlay.InnerPrefix) || strings.Contains(object, "#") {
		object = "" // not an Interface
	}
	other := uint8(hook.Switch)
	if id == hook.Switch {
		other = hook.Host
	}
	switch {
	case !s.apart() || !s.hasDevice(other, device):
		return datapath.Absentf("device %q does not exist%s", device, s.InNamespace(id))
	case id == hook.Switch:
		return datapath.Absentf("device %q is in the host's network namespace, not in the switch's: run ip link set %s netns %s%s",
			device, device, s.options.SwitchName, orSet(object, "host"))
	default:
		return datapath.Absentf("device %q is in the switch's network namespace (%s), not in the host's%s",
			device, s.options.SwitchName, strings.Replace(orSet(object, "switch"), ", or", ": run", 1))
	}
}

// orSet suggests moving an Interface to another namespace.
func orSet(object, netns string) string {
	if object == "" {
		return ""
	}
	return ", or llcli interface set " + object + " --netns " + netns
}

// InNamespace names the switch's namespace if the switch has its own.
func (s *Set) InNamespace(id uint8) string {
	if id == hook.Host || !s.apart() {
		return ""
	}
	return " in network namespace " + s.options.SwitchName
}

// hasDevice reports whether a device exists in a namespace, which need not be in use.
func (s *Set) hasDevice(id uint8, device string) bool {
	z, err := s.handle(id)
	if err != nil {
		return false
	}
	_, err = z.Netlink.LinkByName(device)
	return z.Close() == nil && err == nil
}
