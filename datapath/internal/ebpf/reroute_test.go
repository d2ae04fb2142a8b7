// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestRouteLeadsElsewhere: a next hop that is due for confirmation becomes invalid if the kernel's
// routes now lead through another device. This needs no daemon.
func TestRouteLeadsElsewhere(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, m := range []natMode{natModes[0], {name: "plain"}} {
			t.Run(f.name+"/"+m.name, func(t *testing.T) {
				r := base.fresh(t)
				p := rigPlain(r, f, testpkt.ProtoUDP)
				if m.name != "plain" {
					p = r.connect(f, testpkt.ProtoUDP, m)
				}
				for s := stageOpen; s <= stageData; s++ {
					r.slow("opening", p, s)
				}
				r.nexthop(5, r.out, 0, p.forth())
				hop := func(stale bool) (now kernel.Nexthop) {
					r.ok(r.maps[kernel.MapLlNexthop].Lookup(uint32(5), &now))
					if stale {
						now.CheckedTick -= 40
						r.put(kernel.MapLlNexthop, uint32(5), now)
					}
					return now
				}
				in := packet(r.in.arrives(), p.proto, p.client, p.vip, stageData, 61)
				cut := packet(r.out.leaves(), p.proto, p.source, p.backend, stageData, 60)
				r.step("fast path", r.in, in, actRedirect, cut)
				hop(true)
				r.step("confirmed", r.in, in, actRedirect, packet(r.in.arrives(), p.proto, p.source, p.backend, stageData, 60))
				r.step("fast path, confirmed", r.in, in, actRedirect, cut)

				to, via := p.backend.Addr(), netip.MustParseAddr("192.0.2.17")
				bits := "/32"
				if to.Is6() {
					via, bits = netip.MustParseAddr("2001:db8:1::17"), "/128"
				}
				r.ns.Route(t, to.String()+bits, via.String())
				defer r.ns.Run(t, "ip", "route", "del", to.String()+bits)
				hop(true)
				left := packet(r.in.arrives(), p.proto, p.source, p.backend, stageData, 61)
				for range 2 {
					r.step("to the kernel", r.in, in, actUnspec, left)
				}
				if now := hop(false); now.Ifindex != 0 {
					t.Errorf("the next hop still leads out by device %d", now.Ifindex)
				}
			})
		}
	}
}
