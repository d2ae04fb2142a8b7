// SPDX-License-Identifier: Apache-2.0

package security

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// ofLAN returns the frames that a host on the LAN sends.
func (s *frameSite) ofLAN(t *testing.T) (l frameList) {
	const forged = "uplink_source"
	eth, own, other := s.routed(t, s.host), s.hostAddr(), s.other.addr[s.family]
	for who, a := range s.foreign() {
		l.add("the source of "+who, forged, eth, s.ip(a), s.udp())
	}
	for who, a := range s.invalid() {
		l.add("the source of "+who, map[bool]string{true: forged}[a.Is4In6()], eth, s.ip(a), s.udp())
	}
	l.add("the source of the node", forged, eth, s.ip(s.addr("192.0.2.1", "2001:db8:2::1")), s.udp())
	if s.family == 1 { // the kernel forwards IPv4 with a link-local source
		l.add("a link-local source", "", eth, s.ip(netip.MustParseAddr("fe80::7")), s.udp())
	}
	l.add("the source of the loopback", "loopback", eth, s.ip(s.addr("127.0.0.1", "::1")), s.udp())
	l.add("a forged SYN", forged, eth, s.ip(other), testpkt.TCP{Source: 4660, Destination: 80, Flags: testpkt.SYN})
	l.add("a forged echo request", forged, eth, s.ip(other), s.echo())
	l.add("a forged chunk of SCTP", forged, eth, s.ip(other), testpkt.SCTP{Source: 4660, Destination: 80})
	l.add("first fragment, forged", forged, eth, s.fragment(other, false, 0), s.udp())
	l.add("later fragment, forged", forged, eth, s.fragment(other, true, 17))
	l.add("with options, forged", forged, eth, s.options(other), s.udp())
	l.add("GRE, forged", forged, eth, s.tunnel(other, 47), testpkt.Payload("\x00\x00\x08\x00"))
	l.add("IP in IP, forged", forged, eth, s.tunnel(other, of[uint8](s, 4, 41)), s.ip(own), s.udp())
	l.add("a priority tag, forged", forged, eth, testpkt.VLAN{}, s.ip(other), s.udp())
	s.tagged(&l, eth, own, "")
	s.malformed(&l, eth, own)
	eth.Destination = s.third.MAC(t, "eth0")
	l.add("to another host's MAC", "", eth, s.ip(own), s.udp())
	eth.Destination = s.victimMAC
	l.add("to the victim's MAC", "", eth, s.ip(own), s.udp())
	return l
}

// malformed adds packets that no router forwards.
func (s *frameSite) malformed(l *frameList, eth testpkt.Ethernet, from netip.Addr) {
	l.changed("another version", "", wrongVersion, eth, s.ip(from), s.udp())
	l.changed("longer than the frame", "", func(ip []byte) []byte {
		at := of(s, 2, 4)
		binary.BigEndian.PutUint16(ip[at:], binary.BigEndian.Uint16(ip[at:])+100)
		return ip
	}, eth, s.ip(from), s.udp())
	l.cut("cut off", "", testpkt.Build(eth, s.ip(from), s.udp()))
	if s.family == 1 {
		l.add("hop limit 1", "", eth, testpkt.IPv6{Source: from, Destination: s.victim.addr[1], HopLimit: 1}, s.udp())
		return
	}
	l.add("TTL 1", "", eth, testpkt.IPv4{Source: from, Destination: s.victim.addr[0], TTL: 1}, s.udp())
	l.changed("a header of 16 bytes", "", wrongHeader, eth, s.ip(from), s.udp())
	l.changed("a wrong checksum", "", func(ip []byte) []byte { ip[10] ^= 0x55; return ip }, eth, s.ip(from), s.udp())
}

// wrapped returns the VXLAN or Geneve header that follows the UDP header, and a frame.
func (k overlayKind) wrapped(frame []byte) []byte {
	header := []byte{8, 0, 0, 0}
	if k.tunnel == "geneve" {
		header = []byte{0, 0, 0x65, 0x58}
	}
	return append(binary.BigEndian.AppendUint32(header, overlayVNI<<8), frame...)
}

// ofUnderlay returns the frames of node 3, a Peer, and of a host that is not a Peer. Their inner
// packets are for the victim.
func (s *frameSite) ofUnderlay(t *testing.T) (l frameList) {
	eth, inside := s.routed(t, s.third), testpkt.Ethernet{Source: [6]byte{2, 9, 8, 7, 6, 5}, Destination: [6]byte{2, 1, 2, 3, 4, 5}}
	genuine, other := s.inPods(3, 9, s.family), s.other.addr[s.family]
	outer := func(payload []byte) []byte { return s.outer(eth, s.underlay(3), s.underlay(1), payload) }
	inner := func(name, counted string, layers ...testpkt.Layer) {
		mark := fmt.Sprintf("HOSTILE %03d", len(l))
		l.raw(name, counted, outer(s.wrapped(testpkt.Build(append(append([]testpkt.Layer{inside}, layers...), testpkt.Payload(mark))...))), mark)
	}
	sources := s.foreign()
	delete(sources, "a pod of node 3") // permitted
	for who, a := range sources {
		inner("inner source of "+who, "tunnel_source", s.ip(a), s.udp())
	}
	for who, a := range s.invalid() {
		inner("inner source of "+who, "tunnel_source", s.ip(a), s.udp())
	}
	inner("inner source of the LAN", "tunnel_source", s.ip(s.hostAddr()), s.udp())
	for who, id := range map[string]int{"this node": 1, "node 2": 2, "node 3 itself": 3} {
		if a := s.underlay(id); a.Is4() == (s.family == 0) {
			inner("inner source of "+who, "tunnel_source", s.ip(a), s.udp())
		}
	}
	inner("inner source of the loopback", "tunnel_source", s.ip(s.addr("127.0.0.1", "::1")), s.udp())
	inner("inner first fragment, forged", "tunnel_source", s.fragment(other, false, 0), s.udp())
	inner("inner later fragment, forged", "tunnel_source", s.fragment(other, true, 17))
	inner("inner options, forged", "tunnel_source", s.options(other), s.udp())
	inner("inner tag", "tunnel_malformed", testpkt.VLAN{ID: 7}, s.ip(genuine), s.udp())
	s.innerFrames(&l, inside, outer, genuine)
	s.outerHeaders(t, &l, genuine)
	return l
}

