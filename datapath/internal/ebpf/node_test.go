// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestRefused: without a backend the client gets a rejection of its protocol at once, and no
// connection is created. A backend that is added later gets the very next packet.
func TestRefused(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				r.service(rigService{id: 7, proto: proto, frontend: f.vip})
				open := packet(r.in.arrives(), proto, f.client, f.vip, stageOpen, 61)
				refusal := r.refusal(f, proto, open)
				r.step("opening", r.in, open, actRedirect, refusal)
				r.step("again", r.in, open, actRedirect, refusal)
				r.counted(map[string]uint64{"DROP_NO_BACKEND": 2, "VERDICT_ANSWERED": 2})
				if s := r.stats(7); s.DropCount[0] != 2 || s.ConnectionCount != 0 {
					t.Errorf("the service counted %+v", s)
				}
				if n := r.entries(); n != 0 {
					t.Errorf("%d entries, want none", n)
				}
				r.service(rigService{id: 7, proto: proto, frontend: f.vip, backends: []rigBackend{{id: 3, addr: f.far}}})
				r.step("with a backend", r.in, open, actUnspec, packet(r.in.arrives(), proto, f.client, f.far, stageOpen, 61))
			})
		}
	}
}

// refusal returns the rejection of open, the first packet of a connection.
func (r *rig) refusal(f family, proto uint8, open []byte) []byte {
	switch proto {
	case testpkt.ProtoTCP:
		return noWindow(testpkt.Build(r.in.leaves(), answerIP(f.vip.Addr(), f.client.Addr(), 0), testpkt.TCP{
			Source: f.vip.Port(), Destination: f.client.Port(), Flags: testpkt.RST | testpkt.ACK, Ack: 0x01020305, Window: 1}))
	case testpkt.ProtoSCTP:
		return testpkt.Build(r.in.leaves(), answerIP(f.vip.Addr(), f.client.Addr(), 0), testpkt.SCTP{
			Source: f.vip.Port(), Destination: f.client.Port(), Tag: 0x21222324, Chunks: []testpkt.Chunk{{Type: 6, Flags: 1}}})
	}
	icmp, tos := testpkt.ICMP{Type: 3, Code: 3}, uint8(0xd0)
	if f.name == "IPv6" {
		icmp, tos = testpkt.ICMP{V6: true, Type: 1, Code: 4}, 0
	}
	return testpkt.Build(r.in.leaves(), answerIP(f.inAddr, f.client.Addr(), tos), icmp, testpkt.Raw(open[14:]))
}

// TestNodeIsClient: packets from the node to a frontend are sent to a backend by the egress hook,
// with the node's address on the way to the backend; replies return to the address that the node
// used.
func TestNodeIsClient(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				for addr, mac := range map[netip.Addr][6]byte{f.far.Addr(): r.out.other, f.client.Addr(): r.in.other} {
					dev := r.out.name
					if addr == f.client.Addr() {
						dev = r.in.name
					}
					r.ns.Neighbour(t, dev, addr.String(), mac)
				}
				r.service(rigService{id: 7, proto: proto, frontend: f.vip, backends: []rigBackend{{id: 3, addr: f.far}}})
				// The route to the frontend leads through in0.
				local := netip.AddrPortFrom(f.inAddr, 40123)
				source := netip.AddrPortFrom(f.outAddr, 61057)
				for _, s := range []stage{stageOpen, stageConfirm} {
					r.compare("request", r.egress, r.in, packet(r.in.leaves(), proto, local, f.vip, s, 64),
						actRedirect, packet(r.in.leaves(), proto, source, f.far, s, 64))
				}
				r.step("answer", r.out, packet(r.out.arrives(), proto, f.far, source, stageAnswer, 61),
					actUnspec, packet(r.out.arrives(), proto, f.vip, local, stageAnswer, 61))
				c, found := r.conn(rigTuple{proto, local, f.vip})
				if !found || c.Flags&0x26 != 0x26 { // DNAT, SNAT, from the node
					t.Errorf("connection %+v, there: %t", c, found)
				}
				r.counted(map[string]uint64{"VERDICT_LOCAL": 2, "VERDICT_SLOW": 1})
			})
		}
	}
}

