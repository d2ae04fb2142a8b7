// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// target is the address of a backend, or an address to which a destination NAT translates.
type target struct {
	addr     netip.Addr
	inSwitch bool
}

// readTargets checks the next hops towards the targets of NAT and towards backends without a health
// check. The number of checks is limited, like the number of lookups in hopCache; nothing is
// reported about further targets.
func (w *world) readTargets(s *state.Snapshot, before *reach) {
	asked := 0
	check := func(t target) (more bool) {
		is := w.ways.to(t.addr, t.inSwitch)
		if broken := w.opts.hopIsLost(is, t.inSwitch); broken != "" {
			w.reach.problems[fmt.Sprint("target ", t)] = condition{message: broken}
		}
		h, ok := neighbourOf(&is, t.inSwitch)
		if _, known := w.reach.asked[h]; !ok || known {
			return !w.ways.full()
		}
		asked++
		if c := w.reach.checkHop(w.opts, before, h, w.reach.began, askHop); c.message != "" {
			w.reach.hops[h] = c
			w.reach.problems[fmt.Sprint("hop ", h)] = c
		}
		return asked < maxHops && !w.ways.full()
	}
	for o := range s.After(state.KindNAT, "") {
		for _, t := range w.targetsOf(o.Value.(*state.NAT)) {
			if !check(t) {
				return
			}
		}
	}
	for o := range s.After(state.KindService, "") {
		v := o.Value.(*state.Service)
		if v.Health != nil {
			continue // the health check detects more faults
		}
		for _, is4 := range []bool{true, false} {
			list := w.backendsOf(o.Name, v, is4)
			for _, b := range list.usable() {
				if !check(target{addr: b.Addr()}) {
					return
				}
			}
		}
	}
}

// targetsOf returns the single addresses to which a destination NAT translates.
func (w *world) targetsOf(v *state.NAT) (list []target) {
	if v.Type != datapath.DNAT {
		return nil
	}
	for _, p := range v.Addresses {
		if p.IsSingleIP() {
			list = append(list, target{p.Addr(), w.inSwitch(&v.Match)})
		}
	}
	return list
}

// neighbourOf returns the neighbour of a next hop on the next hop's device, so that all addresses
// behind a gateway have the same neighbour; ok is false if there is no neighbour.
func neighbourOf(is *datapath.HopState, inSwitch bool) (h datapath.Hop, ok bool) {
	h = datapath.Hop{Addr: is.Neighbour, Device: is.Device, Switch: inSwitch}
	return h, h.Addr.IsValid() && h.Device != ""
}

// lost returns why packets to a target do not arrive, or no message if they arrive or nothing is
// known. partly is a message if only some of the packets arrive. revision is the revision of the
// object that has the target; arrivals are examples of packets to the target.
func (w *world) lost(t target, revision uint64, arrivals []datapath.Arrival) (c condition, partly string) {
	is, partly := w.forwardedTo(t.addr, t.inSwitch, arrivals)
	if broken := w.opts.hopIsLost(is, t.inSwitch); broken != "" {
		return condition{message: broken}, ""
	}
	h, ok := neighbourOf(&is, t.inSwitch)
	if !ok {
		return condition{}, partly
	}
	if _, asked := w.reach.asked[h]; !asked && !is.Resolved && revision > w.reach.revision {
		return condition{message: fmt.Sprintf("neighbour %s on device %q has not been probed yet", h.Addr, h.Device), quiet: true, untried: true}, partly
	}
	return w.reach.hops[h], partly
}
