// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// family contains the addresses of a rig in one address family.
type family struct {
	name                       string
	client, vip                netip.AddrPort
	far, near                  netip.AddrPort // backends behind out0, and behind in0 with the clients
	outAddr, inAddr, farRouter netip.Addr
}

var families = []family{
	{
		name:    "IPv4",
		client:  netip.MustParseAddrPort("192.0.2.17:40123"),
		vip:     netip.MustParseAddrPort("198.51.100.10:4660"),
		far:     netip.MustParseAddrPort("10.0.1.34:9029"),
		near:    netip.MustParseAddrPort("192.0.2.77:9029"),
		outAddr: netip.MustParseAddr("10.0.1.1"), inAddr: netip.MustParseAddr("192.0.2.1"),
		farRouter: netip.MustParseAddr("203.0.113.9"),
	},
	{
		name:    "IPv6",
		client:  netip.MustParseAddrPort("[2001:db8:1::17]:40123"),
		vip:     netip.MustParseAddrPort("[2001:db8:c633:6400::10]:4660"),
		far:     netip.MustParseAddrPort("[2001:db8:2::34]:9029"),
		near:    netip.MustParseAddrPort("[2001:db8:1::77]:9029"),
		outAddr: netip.MustParseAddr("2001:db8:2::1"), inAddr: netip.MustParseAddr("2001:db8:1::1"),
		farRouter: netip.MustParseAddr("2001:db8:cb00::9"),
	},
}

// stage is the stage of a connection.
type stage int

const (
	stageOpen    stage = iota // SYN, INIT, first datagram
	stageAnswer               // SYN-ACK, INIT ACK, first answer
	stageConfirm              // ACK, COOKIE ECHO, second datagram
	stageData
)

// packet builds the packet at a stage of a connection between from and to.
func packet(eth testpkt.Ethernet, proto uint8, from, to netip.AddrPort, s stage, ttl uint8) []byte {
	layers := []testpkt.Layer{eth, ipHeader(from.Addr(), to.Addr(), ttl)}
	switch proto {
	case testpkt.ProtoTCP:
		tcp := testpkt.TCP{Source: from.Port(), Destination: to.Port(), Seq: 0x01020305, Ack: 0x01020305, Window: 501}
		switch s { // both ends begin with the same sequence number
		case stageOpen:
			tcp.Flags, tcp.Seq, tcp.Ack, tcp.Options = testpkt.SYN, 0x01020304, 0, []byte{2, 4, 5, 0xb4, 1, 3, 3, 7}
		case stageAnswer:
			tcp.Flags, tcp.Seq = testpkt.SYN|testpkt.ACK, 0x01020304
		case stageConfirm:
			tcp.Flags = testpkt.ACK
		case stageData:
			tcp.Flags = testpkt.ACK | testpkt.PSH
			return testpkt.Build(append(layers, tcp, testpkt.Payload("odd sized text."))...)
		}
		return testpkt.Build(append(layers, tcp)...)
	case testpkt.ProtoUDP:
		udp := testpkt.UDP{Source: from.Port(), Destination: to.Port()}
		return testpkt.Build(append(layers, udp, testpkt.Payload(fmt.Sprintf("datagram %d", s)))...)
	}
	chunk := testpkt.Chunk{Type: []uint8{1, 2, 10, 0}[s], Value: []byte("chunk of SCTP")}
	sctp := testpkt.SCTP{Source: from.Port(), Destination: to.Port(), Tag: 0x21222324, Chunks: []testpkt.Chunk{chunk}}
	return testpkt.Build(append(layers, sctp)...)
}

func ipHeader(from, to netip.Addr, ttl uint8) testpkt.Layer {
	if from.Is4() {
		return testpkt.IPv4{Source: from, Destination: to, TTL: ttl, ID: 0x3132, TOS: 0x10, DontFragment: true}
	}
	return testpkt.IPv6{Source: from, Destination: to, HopLimit: ttl, FlowLabel: 0x41424, Class: 0x10}
}

