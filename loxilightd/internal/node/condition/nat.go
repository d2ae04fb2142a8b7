// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func (w *world) ofNAT(v *state.NAT, revision uint64) condition {
	devices := w.ofDevices(&v.Match)
	if !devices.isMet() {
		return devices
	}
	passed := w.untranslated(v)
	if !passed.isMet() {
		return passed
	}
	target := w.noTarget(v, revision)
	if !target.isMet() {
		return target
	}
	list := []condition{devices, passed, target}
	if v.Type != datapath.DNAT || !slices.ContainsFunc(v.Addresses, w.isOwn) {
		families := w.families(&v.Match, v.Addresses)
		is := w.notForwarded(families, w.crossed(v))
		if is.message != "" {
			return is
		}
		list = append(list, w.innerOff(v, families))
	} // otherwise, the target is the node itself, so nothing is forwarded
	links := w.noWayOut(v)
	if !links.isMet() {
		return links
	}
	list = append(list, links)
	if v.Type == datapath.Masquerade {
		list = append(list, w.noSource(v))
	}
	return joinConditions(append(list, w.ofGroups(&v.Match)))
}

// inSwitch reports whether a match names devices and all of them are in the switch.
func (w *world) inSwitch(m *datapath.Match) bool {
	devices := devicesOf(m)
	return w.isSplit() && len(devices) > 0 && allOf(devices, func(name string) bool {
		return allOf(w.devices[name], func(a attachment) bool { return a.inSwitch })
	})
}

// someDestinations is the maximum number of a NAT's destinations that are looked up.
const someDestinations = 8

// untranslated returns a condition if a NAT that names no device has packets on devices of the host
// without the programs. The condition is met if the devices for the NAT's destinations have the
// programs: the egress devices if the source is translated, or the ingress devices if the
// destination is translated.
func (w *world) untranslated(v *state.NAT) condition {
	destinations := v.Match.Destination[:min(len(v.Match.Destination), someDestinations)]
	if len(v.Match.In)+len(v.Match.Out) > 0 {
		return condition{}
	}
	if v.Type == datapath.DNAT {
		for _, p := range destinations {
			if device := w.receiverOf(p); device != "" && !w.isCovered(device, 0) {
				return w.passes(p.Addr().String(), arriveOn, device)
			}
		}
		return w.passedBy(arriveOn)
	}
	for _, p := range destinations {
		for _, addr := range examplesOf(p) {
			if device := w.ways.to(addr, false).Device; device != "" && !w.isCovered(device, 0) {
				return w.passes(addr.String(), leaveBy, device)
			}
		}
	}
	families := w.families(&v.Match, v.Addresses)
	for family := range families {
		device := w.ways.to(outside[family], false).Device
		if len(v.Match.Destination)+len(v.Match.DestinationGroups) == 0 && families[family] && device != "" && !w.isCovered(device, 0) {
			return w.passes("other networks", leaveBy, device)
		}
	}
	return w.passedBy(leaveBy)
}

// passes returns the condition for a NAT whose packets pass through a device without the programs.
func (w *world) passes(to, verb, device string) condition {
	return condition{message: fmt.Sprintf(
		"packets to %s %s device %q untranslated, because no Interface attaches there: %s", to, verb, device, w.addCommand(device, 0))}
}

// receiverOf returns the device of the host that has the address p and receives packets from other
// hosts, or an empty string if there is no such device.
func (w *world) receiverOf(p netip.Prefix) string {
	for device := range w.found[0] {
		if p.IsSingleIP() && w.receives(device, 0) &&
			slices.ContainsFunc(w.found[0][device].Addresses, func(a netip.Prefix) bool { return a.Addr() == p.Addr() }) {
			return device
		}
	}
	return ""
}

// noTarget returns a condition if packets to a new destination do not arrive. The condition is met
// if only some of the packets do not arrive.
func (w *world) noTarget(v *state.NAT, revision uint64) (first condition) {
	var some condition
	for _, t := range w.targetsOf(v) {
		var arrivals []datapath.Arrival
		if !t.inSwitch {
			arrivals = w.arrivalsOf(&v.Match, familyOf(t.addr))
		}
		is, partly := w.lost(t, revision, arrivals)
		switch {
		case is.message != "" && (first.message == "" || first.untried && !is.untried):
			first = is
			first.message = fmt.Sprintf("target %s is unreachable: %s", t.addr, is.message)
		case partly != "" && some.message == "":
			some = condition{message: partly, ready: true, quiet: true}
		}
	}
	if first.message == "" {
		return some
	}
	return first
}

// noWayOut returns a condition if an egress device for a NAT's packets has no link. The condition
// is met if another of the egress devices has a link.
func (w *world) noWayOut(v *state.NAT) (first condition) {
	inSwitch, usable := w.inSwitch(&v.Match), 0
	for _, device := range v.Match.Out {
		is := w.linkOf(device, inSwitch)
		lost := w.opts.hopIsLost(is, inSwitch)
		if lost == "" {
			usable++
		} else if first.message == "" {
			first = condition{message: "no packet leaves through device " + device + ": " + lost}
		}
	}
	first.ready = usable > 0
	first.quiet = first.ready
	return first
}

