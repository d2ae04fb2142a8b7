// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/listing"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// isSplit reports whether host and switch have different network namespaces.
func (w *world) isSplit() bool { return w.opts.HostDevice != "" }

// attachments returns everything that attaches the programs to a device in one network namespace.
func (w *world) attachments(device string, netns int) (list []attachment) {
	for _, a := range w.devices[device] {
		if !w.isSplit() || a.inSwitch == (netns == 1) {
			list = append(list, a)
		}
	}
	return list
}

// namespacesOf returns the network namespaces that have a device with the given name: 0 is the
// host's, 1 the switch's.
func (w *world) namespacesOf(device string) (namespaces []int) {
	for netns := range w.found {
		if _, ok := w.found[netns][device]; ok && (netns == 0 || w.isSplit()) {
			namespaces = append(namespaces, netns)
		}
	}
	return namespaces
}

// isAttached reports whether the programs are attached to a device.
func (w *world) isAttached(device string, netns int) bool {
	if a, ok := w.renamed[device]; ok && (!w.isSplit() || a.inSwitch == (netns == 1)) {
		return true
	}
	return slices.ContainsFunc(w.attachments(device, netns), func(a attachment) bool {
		s, ok := a.status()
		return ok && s.State == reconcile.Done
	})
}

// isCovered reports whether the programs see the packets that arrive on a device.
func (w *world) isCovered(device string, netns int) bool {
	return datapath.Covered(w.found[netns], device, func(device string) bool {
		_, ours := w.bridges[device]
		return ours || w.isAttached(device, netns)
	})
}

// unseen returns why packets on a device do not pass through the programs. A rule matches devices
// by name, so every device with that name must have the programs.
func (w *world) unseen(device string, out bool) condition {
	if of, ok := w.bridges[device]; ok && len(w.devices[device]) == 0 {
		if out {
			return condition{}
		}
		return condition{message: fmt.Sprintf(
			"device %q is the bridge of %s, but packets arrive on its ports: name the ports in spec.match.in instead", device, of)}
	}
	namespaces := w.namespacesOf(device)
	if len(namespaces) == 0 {
		return w.notAttached(device, w.devices[device], "run llcli interface add "+device)
	}
	for _, netns := range namespaces {
		if is := w.notAttached(device, w.attachments(device, netns), w.addCommand(device, netns)); is.message != "" {
			if len(namespaces) > 1 {
				is.message = fmt.Sprintf("in the network namespace of the %s: %s", [2]string{"host", "switch"}[netns], is.message)
			}
			return is
		}
	}
	return condition{}
}

// addCommand returns the command that attaches the programs to a device.
func (w *world) addCommand(device string, netns int) string {
	name, more := device, ""
	if len(w.devices[device]) > 0 { // an existing Interface may have the device's name
		name = device + [2]string{"-host", "-switch"}[netns]
		more = " --device " + device
	}
	if netns == 1 {
		more += " --netns switch"
	}
	return "run llcli interface add " + name + more
}

// notAttached returns why no attachment of a device is in force; command is the command that adds
// an attachment.
func (w *world) notAttached(device string, list []attachment, command string) (first condition) {
	for i, a := range list {
		s, ok := a.status()
		switch {
		case a.matches != "" && device == "":
			return condition{}
		case a.matches != "":
			return w.byOtherName(device, &a)
		case !ok:
			s.Message = "not attached"
		case s.State == reconcile.Done:
			return condition{}
		}
		if i == 0 {
			first = condition{message: fmt.Sprintf("the programs see packets of device %q only if they also pass another attached device, because %s is not Ready: %s", device, a.object, s.Message)}
			first.untried = s.IsUntried()
		}
	}
	if len(list) == 0 {
		first.message = fmt.Sprintf("the programs see packets of device %q only if they also pass another attached device, because no Interface attaches to it: %s", device, command)
	}
	return first
}

// byOtherName returns the condition of a rule that names a renamed device, whose packets still
// match rules by the device's former name, a.matches.
func (w *world) byOtherName(device string, a *attachment) condition {
	if device != a.matches {
		return condition{message: fmt.Sprintf(
			"packets of device %q match rules by its former name %q: use the name %[2]q in this rule, or remove that name from all NATs", device, a.matches)}
	}
	return condition{ready: true, quiet: true, message: fmt.Sprintf(
		"device %q is named %q now, and its packets still match rules by the name %[1]q: run %[3]s set %[2]s name %[1]s, or change %[4]s and its rules to the new name",
		device, a.now, w.opts.ipLink(a.inSwitch), a.object)}
}

// noneAttached returns a condition if the programs are attached to any device.
func (w *world) noneAttached() condition {
	for _, list := range w.devices {
		if is := w.notAttached("", list, ""); is.message == "" {
			return is
		}
	}
	for _, device := range slices.Sorted(maps.Keys(w.devices)) {
		return w.notAttached(device, w.devices[device], "")
	}
	return condition{message: "no packet is seen, because no device is attached: run llcli interface add DEVICE"}
}

// ofDevices returns the first reason why packets on a rule's devices are not seen, or else a
// message about devices that were renamed.
func (w *world) ofDevices(m *datapath.Match) (met condition) {
	for _, name := range m.In {
		if is := w.seenByPorts(name, m.In); is.message != "" {
			return is
		}
		if is := w.unseen(name, false); !is.isMet() {
			return is
		} else if is.message != "" {
			met = is
		}
	}
	for _, name := range m.Out {
		if is := w.unseen(name, true); !is.isMet() {
			return is
		} else if is.message != "" {
			met = is
		}
	}
	if len(m.In)+len(m.Out) == 0 {
		return w.noneAttached()
	}
	return met
}