// natMode is one kind of path from client to backend.
type natMode struct {
	name   string
	source kernel.SourceMode
	near   bool // the backend is behind the same device as the client
	snat   bool
}

var natModes = []natMode{
	{"keep", kernel.SourceModeSOURCE_KEEP, false, false},
	{"auto gateway", kernel.SourceModeSOURCE_AUTO, false, false},
	{"auto one-armed", kernel.SourceModeSOURCE_AUTO, true, true},
	{"snat", kernel.SourceModeSOURCE_SNAT, false, true},
}

// eachMode runs a test for each family and mode, each with empty tables.
func eachMode(t *testing.T, test func(t *testing.T, r *rig, f family, m natMode)) {
	base := newRig(t)
	for _, f := range families {
		for _, m := range natModes {
			t.Run(f.name+"/"+m.name, func(t *testing.T) { test(t, base.fresh(t), f, m) })
		}
	}
}

var protocols = map[string]uint8{"TCP": testpkt.ProtoTCP, "UDP": testpkt.ProtoUDP, "SCTP": testpkt.ProtoSCTP}

// path is a connection through a rig: the tuples at the client and at the backend.
type path struct {
	proto              uint8
	client, vip        netip.AddrPort
	source, backend    netip.AddrPort
	clientPort, beport rigPort
}

// connect creates a service and returns the path of the client's connection to it.
func (r *rig) connect(f family, proto uint8, m natMode) path {
	r.t.Helper()
	p := path{proto: proto, client: f.client, vip: f.vip, source: f.client, backend: f.far, clientPort: r.in, beport: r.out}
	router := f.outAddr
	if m.near {
		p.backend, p.beport, router = f.near, r.in, f.inAddr
	}
	if m.snat {
		p.source = netip.AddrPortFrom(router, 61057)
	}
	r.service(rigService{id: 7, proto: proto, frontend: f.vip, source: m.source, backends: []rigBackend{{id: 3, addr: p.backend}}})
	return p
}

// forth and back return the tuples of the client's and the backend's packets as they arrive.
func (p path) forth() rigTuple { return rigTuple{p.proto, p.client, p.vip} }
func (p path) back() rigTuple  { return rigTuple{p.proto, p.backend, p.source} }

// slow sends a packet of the client or, for stageAnswer, of the backend on the slow path.
func (r *rig) slow(what string, p path, s stage) {
	r.t.Helper()
	if s == stageAnswer {
		r.step(what, p.beport, packet(p.beport.arrives(), p.proto, p.backend, p.source, s, 61),
			actUnspec, packet(p.beport.arrives(), p.proto, p.vip, p.client, s, 61))
		return
	}
	action, ttl := p.outcome(61)
	r.step(what, p.clientPort, packet(p.clientPort.arrives(), p.proto, p.client, p.vip, s, 61),
		action, packet(p.clientPort.arrives(), p.proto, p.source, p.backend, s, ttl))
}

// outcome returns what the programs do with a packet of the client on the slow path, and its TTL
// afterwards. The stack forwards the packet, unless its source is now the node's own IPv4 address:
// the stack would drop it as a martian, so the programs redirect it.
func (p path) outcome(ttl uint8) (int32, uint8) {
	if p.source.Addr().Is4() && p.source.Addr() != p.client.Addr() {
		return actRedirect, ttl - 1
	}
	return actUnspec, ttl
}

// TestForward follows a connection from its first packet to the fast path: for each protocol,
// family and NAT mode, every byte, verdict, counter and table entry.
func TestForward(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			for _, m := range natModes {
				t.Run(f.name+"/"+name+"/"+m.name, func(t *testing.T) {
					r := base.fresh(t)
					r.follow(r.connect(f, proto, m))
				})
			}
		}
	}
}

