// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestOneWay: a one-to-one rule applies only to connections in its own direction; an SNAT rule and
// a DNAT rule together cover both directions.
func TestOneWay(t *testing.T) {
	base := newRig(t)
	for i, f := range families {
		inside, outside := prefixes("192.0.2.0/24", "2001:db8:1::/64"), prefixes("203.0.113.0/24", "2001:db8:cb00:71::/64")
		snat := datapath.NAT{OneToOne: true, Match: datapath.Match{Source: inside}, Addresses: outside}
		dnat := datapath.NAT{Type: datapath.DNAT, OneToOne: true, Match: datapath.Match{Destination: outside}, Addresses: inside}
		outer := netip.AddrPortFrom(sourceTypes["one-to-one"].want[i].Addr(), f.client.Port())
		for _, tt := range []struct {
			name          string
			rules         map[datapath.NATName]datapath.NAT
			away, towards bool
		}{
			{"snat", map[datapath.NATName]datapath.NAT{"away": snat}, true, false},
			{"dnat", map[datapath.NATName]datapath.NAT{"in": dnat}, false, true},
			{"both", map[datapath.NATName]datapath.NAT{"away": snat, "in": dnat}, true, true},
		} {
			t.Run(f.name+"/"+tt.name, func(t *testing.T) {
				r := base.fresh(t)
				r.translate(tt.rules)
				from, to := f.client, outer
				if tt.away {
					from = outer
				}
				r.leaving("own connection", packet(r.out.leaves(), testpkt.ProtoUDP, f.client, f.far, stageOpen, 60),
					packet(r.out.leaves(), testpkt.ProtoUDP, from, f.far, stageOpen, 60))
				if tt.towards {
					to = f.client
				}
				other := netip.AddrPortFrom(f.far.Addr(), f.far.Port()+1)
				r.step("of another host", r.out, packet(r.out.arrives(), testpkt.ProtoUDP, other, outer, stageOpen, 61),
					actUnspec, packet(r.out.arrives(), testpkt.ProtoUDP, other, to, stageOpen, 61))
			})
		}
	}
}
