// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestExpiredPortsAgain: if every outer port towards a server is taken, the port of an expired
// connection is used again; the port of a connection of which one side still sends is not.
func TestExpiredPortsAgain(t *testing.T) {
	base := newRig(t)
	idle := uint32(kernel.IdleUnits(datapath.PlainIdleTimeout().TCP)) * idleUnit
	for _, f := range families {
		for name, ages := range map[string][2]uint32{"both": {idle + 1, idle + 1}, "the client sends": {0, idle + 1}, "the server sends": {idle + 1, 0}} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				rule := masquerade("out0")
				rule.Ports = []datapath.PortRange{{First: 7001, Last: 7001}}
				r.translate(map[datapath.NATName]datapath.NAT{"away": rule})
				client := func(i int) netip.AddrPort { return netip.AddrPortFrom(f.client.Addr(), uint16(2000+i)) }
				outer := netip.AddrPortFrom(f.outAddr, r.syn(client(0), f.far))
				r.run(r.ingress, r.out, tcpSegment(r.out.arrives(), f.far, outer, testpkt.SYN|testpkt.ACK))
				r.leave(r.in, r.out, tcpSegment(r.out.leaves(), client(0), f.far, testpkt.ACK))
				forth, back := rigTuple{testpkt.ProtoTCP, client(0), f.far}, rigTuple{testpkt.ProtoTCP, f.far, outer}
				r.age(ages[0], forth)
				r.age(ages[1], back)
				want := uint16(0)
				if name == "both" {
					want = outer.Port()
				}
				if port := r.syn(client(1), f.far); port != want {
					t.Errorf("the next connection has port %d, want %d", port, want)
				}
				if _, ok := r.conn(forth); ok != (want == 0) {
					t.Errorf("the first connection exists: %t", ok)
				}
			})
		}
	}
}

// TestEndedPortsFirst: the port of a connection that has ended is used again before the port of an
// expired connection. The port of a connection that is silent in one direction only stays in use.
func TestEndedPortsFirst(t *testing.T) {
	base := newRig(t)
	idle := uint32(kernel.IdleUnits(datapath.PlainIdleTimeout().TCP)) * idleUnit
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			rule := masquerade("out0")
			rule.Ports = []datapath.PortRange{{First: 7001, Last: 7003}}
			r.translate(map[datapath.NATName]datapath.NAT{"away": rule})
			client := func(i int) netip.AddrPort { return netip.AddrPortFrom(f.client.Addr(), uint16(2000+i)) }
			var outer [3]netip.AddrPort
			for i := range outer {
				outer[i] = netip.AddrPortFrom(f.outAddr, r.syn(client(i), f.far))
				r.run(r.ingress, r.out, tcpSegment(r.out.arrives(), f.far, outer[i], testpkt.SYN|testpkt.ACK))
				r.leave(r.in, r.out, tcpSegment(r.out.leaves(), client(i), f.far, testpkt.ACK))
			}
			forth := func(i int) rigTuple { return rigTuple{testpkt.ProtoTCP, client(i), f.far} }
			back := func(i int) rigTuple { return rigTuple{testpkt.ProtoTCP, f.far, outer[i]} }
			r.run(r.ingress, r.out, tcpSegment(r.out.arrives(), f.far, outer[0], testpkt.RST))
			r.age(idle+1, forth(1), back(1))
			r.age(idle+100, back(2))
			for i, want := range []uint16{outer[0].Port(), outer[1].Port(), 0} {
				if port := r.syn(client(10+i), f.far); port != want {
					t.Errorf("new connection %d has port %d, want %d", i, port, want)
				}
			}
			if _, ok := r.conn(forth(2)); !ok {
				t.Error("the connection whose client sends is gone")
			}
		})
	}
}