func (r *rig) follow(p path) {
	r.t.Helper()
	r.slow("opening", p, stageOpen)
	r.entry(p.forth(), rigConn{half: true, leaves: p.back().turned(), rigMeta: rigMeta{PacketCount: 1}})
	r.entry(p.back(), rigConn{half: true, leaves: p.forth().turned(), rigMeta: rigMeta{}})
	r.slow("answer", p, stageAnswer)
	r.slow("confirmation", p, stageConfirm)
	r.entry(p.forth(), rigConn{leaves: p.back().turned(), rigMeta: rigMeta{PacketCount: 2, State: 2}})
	r.entry(p.back(), rigConn{leaves: p.forth().turned(), rigMeta: rigMeta{PacketCount: 1, State: 2}})
	r.slow("first data", p, stageData)
	r.counted(map[string]uint64{"VERDICT_SLOW": 4})

	r.nexthop(5, p.beport, 0, p.forth())
	r.nexthop(6, p.clientPort, 1, p.back()) // NEXTHOP_F_PEER
	r.step("data", p.clientPort, packet(p.clientPort.arrives(), p.proto, p.client, p.vip, stageData, 61),
		actRedirect, packet(p.beport.leaves(), p.proto, p.source, p.backend, stageData, 60))
	r.step("data back", p.beport, packet(p.beport.arrives(), p.proto, p.backend, p.source, stageData, 61),
		actRedirect, packet(p.clientPort.leaves(), p.proto, p.vip, p.client, stageData, 60))
	r.counted(map[string]uint64{"VERDICT_SLOW": 4, "VERDICT_FAST": 2})
	r.entry(p.forth(), rigConn{leaves: p.back().turned(), rigMeta: rigMeta{PacketCount: 4, State: 2, Nexthop: 5}})
	r.entry(p.back(), rigConn{leaves: p.forth().turned(), rigMeta: rigMeta{PacketCount: 2, State: 2, Nexthop: 6}})
	if s := r.stats(7); s.ConnectionCount != 1 || s.DropCount != [4]uint64{} {
		r.t.Errorf("the service counted %+v, want one connection and no drop", s)
	}
	var total kernel.BackendTotal
	var load uint32
	r.ok(r.tables.BackendTotal.Lookup(3, &total))
	r.ok(r.tables.BackendLoad.Lookup(3, &load))
	if total.ConnectionCount != 1 || load != 1 {
		r.t.Errorf("the backend counted %d connections opened and %d open, want 1 and 1", total.ConnectionCount, load)
	}
}

// entry compares the entry of t with want; service and backend must be as set by [rig.connect].
func (r *rig) entry(t rigTuple, want rigConn) {
	r.t.Helper()
	got, found := r.conn(t)
	if !found {
		r.t.Errorf("no connection %s", t)
		return
	}
	if got.half != want.half || got.leaves != want.leaves || got.State != want.State ||
		got.PacketCount != want.PacketCount || got.Nexthop != want.Nexthop ||
		got.Flags&kernel.CtService == 0 || got.BackendId != 3 {
		r.t.Errorf("connection %s:\n got %+v\nwant %+v", t, got, want)
	}
	if age := rigTick() - got.CreatedTick; age > 300 {
		r.t.Errorf("connection %s: created %d ticks ago", t, age)
	}
}

// TestChecksumCarries: the difference between frontend and backend causes a carry in the checksum,
// on the fast path, which changes the TTL as well.
func TestChecksumCarries(t *testing.T) {
	r := newRig(t)
	f := families[0]
	f.vip, f.far = netip.MustParseAddrPort("10.96.0.34:4660"), netip.MustParseAddrPort("10.0.0.34:4660")
	for i := range 256 {
		f.far = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 34}), 4660)
		p := r.connect(f, testpkt.ProtoUDP, natModes[0]).from(uint16(1000 + i))
		r.slow("opening", p, stageOpen)
		r.nexthop(5, r.out, 0, p.forth())
		r.step(f.far.String(), r.in, packet(r.in.arrives(), p.proto, p.client, p.vip, stageData, 61),
			actRedirect, packet(r.out.leaves(), p.proto, p.source, p.backend, stageData, 60))
	}
}
