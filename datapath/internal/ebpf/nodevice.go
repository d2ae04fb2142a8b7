// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// noDevice returns the error for a device that is missing in a namespace. The error reports whether
// the device is in the other namespace, and which command corrects that.
func (d *DataPlane) noDevice(id uint8, name datapath.PortName, device string) error {
	object := string(name)
	if strings.HasPrefix(object, overlay.InnerPrefix) || strings.Contains(object, "#") {
		object = "" // not an Interface
	}
	other := uint8(netnsSwitch)
	if id == netnsSwitch {
		other = netnsHost
	}
	switch {
	case d.namespaceOf(true) == d.namespaceOf(false) || !d.hasDevice(other, device):
		return datapath.Absentf("device %q does not exist%s", device, d.inNamespace(id))
	case id == netnsSwitch:
		return datapath.Absentf("device %q is in the host's network namespace, not in the switch's: run ip link set %s netns %s%s",
			device, device, d.config.SwitchNamespace, orSet(object, "host"))
	default:
		return datapath.Absentf("device %q is in the switch's network namespace (%s), not in the host's%s",
			device, d.config.SwitchNamespace, strings.Replace(orSet(object, "switch"), ", or", ": run", 1))
	}
}

// orSet suggests moving an Interface to another namespace.
func orSet(object, netns string) string {
	if object == "" {
		return ""
	}
	return ", or llcli interface set " + object + " --netns " + netns
}

// inNamespace names the switch's namespace if the switch has its own.
func (d *DataPlane) inNamespace(id uint8) string {
	if id == netnsHost || d.namespaceOf(true) == d.namespaceOf(false) {
		return ""
	}
	return " in network namespace " + d.config.SwitchNamespace
}

// hasDevice reports whether a device exists in a namespace, which need not be in use.
func (d *DataPlane) hasDevice(id uint8, device string) bool {
	name := ""
	if id == netnsSwitch {
		name = d.config.SwitchNamespace
	}
	z, err := hook.OpenNetns(id, name)
	if err != nil {
		return false
	}
	_, err = z.Netlink.LinkByName(device)
	return z.Close() == nil && err == nil
}
