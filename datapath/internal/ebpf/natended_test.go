// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// sequence returns the sequence number of a segment with flags; the first segment has 1.
func sequence(flags uint8) uint32 {
	if flags&testpkt.SYN != 0 {
		return 1
	}
	return 2
}

// tcpSegment builds a segment that the client or the server sends.
func tcpSegment(eth testpkt.Ethernet, from, to netip.AddrPort, flags uint8) []byte {
	return testpkt.Build(eth, ipHeader(from.Addr(), to.Addr(), 60),
		testpkt.TCP{Source: from.Port(), Destination: to.Port(), Seq: sequence(flags), Ack: 2, Window: 501, Flags: flags})
}

// syn sends the first packet of a connection at egress, and returns its source port; 0: it was
// refused.
func (r *rig) syn(client, server netip.AddrPort) uint16 {
	r.t.Helper()
	action, out := r.leave(r.in, r.out, tcpSegment(r.out.leaves(), client, server, testpkt.SYN))
	if action == actShot {
		return 0
	}
	return sourcePort(out, testpkt.ProtoTCP)
}

// end completes the handshake of a connection; then both sides close it, or the server resets it.
func (r *rig) end(client, server, outer netip.AddrPort, reset bool) {
	r.t.Helper()
	back := func(flags uint8) {
		r.run(r.ingress, r.out, tcpSegment(r.out.arrives(), server, outer, flags))
	}
	forth := func(flags uint8) { r.leave(r.in, r.out, tcpSegment(r.out.leaves(), client, server, flags)) }
	back(testpkt.SYN | testpkt.ACK)
	forth(testpkt.ACK)
	if reset {
		back(testpkt.RST)
		return
	}
	forth(testpkt.FIN | testpkt.ACK)
	back(testpkt.FIN | testpkt.ACK)
	forth(testpkt.ACK)
}

// TestEndedPortsAgain: if every outer port towards a server is taken, the port of the connection
// that ended first is reused; a port of a live connection never is.
func TestEndedPortsAgain(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, reset := range map[string]bool{"closed by both": false, "reset": true} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				rule := masquerade("out0")
				rule.Ports = []datapath.PortRange{{First: 7001, Last: 7004}}
				n := r.translate(map[datapath.NATName]datapath.NAT{"away": rule})
				client := func(i int) netip.AddrPort { return netip.AddrPortFrom(f.client.Addr(), uint16(2000+i)) }
				var ports [4]netip.AddrPort
				for i := range ports {
					ports[i] = netip.AddrPortFrom(f.outAddr, r.syn(client(i), f.far))
				}
				if port := r.syn(client(4), f.far); port != 0 {
					t.Fatalf("a fifth connection has port %d of four", port)
				}
				for i, age := range []uint32{0, 30, 60} {
					r.end(client(i), f.far, ports[i], reset)
					for _, way := range []rigTuple{{testpkt.ProtoTCP, client(i), f.far}, {testpkt.ProtoTCP, f.far, ports[i]}} {
						r.change(way, func(m *rigMeta) { m.LastSeenTick -= age })
					}
				}
				for _, i := range []int{2, 1, 0} {
					if port := r.syn(client(10+i), f.far); port != ports[i].Port() {
						t.Fatalf("the next connection has port %d, want %s", port, ports[i])
					}
					if c, ok := r.conn(rigTuple{testpkt.ProtoTCP, f.far, ports[i]}); !ok || c.leaves.dst != client(10+i) {
						t.Errorf("answers go to %+v, %t, want %s", c.leaves, ok, client(10+i))
					}
					if _, ok := r.conn(rigTuple{testpkt.ProtoTCP, client(i), f.far}); ok {
						t.Errorf("the connection that ended is still there")
					}
				}
				if port := r.syn(client(20), f.far); port != 0 {
					t.Errorf("the port %d of a connection that continues was given out again", port)
				}
				packets := map[bool]uint64{false: 18, true: 12}[reset]
				if c, _, err := n.Counters("away"); err != nil || c.Connections != 7 || c.Packets != packets {
					t.Errorf("counters %+v, %v; want 7 connections, and %d packets of those that made room", c, err, packets)
				}
			})
		}
	}
}