// TestNodeSendsElsewhere: the node's packets to other destinations leave unchanged.
func TestNodeSendsElsewhere(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		r.service(rigService{id: 7, proto: testpkt.ProtoTCP, frontend: f.vip, backends: []rigBackend{{id: 3, addr: f.far}}})
		for name, frame := range map[string][]byte{
			"another port": packet(r.in.leaves(), testpkt.ProtoTCP, netip.AddrPortFrom(f.inAddr, 40123), f.farRouterPort(4660), stageOpen, 64),
			"the client":   packet(r.in.leaves(), testpkt.ProtoTCP, netip.AddrPortFrom(f.inAddr, 22), f.client, stageData, 64),
			"the backend":  packet(r.in.leaves(), testpkt.ProtoTCP, netip.AddrPortFrom(f.inAddr, 40123), f.far, stageOpen, 64),
		} {
			r.compare(f.name+" "+name, r.egress, r.in, frame, actUnspec, frame)
		}
		r.counted(map[string]uint64{})
	}
}

func (f family) farRouterPort(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(f.farRouter, port)
}

// TestHairpin: a backend that connects to its own service sees the node as the client.
func TestHairpin(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, proto := range protocols {
			r := base.fresh(t)
			p := r.connect(f, proto, natModes[2])
			p.client = netip.AddrPortFrom(p.backend.Addr(), 40123)
			for s := stageOpen; s <= stageData; s++ {
				r.slow(f.name, p, s)
			}
			r.nexthop(5, r.in, 0, p.forth())
			r.step("data", r.in, packet(r.in.arrives(), proto, p.client, p.vip, stageData, 61),
				actRedirect, packet(r.in.leaves(), proto, p.source, p.backend, stageData, 60))
		}
	}
}

// TestShortCutGivesWay: packets that exceed the MTU are left to the kernel, which sends the error;
// so are packets with a VLAN tag.
func TestShortCutGivesWay(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoUDP, natModes[0])
		for s := stageOpen; s <= stageData; s++ {
			r.slow(f.name, p, s)
		}
		r.nexthop(5, r.out, 0, p.forth())
		datagram := func(from, to netip.AddrPort, ttl uint8, size int, tags ...testpkt.Layer) []byte {
			layers := append([]testpkt.Layer{r.in.arrives()}, tags...)
			return testpkt.Build(append(layers, ipHeader(from.Addr(), to.Addr(), ttl),
				testpkt.UDP{Source: from.Port(), Destination: to.Port()}, testpkt.Raw(make([]byte, size)))...)
		}
		room := 1500 - 28
		if f.name == "IPv6" {
			room -= 20
		}
		for _, tt := range []struct {
			name   string
			ttl    uint8
			size   int
			tags   []testpkt.Layer
			action int32
		}{
			{"as large as may be", 2, room, nil, actRedirect}, {"too large", 61, room + 1, nil, actUnspec},
			{"tagged", 61, 9, []testpkt.Layer{testpkt.VLAN{ID: 5}}, actUnspec},
		} {
			in := datagram(p.client, p.vip, tt.ttl, tt.size, tt.tags...)
			want := datagram(p.source, p.backend, tt.ttl, tt.size, tt.tags...)
			if tt.action == actRedirect {
				want = datagram(p.source, p.backend, tt.ttl-1, tt.size)
				copy(want, r.out.other[:])
				copy(want[6:], r.out.mac[:])
			}
			r.step(f.name+" "+tt.name, r.in, in, tt.action, want)
		}
		// The slow path confirms a next hop that has not been confirmed for a while.
		var hop kernel.Nexthop
		r.ok(r.maps[kernel.MapLlNexthop].Lookup(uint32(5), &hop))
		hop.CheckedTick -= 40
		r.put(kernel.MapLlNexthop, uint32(5), hop)
		r.step("stale", r.in, datagram(p.client, p.vip, 61, 9), actRedirect, datagram(p.source, p.backend, 60, 9))
		if n := r.counters()["VERDICT_FAST"]; n != 1 {
			t.Errorf("%s: %d packets took the fast path, want 1", f.name, n)
		}
	}
}