// seenByPorts returns a condition if the programs are attached to a port of a device. They evaluate
// rules with that port as the ingress device, and not again for the device itself.
func (w *world) seenByPorts(device string, in []string) condition {
	for _, netns := range w.namespacesOf(device) {
		d := w.found[netns][device]
		if d.Kind == "vrf" {
			continue // the programs are never attached to a VRF
		}
		for _, port := range d.Ports {
			if list := w.attachments(port, netns); !slices.Contains(in, port) && w.isAttached(port, netns) {
				return condition{message: fmt.Sprintf(
					"packets of %s %q arrive on its port %q, to which %s attaches, and rules match the port: name %[3]s in spec.match.in",
					d.Kind, device, port, list[0].object)}
			}
		}
	}
	return condition{}
}

// someNames is the maximum number of devices that are named in a message.
const someNames = 5

// passedBy returns a message about devices that have an address but whose packets the programs do
// not see, so that a Service, or a rule or NAT that names no device, does not apply to those
// packets. verb is what the packets do: "arrive on" or "leave through" a device.
func (w *world) passedBy(verb string) condition {
	var names, commands []string
	for netns := range w.found {
		if netns == 1 && !w.isSplit() {
			break
		}
		for _, device := range slices.Sorted(maps.Keys(w.found[netns])) {
			if w.receives(device, netns) && !w.isCovered(device, netns) {
				names, commands = append(names, device), append(commands, w.addCommand(device, netns))
			}
		}
	}
	if len(names) == 0 {
		return condition{}
	}
	return condition{ready: true, quiet: true, message: fmt.Sprintf(
		"does not apply to packets that %s %s, because no Interface attaches there: %s", verb, listing.First(names, someNames), commands[0])}
}

// leavesRouted returns a message if out names a bridge port but not the bridge: packets that the
// node routes or sends egress through the bridge.
func (w *world) leavesRouted(out []string) condition {
	for _, port := range out {
		for _, netns := range w.namespacesOf(port) {
			for _, bridge := range slices.Sorted(maps.Keys(w.found[netns])) {
				d := w.found[netns][bridge]
				if d.Kind != "bridge" || !slices.Contains(d.Ports, port) || slices.Contains(out, bridge) || len(d.Addresses) == 0 {
					continue
				}
				return condition{ready: true, quiet: true, message: fmt.Sprintf(
					"%q is a port of bridge %[2]q, so only bridged packets match: name %[2]q in spec.match.out as well for packets that the node routes", port, bridge)}
			}
		}
	}
	return condition{}
}

// receives reports whether a device receives packets from other hosts: it has an address, is not a
// loopback, dummy or VRF device, and is not an end of the link between host and switch.
func (w *world) receives(device string, netns int) bool {
	d := w.found[netns][device]
	return w.isOutside(device, netns) && (addressed(d.Addresses, true) || addressed(d.Addresses, false))
}

// isOutside reports whether packets on a device may be from other hosts: it is not a loopback, dummy or
// VRF device, nor an end of the link between host and switch.
func (w *world) isOutside(device string, netns int) bool {
	d := w.found[netns][device]
	return !d.Loopback && d.Kind != "dummy" && d.Kind != "vrf" && device != w.opts.HostDevice && device != w.opts.SwitchDevice
}

// addressed reports whether one of a device's addresses belongs to a family and has more than
// link-local scope.
func addressed(list []netip.Prefix, is4 bool) bool {
	for _, a := range list {
		if a.Addr().Is4() == is4 && !a.Addr().IsLinkLocalUnicast() {
			return true
		}
	}
	return false
}

const arriveOn, leaveBy = "arrive on", "leave through"

// verbOf returns whether a rule with these hooks applies to packets that arrive on a device, to
// packets that leave through it, or to both.
func verbOf(hooks datapath.FirewallHook) string {
	switch {
	case hooks&datapath.HookOutput == 0:
		return arriveOn
	case hooks == datapath.HookOutput:
		return leaveBy
	}
	return arriveOn + " or " + leaveBy
}

// passSeen reports whether the programs see all forwarded packets of a rule, because they are
// attached to all ingress devices that the rule names, or to all egress devices that it names. In
// either case, the programs know both devices of a packet.
func (w *world) passSeen(v *state.FirewallRule) bool {
	seen := func(devices []string, out bool) bool {
		return len(devices) > 0 && allOf(devices, func(name string) bool {
			is := w.unseen(name, out)
			return is.isMet()
		})
	}
	return v.Hooks == datapath.HookForward && len(v.Match.In) > 0 && len(v.Match.Out) > 0 && (seen(v.Match.In, false) || seen(v.Match.Out, true))
}

func (w *world) ofRule(v *state.FirewallRule) condition {
	devices := w.ofDevices(&v.Match)
	if !devices.isMet() {
		if !w.passSeen(v) {
			return devices
		}
		devices = condition{}
	}
	if v.Hooks == datapath.HookForward && v.Action == datapath.ActionAllow && !w.isBridged(&v.Match) {
		is := w.notForwarded(w.families(&v.Match, nil), devicesOf(&v.Match))
		if is.message != "" {
			return is
		}
	} // otherwise, the rule works without forwarding by the kernel
	list := []condition{devices, w.ofGroups(&v.Match), w.leavesRouted(v.Match.Out)}
	if len(v.Match.In)+len(v.Match.Out) == 0 {
		list = append(list, w.passedBy(verbOf(v.Hooks)))
	}
	return joinConditions(list)
}