// innerFrames adds tunnelled frames that are not packets for pods.
func (s *frameSite) innerFrames(l *frameList, inside testpkt.Ethernet, outer func([]byte) []byte, genuine netip.Addr) {
	frame := func(layers ...testpkt.Layer) ([]byte, string) {
		mark := fmt.Sprintf("HOSTILE %03d", len(*l))
		return testpkt.Build(append(append([]testpkt.Layer{inside}, layers...), testpkt.Payload(mark))...), mark
	}
	b, mark := frame(s.ip(genuine), s.udp())
	b[14] ^= 0x20
	l.raw("inner packet of another version", "tunnel_source", outer(s.wrapped(b)), mark)
	b, mark = frame(s.ip(genuine), s.udp())
	b[12], b[13] = 0x08, 0x06
	l.raw("inner ARP", "tunnel_malformed", outer(s.wrapped(b)), mark)
	b, _ = frame(s.ip(genuine), s.udp())
	l.raw("inner packet cut off", "tunnel_malformed", outer(s.wrapped(b[:14+18])), string(b[14+4:14+18]))
	b, mark = frame(s.ip(genuine), s.udp())
	vni := s.wrapped(b)
	vni[6] ^= 1
	l.raw("another VNI", "", outer(vni), mark)
	b, mark = frame(s.ip(genuine), s.udp())
	flags := s.wrapped(b)
	flags[0] ^= 0x48 // VXLAN: no VNI; Geneve: a different version
	l.raw("a header of another tunnel", "", outer(flags), mark)
	// A packet for the node's address among its pods, which itself contains a tunnel packet.
	b, mark = frame(s.ip(s.inPods(2, 9, s.family)), s.udp())
	nested := testpkt.Build(inside, ipHeader(genuine, s.inPods(1, 2, s.family)),
		testpkt.UDP{Source: 50001, Destination: s.port()}, testpkt.Payload(s.wrapped(b)))
	l.raw("a tunnel in the tunnel", map[bool]string{false: "tunnel_unknown_peer"}[s.merged], outer(s.wrapped(nested)), mark)
}

// outerHeaders adds packets whose inner packet is valid.
func (s *frameSite) outerHeaders(t *testing.T, l *frameList, genuine netip.Addr) {
	payload := func() ([]byte, string) {
		mark := fmt.Sprintf("HOSTILE %03d", len(*l))
		return s.encapsulated(s.source(genuine), s.at(s.victim), mark), mark
	}
	eth, local := s.routed(t, s.third), s.underlay(1)
	for who, a := range map[string]netip.Addr{"the host": s.underlay(77), "no host": s.underlay(99)} {
		b, mark := payload()
		l.raw("outer source of "+who, "tunnel_unknown_peer", s.outer(eth, a, local, b), mark)
	}
	b, mark := payload()
	l.raw("outer source of the node itself", "tunnel_unknown_peer", s.outer(eth, local, local, b), mark)
	b, mark = payload()
	other := eth
	other.Destination = s.host.MAC(t, "eth0")
	l.raw("to another host's MAC", "", s.outer(other, s.underlay(3), local, b), mark)
	b, mark = payload()
	whole := s.outer(eth, s.underlay(3), local, b)
	l.raw("outer tag", "", append(append(append([]byte{}, whole[:12]...), 0x81, 0, 0, 7), whole[12:]...), mark)
	b, mark = payload()
	l.raw("the port of no tunnel", "", testpkt.Build(eth, ipHeader(s.underlay(3), local), testpkt.UDP{Source: 50001, Destination: s.port() + 1}, testpkt.Payload(b)), mark)
	b, mark = payload()
	ip := s.tunnelIP(s.underlay(3), local, 47)
	l.raw("GRE without a tunnel", "", testpkt.Build(eth, ip, testpkt.Payload(of(s, "\x00\x00\x08\x00", "\x00\x00\x86\xdd")), testpkt.Payload(b[8+14:])), mark)
	b, mark = payload()
	ip = s.tunnelIP(s.underlay(3), local, of[uint8](s, 4, 41))
	l.raw("IP in IP without a tunnel", "", testpkt.Build(eth, ip, testpkt.Payload(b[8+14:])), mark)
	b, mark = s.encapsulated(s.source(s.other.addr[s.family]), s.at(s.victim), fmt.Sprintf("HOSTILE %03d", len(*l))), fmt.Sprintf("HOSTILE %03d", len(*l))
	mtu := 60 // the first one ends in the inner header
	if s.over6 {
		mtu = 96
	}
	for i, f := range testpkt.Fragments(s.outer(eth, s.underlay(3), local, b), mtu, 7) {
		l.raw(fmt.Sprintf("forged, outer fragment %d", i+1), "", f, mark)
	}
}

// tunnelIP returns an outer IP header.
func (s *frameSite) tunnelIP(from, to netip.Addr, protocol uint8) testpkt.Layer {
	if from.Is4() {
		return testpkt.IPv4{Source: from, Destination: to, Protocol: protocol}
	}
	return testpkt.IPv6{Source: from, Destination: to, Protocol: protocol}
}