// crossed returns the devices on which a NAT's packets arrive: the devices that the NAT names, and
// the devices towards new destinations, where replies arrive.
func (w *world) crossed(v *state.NAT) []string {
	devices := devicesOf(&v.Match)
	for _, t := range w.targetsOf(v) {
		if is := w.ways.to(t.addr, false); is.Device != "" && !t.inSwitch {
			devices = append(devices, is.Device)
		}
	}
	return devices
}

// innerOff returns a condition if IPv4 packets whose source a NAT should translate arrive on
// devices of the host whose packets the kernel does not forward. They may arrive on any device that
// the NAT does not name in out; if all of the NAT's sources are prefixes, only on devices in these
// networks. For IPv6, the kernel ignores the per-device parameter when it forwards.
func (w *world) innerOff(v *state.NAT, families [2]bool) condition {
	if v.Type == datapath.DNAT || w.inSwitch(&v.Match) || !families[0] {
		return condition{}
	}
	return w.arrivalsOff(func(device string) bool { return w.isInner(device, &v.Match) })
}

// arrivalsOff returns a condition if the kernel does not forward IPv4 packets that arrive on some
// of the selected devices of the host. Only devices that receive packets from other hosts are
// considered.
func (w *world) arrivalsOff(selected func(device string) bool) condition {
	off := w.forwarding[0].Off4
	if len(off) == 0 {
		return condition{}
	}
	first, on := "", 0
	for _, device := range slices.Sorted(maps.Keys(w.found[0])) {
		switch {
		case !w.receives(device, 0) || !selected(device):
		case !slices.Contains(off, device):
			on++
		case first == "":
			first = device
		}
	}
	if first == "" {
		return condition{}
	}
	is := w.notForwarded([2]bool{true, false}, []string{first})
	is.ready, is.quiet = on > 0, on > 0
	return is
}

// isInner reports whether IPv4 packets whose sources match m may arrive on a device.
func (w *world) isInner(device string, m *datapath.Match) bool {
	if slices.Contains(m.Out, device) {
		return false
	}
	return slices.ContainsFunc(w.found[0][device].Addresses, func(a netip.Prefix) bool {
		if !a.Addr().Is4() || a.Addr().IsLinkLocalUnicast() {
			return false
		}
		return len(m.Source) == 0 || len(m.SourceGroups) > 0 || slices.ContainsFunc(m.Source, a.Masked().Overlaps)
	})
}

// outside contains one address of each family (from RFC 2544 and RFC 5180). Packets to it take the
// same route as packets to outside networks.
var outside = [2]netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:2::1")}

// noSource returns a condition if packets that a masquerade should translate are dropped because
// their egress device has no address of their family. A masquerade that names no addresses applies
// to a family only if packets of that family egress through the device.
func (w *world) noSource(v *state.NAT) condition {
	var given [2]bool
	for _, p := range slices.Concat(v.Match.Source, v.Match.Destination) {
		given[familyOf(p.Addr())] = true
	}
	netns := 0
	if w.inSwitch(&v.Match) {
		netns = 1
	}
	devices := v.Match.Out
	if len(devices) == 0 {
		devices = []string{w.ways.to(outside[0], netns == 1).Device, w.ways.to(outside[1], netns == 1).Device}
	}
	for _, device := range devices {
		d, known := w.found[netns][device]
		if !known {
			continue
		}
		for family, source := range d.Sources {
			if source.IsValid() {
				continue
			}
			none := !d.Sources[1-family].IsValid()
			if given[family] || given == [2]bool{} && (none && family == 0 || w.leavesBy(device, family, netns)) {
				return noSourceOf(device, family, given[family])
			}
		}
	}
	return condition{}
}

func noSourceOf(device string, family int, given bool) condition {
	what := [2]string{"IPv4", "IPv6"}[family]
	mend := fmt.Sprintf("run ip address add ADDRESS dev %s", device)
	if !given {
		mend += fmt.Sprintf(", or limit the NAT to the other family by spec.match.source (%s)", [2]string{"::/0", "0.0.0.0/0"}[family])
	}
	return condition{message: fmt.Sprintf("device %q has no %s address to masquerade with, so %[2]s packets that leave through it are dropped: %[3]s", device, what, mend)}
}

// leavesBy reports whether device is the egress device for forwarded packets of this family to
// outside networks.
func (w *world) leavesBy(device string, family, netns int) bool {
	forwards := [2]bool{w.forwarding[netns].IPv4, w.forwarding[netns].IPv6}[family]
	return forwards && w.ways.to(outside[family], netns == 1).Device == device
}
