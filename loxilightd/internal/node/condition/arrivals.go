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

// maxArrivals limits the number of arriving packets for which the route to an address is looked up.
const maxArrivals = 8

// hasRules reports whether routing rules may select the routes for packets of an address family.
func (w *world) hasRules(netns, family int) bool {
	return [2]bool{w.forwarding[netns].Rules4, w.forwarding[netns].Rules6}[family]
}

// arrivals returns examples of packets that the host forwards, for each selected device that
// receives packets from other hosts. The list is empty unless routing rules may distinguish such
// packets.
func (w *world) arrivals(family int, selected func(device string) bool) (list []datapath.Arrival) {
	if !w.hasRules(0, family) {
		return nil
	}
	for _, device := range slices.Sorted(maps.Keys(w.found[0])) {
		if !w.receives(device, 0) || !selected(device) || family == 0 && slices.Contains(w.forwarding[0].Off4, device) {
			continue
		}
		for _, p := range w.found[0][device].Addresses {
			if familyOf(p.Addr()) == family && !p.Addr().IsLinkLocalUnicast() && !p.IsSingleIP() {
				list = append(list, datapath.Arrival{Device: device, Source: otherIn(p)})
				break
			}
		}
		if w.ways.to(outside[family], false).Device == device {
			list = append(list, datapath.Arrival{Device: device, Source: outside[family]})
		}
	}
	return list[:min(len(list), maxArrivals)]
}

// otherIn returns the lowest address in the network of p that may belong to another host.
func otherIn(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr()
	if p.Addr().BitLen()-p.Bits() > 1 { // otherwise, there is no network address
		a = a.Next()
	}
	if a == p.Addr() {
		a = a.Next()
	}
	return a
}

// arrivalsOf is like arrivals, but for the packets that match m.
func (w *world) arrivalsOf(m *datapath.Match, family int) (list []datapath.Arrival) {
	selected := func(device string) bool { return len(m.In) == 0 || slices.Contains(m.In, device) }
	if len(m.Source) == 0 {
		return w.arrivals(family, selected)
	}
	for _, p := range m.Source {
		if !w.hasRules(0, family) || familyOf(p.Addr()) != family || len(list) == maxArrivals {
			continue
		}
		source := p.Addr()
		if !p.IsSingleIP() {
			source = otherIn(p)
		}
		if is := w.ways.to(source, false); is.Device != "" && selected(is.Device) {
			list = append(list, datapath.Arrival{Device: is.Device, Source: source})
		}
	}
	return list
}

// forwardedTo returns the next hop for packets to an address, and a message if only some of the
// packets reach that address. Without arrivals, the packets are those that the node itself sends. A
// zero next hop means that the address belongs to the node, or that nothing is known.
func (w *world) forwardedTo(addr netip.Addr, inSwitch bool, arrivals []datapath.Arrival) (is datapath.HopState, partly string) {
	own := w.ways.to(addr, inSwitch)
	if len(arrivals) == 0 || own.Device == "" && own.Err == nil {
		return own, ""
	}
	var failed []string
	var lost datapath.HopState
	for _, from := range arrivals {
		switch next := w.ways.lookup(datapath.Hop{Addr: addr, Switch: inSwitch, From: from}); {
		case next.Err == nil:
			is = next
		default:
			lost = next
			failed = append(failed, fmt.Sprintf("packets from %s on device %q are dropped: %s", from.Source, from.Device, next.Err))
		}
	}
	switch {
	case len(failed) == len(arrivals):
		return lost, ""
	case len(failed) > 0:
		return is, failed[0]
	case own.Err != nil:
		return is, "packets of the node itself are dropped: " + own.Err.Error()
	}
	return is, ""
}

// notRouted returns a condition if routing rules select routes that drop packets to a Route's
// prefix.
func (w *world) notRouted(v *state.Route, family int, inSwitch bool) (first condition) {
	if !w.hasRules(netnsOf(inSwitch), family) || v.Type != datapath.RouteUnicast || v.Peer != "" {
		return condition{}
	}
	var arrivals []datapath.Arrival
	if !inSwitch && w.gateway()[family] {
		arrivals = w.arrivals(family, func(string) bool { return true })
	}
	for _, addr := range examplesOf(v.Prefix) {
		var c condition
		switch is, partly := w.forwardedTo(addr, inSwitch, arrivals); {
		case is.Err != nil:
			c = condition{message: is.Err.Error()}
		case partly != "":
			c = condition{message: partly, ready: true, quiet: true}
		default:
			return condition{} // a smaller prefix may have a different route
		}
		if first.message == "" || c.ready {
			first = c
		}
	}
	return first
}

// examplesOf returns addresses of a prefix that are far apart.
func examplesOf(p netip.Prefix) []netip.Addr {
	if p.Bits() == 0 {
		return []netip.Addr{outside[familyOf(p.Addr())]}
	}
	first, last := p.Masked().Addr(), p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	if p.Addr().BitLen()-p.Bits() > 1 {
		first, end = first.Next(), end.Prev()
	}
	return slices.Compact([]netip.Addr{first, end})
}