// TestReopenedKeepsPort: a client that reuses its port gets the same outer port.
func TestReopenedKeepsPort(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			r.knowNeighbours(f)
			r.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
			open := func() netip.AddrPort {
				_, out := r.run(r.ingress, r.in, tcpSegment(r.in.arrives(), f.client, f.far, testpkt.SYN))
				return netip.AddrPortFrom(addressOf(out), sourcePort(out, testpkt.ProtoTCP))
			}
			first := open()
			r.run(r.ingress, r.out, tcpSegment(r.out.arrives(), f.far, first, testpkt.SYN|testpkt.ACK))
			r.run(r.ingress, r.in, tcpSegment(r.in.arrives(), f.client, f.far, testpkt.ACK))
			r.run(r.ingress, r.in, tcpSegment(r.in.arrives(), f.client, f.far, testpkt.FIN|testpkt.ACK))
			r.run(r.ingress, r.out, tcpSegment(r.out.arrives(), f.far, first, testpkt.FIN|testpkt.ACK))
			if again := open(); again != first || first.Addr() != f.outAddr {
				t.Errorf("opened again from %s, want %s", again, first)
			}
			if c, ok := r.conn(rigTuple{testpkt.ProtoTCP, f.client, f.far}); !ok || kernel.CtState(c.State) != kernel.CtStateCT_NEW || c.PacketCount != 1 {
				t.Errorf("entry %+v, %t", c, ok)
			}
		})
	}
}

// TestNATCounters: traffic of connections is counted for their NAT, in both directions, while they
// exist and afterwards.
func TestNATCounters(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
	n.backends.ServeUDP(t, "10.0.1.11:8080", "server")
	var packets, bytes uint64
	want := func(what string, connections uint64) {
		t.Helper()
		n.ok(n.d.sweeper.Whole())
		c, ok, err := n.d.Telemetry().NATCounters(context.Background(), "away")
		if err != nil || !ok || c.Connections != connections || c.Packets != packets || c.Bytes != bytes {
			t.Errorf("%s: %+v, %t, %v; want %d connections, %d packets, %d bytes", what, c, ok, err, connections, packets, bytes)
		}
	}
	want("before", 0)
	u, err := n.client.Dial("udp", "", "10.0.1.11:8080", time.Second)
	n.ok(err)
	defer u.Close()
	for range 5 {
		n.datagram(u)
	}
	list, _, err := n.d.Connections().List(context.Background(), datapath.ConnectionFilter{}, "", 10)
	n.ok(err)
	for _, c := range list {
		packets += c.Sent.Packets + c.Received.Packets
		bytes += c.Sent.Bytes + c.Received.Bytes
	}
	if packets != 10 {
		t.Fatalf("%d packets were counted, want 10: %+v", packets, list)
	}
	want("while it exists", 1)
	_, err = n.d.Connections().Flush(context.Background(), datapath.ConnectionFilter{})
	n.ok(err)
	want("when it is gone", 1)
}

// TestMappingByAddress: a client whose packets leave through two devices has a mapping for the
// address of each, and keeps both.
func TestMappingByAddress(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			n := r.translate(map[datapath.NATName]datapath.NAT{"away": {Type: datapath.Masquerade, Mapping: datapath.EndpointIndependent}})
			inner := netip.AddrPortFrom(netip.MustParseAddr(map[string]string{"IPv4": "10.9.9.9", "IPv6": "2001:db8:9::9"}[f.name]), 5060)
			leaves := func(by rigPort, other rigPort, to netip.AddrPort) netip.AddrPort {
				_, out := r.leave(other, by, packet(by.leaves(), testpkt.ProtoUDP, inner, to, stageOpen, 60))
				return netip.AddrPortFrom(addressOf(out), sourcePort(out, testpkt.ProtoUDP))
			}
			far := leaves(r.out, r.in, f.far)
			near := leaves(r.in, r.out, f.near)
			if far.Addr() != f.outAddr || near.Addr() != f.inAddr {
				t.Fatalf("seen as %s and %s", far, near)
			}
			if again := leaves(r.out, r.in, netip.AddrPortFrom(f.far.Addr().Next(), 1)); again != far {
				t.Errorf("by the first device again as %s, before %s", again, far)
			}
			r.ok(passLater(n, kernel.TicksOf(datapath.MappingTimeout)+10).PassEnded())
			if inner, outer := r.count(kernel.MapLlMapping), r.count(kernel.MapLlMappingOuter); inner != 0 || outer != 0 {
				t.Errorf("%d and %d unused mappings are left", inner, outer)
			}
		})
	}
}
