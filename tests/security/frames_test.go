// SPDX-License-Identifier: Apache-2.0

package security

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// frameSite is an overlaySite with a pod that sends forged frames, the pod whose addresses it
// forges, and the pod that must not get them, all on node 1.
type frameSite struct {
	*overlaySite
	evil, other, victim *overlayPod
	evilMAC, victimMAC  [6]byte
	family              int // 0: IPv4, 1: IPv6
}

// hostile is a frame that must not reach the victim. counted is the drop reason under which node 1
// counts it; empty: the kernel drops it, or nothing is counted.
type hostile struct {
	name, counted string
	frame         []byte
	mark          []byte // part of the frame by which it is recognized
}

// frameList collects the frames of one sender.
type frameList []hostile

// add adds a frame of these layers. Its mark is its payload; a message that must not be extended is
// its own mark.
func (l *frameList) add(name, counted string, layers ...testpkt.Layer) {
	if _, ok := layers[len(layers)-1].(testpkt.Raw); ok {
		frame := testpkt.Build(layers...)
		l.raw(name, counted, frame, string(frame[14:]))
		return
	}
	mark := fmt.Sprintf("HOSTILE %03d", len(*l))
	l.raw(name, counted, testpkt.Build(append(layers, testpkt.Payload(mark))...), mark)
}

// raw adds a frame unchanged.
func (l *frameList) raw(name, counted string, frame []byte, mark string) {
	*l = append(*l, hostile{name, counted, frame, []byte(mark)})
}

// changed adds the frame of layers after change has modified its bytes, starting at the IP header.
func (l *frameList) changed(name, counted string, change func(ip []byte) []byte, layers ...testpkt.Layer) {
	mark := fmt.Sprintf("HOSTILE %03d", len(*l))
	frame := testpkt.Build(append(layers, testpkt.Payload(mark))...)
	l.raw(name, counted, append(frame[:14:14], change(frame[14:])...), mark)
}

// cut adds a frame that ends in its IP header. Its mark is the rest of the header.
func (l *frameList) cut(name, counted string, frame []byte) {
	l.raw(name, counted, frame[:14+18], string(frame[14+4:14+18]))
}

// TestHostileFrames sends forged, malformed, tunnelled, fragmented and tagged frames from a pod,
// from a host on the LAN and from the underlay to another pod, for both families. None arrives,
// while a genuine one that each sender sends last does.
func TestHostileFrames(t *testing.T) {
	for _, kind := range []overlayKind{{tunnel: "vxlan"}, {tunnel: "geneve", over6: true, merged: true}} {
		t.Run(kind.String(), func(t *testing.T) {
			s := &frameSite{overlaySite: newOverlaySite(t, kind)}
			s.evil, s.other, s.victim = s.pod(1, "evil"), s.pod(1, "other"), s.pod(1, "victim")
			s.evilMAC, s.victimMAC = s.evil.MAC(t, "eth0"), s.victim.MAC(t, "eth0")
			for family, name := range []string{"IPv4", "IPv6"} {
				t.Run(name, func(t *testing.T) {
					s.family = family
					pod, lan, underlay := s.ofPod(t), s.ofLAN(t), s.ofUnderlay(t)
					t.Logf("%d frames of a pod, %d of the LAN, %d of the underlay", len(pod), len(lan), len(underlay))
					s.wantNone(t, "a pod", s.evil.NS, pod, udpFrame(s.bridged(), s.at(s.evil), s.at(s.victim), "genuine by a pod"))
					s.wantNone(t, "the LAN", s.host, lan, udpFrame(s.routed(t, s.host), s.source(s.hostAddr()), s.at(s.victim), "genuine by the LAN"))
					s.wantNone(t, "the underlay", s.third, underlay, s.outer(s.routed(t, s.third), s.underlay(3), s.underlay(1), s.encapsulated(s.source(s.inPods(3, 9, family)), s.at(s.victim), "genuine by the underlay")))
				})
			}
		})
	}
}

// wantNone sends the frames in list and then the frame genuine. It fails the test if the victim's
// device has seen any but the last one, or if node 1 has not counted the frames that it drops.
func (s *frameSite) wantNone(t *testing.T, who string, from *testnet.NS, list frameList, genuine []byte) {
	t.Helper()
	seen, wire := s.victim.Wire(t, "eth0"), from.Wire(t, "eth0")
	before, want := s.nodes[0].Counters("", "").Drops, map[string]uint64{}
	for _, h := range list {
		wire.Send(t, h.frame)
		if h.counted != "" {
			want[h.counted]++
		}
	}
	testnet.Eventually(t, 30*time.Second, "the genuine frame of "+who+" arrives", func() bool {
		wire.Send(t, genuine)
		for _, f := range seen.Frames() {
			if bytes.Contains(f, []byte("genuine by "+who)) {
				return true
			}
		}
		return false
	})
	for _, f := range seen.Frames() {
		for _, h := range list {
			if bytes.Contains(f, h.mark) {
				t.Errorf("%s: %s arrived:\n%s", who, h.name, testpkt.Parse(f))
			}
		}
	}
	after := s.nodes[0].Counters("", "").Drops
	for reason, n := range want {
		if got := after[reason] - before[reason]; got < n {
			t.Errorf("%s: node 1 counts %d packets as %s, want %d", who, got, reason, n)
		}
	}
}

// of returns the value for the family.
func of[T any](s *frameSite, four, six T) T {
	if s.family == 0 {
		return four
	}
	return six
}

func (s *frameSite) source(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 5353) }
func (s *frameSite) at(p *overlayPod) netip.AddrPort {
	return netip.AddrPortFrom(p.addr[s.family], 5300)
}
func (s *frameSite) addr(four, six string) netip.Addr { return netip.MustParseAddr(of(s, four, six)) }
func (s *frameSite) hostAddr() netip.Addr             { return s.addr("192.0.2.77", "2001:db8:2::77") }
func (s *frameSite) ip(from netip.Addr) testpkt.Layer { return ipHeader(from, s.victim.addr[s.family]) }
func (s *frameSite) bridged() testpkt.Ethernet {
	return testpkt.Ethernet{Source: s.evilMAC, Destination: s.victimMAC}
}
func (s *frameSite) udp() testpkt.UDP { return testpkt.UDP{Source: 5353, Destination: 5300} }
func (s *frameSite) nd(to netip.Addr) testpkt.IPv6 {
	return testpkt.IPv6{Source: s.evil.addr[1], Destination: to, HopLimit: 255}
}
func linkLayer(option byte, mac [6]byte) []byte { return append([]byte{option, 1}, mac[:]...) }
func joined(parts ...[]byte) testpkt.Raw        { return bytes.Join(parts, nil) }
func (s *frameSite) echo() testpkt.ICMP {
	return testpkt.ICMP{V6: s.family == 1, Type: of[uint8](s, 8, 128), ID: 7}
}
func (s *frameSite) routed(t *testing.T, ns *testnet.NS) testpkt.Ethernet {
	return testpkt.Ethernet{Source: ns.MAC(t, "eth0"), Destination: s.nodes[0].ns.MAC(t, "eth0")}
}

// fragment returns the IP header of the first or of a later fragment.
func (s *frameSite) fragment(from netip.Addr, later bool, protocol uint8) testpkt.Layer {
	offset := 0
	if later {
		offset = 16
	}
	if s.family == 0 {
		return testpkt.IPv4{Source: from, Destination: s.victim.addr[0], ID: 7, MoreFragments: !later, Offset: offset, Protocol: protocol}
	}
	return testpkt.IPv6{Source: from, Destination: s.victim.addr[1], Extensions: []testpkt.Extension{testpkt.FragmentHeader(7, offset, !later)}, Protocol: protocol}
}

// filler is an extension header without a meaning.
var filler = testpkt.Extension{Type: testpkt.Destination, Data: []byte{1, 4, 0, 0, 0, 0}}

// options returns an IP header with options, or with an extension header.
func (s *frameSite) options(from netip.Addr) testpkt.Layer {
	if s.family == 0 {
		return testpkt.IPv4{Source: from, Destination: s.victim.addr[0], Options: []byte{148, 4, 0, 0}}
	}
	return testpkt.IPv6{Source: from, Destination: s.victim.addr[1], Extensions: []testpkt.Extension{filler}}
}

// foreign are sources that neither a pod nor a host on the LAN may use.
func (s *frameSite) foreign() map[string]netip.Addr {
	return map[string]netip.Addr{
		"another pod": s.other.addr[s.family], "the victim": s.victim.addr[s.family], "the gateway": s.inPods(1, 1, s.family),
		"the node among its pods": s.inPods(1, 2, s.family), "no pod's": s.inPods(1, 99, s.family),
		"a pod of node 2": s.inPods(2, 9, s.family), "a pod of node 3": s.inPods(3, 9, s.family),
	}
}

// invalid are sources that no packet from another host can have.
func (s *frameSite) invalid() map[string]netip.Addr {
	return map[string]netip.Addr{
		"no address": s.addr("0.0.0.0", "::"), "a group": s.addr("224.0.0.5", "ff02::5"),
		of(s, "all", "another pod as a mapped address"): of(s, netip.AddrFrom4([4]byte{255, 255, 255, 255}), netip.AddrFrom16(s.other.addr[0].As16())),
	}
}

// wrongVersion and wrongHeader change the first byte of an IP header.
func wrongVersion(ip []byte) []byte { ip[0] ^= 0x20; return ip }
func wrongHeader(ip []byte) []byte  { ip[0] = 0x44; return ip }

// ofPod returns the frames that a pod sends.
func (s *frameSite) ofPod(t *testing.T) (l frameList) {
	const spoofed = "spoofed"
	eth, own, other := s.bridged(), s.evil.addr[s.family], s.other.addr[s.family]
	gateway := s.gatewayMAC(t, s.evil)
	sources := s.foreign()
	maps.Copy(sources, s.invalid())
	sources["the LAN"], sources["the loopback"] = s.hostAddr(), s.addr("127.0.0.1", "::1")
	for who, a := range sources {
		l.add("the source of "+who, spoofed, eth, s.ip(a), s.udp())
	}
	l.add("a forged SYN", spoofed, eth, s.ip(other), testpkt.TCP{Source: 4660, Destination: 80, Flags: testpkt.SYN})
	l.add("a forged echo request", spoofed, eth, s.ip(other), s.echo())
	l.add("a forged chunk of SCTP", spoofed, eth, s.ip(other), testpkt.SCTP{Source: 4660, Destination: 80})
	l.add("forged, by the gateway", spoofed, testpkt.Ethernet{Source: s.evilMAC, Destination: gateway}, s.ip(other), s.udp())
	l.add("forged, to all", spoofed, testpkt.Ethernet{Source: s.evilMAC, Destination: [6]byte{255, 255, 255, 255, 255, 255}}, s.ip(other), s.udp())
	for who, mac := range map[string][6]byte{"another pod": s.other.MAC(t, "eth0"), "the gateway": gateway, "the victim": s.victimMAC} {
		l.add("the MAC of "+who, spoofed, testpkt.Ethernet{Source: mac, Destination: s.victimMAC}, s.ip(own), s.udp())
	}
	s.tagged(&l, eth, own, spoofed)
	l.add("first fragment, forged", spoofed, eth, s.fragment(other, false, 0), s.udp())
	l.add("later fragment, forged", spoofed, eth, s.fragment(other, true, 17))
	l.add("GRE, forged", spoofed, eth, s.tunnel(other, 47), testpkt.Payload("\x00\x00\x08\x00"))
	l.add("IP in IP, forged", spoofed, eth, s.tunnel(other, of[uint8](s, 4, 41)), s.ip(own), s.udp())
	l.add("a tunnel's packet, forged", spoofed, eth, s.ip(other), testpkt.UDP{Source: 50001, Destination: s.port()}, testpkt.Payload(s.wrapped(nil)))
	l.add("with options, forged", spoofed, eth, s.options(other), s.udp())
	l.changed("another version", spoofed, wrongVersion, eth, s.ip(own), s.udp())
	l.cut("cut off", spoofed, testpkt.Build(eth, s.ip(own), s.udp()))
	for name, etherType := range map[string]uint16{"PPPoE": 0x8864, "MPLS": 0x8847, "LLDP": 0x88cc, "LLC": 39} {
		l.add(name, spoofed, testpkt.Ethernet{Source: s.evilMAC, Destination: s.victimMAC, Type: etherType}, testpkt.Raw("\x42\x42\x03"))
	}
	if s.family == 0 {
		s.ofPod4(&l)
	} else {
		s.ofPod6(&l)
	}
	return l
}

// tunnel returns an IP header that precedes another one.
func (s *frameSite) tunnel(from netip.Addr, protocol uint8) testpkt.Layer {
	if s.family == 0 {
		return testpkt.IPv4{Source: from, Destination: s.victim.addr[0], Protocol: protocol}
	}
	return testpkt.IPv6{Source: from, Destination: s.victim.addr[1], Protocol: protocol}
}

// tagged adds frames with VLAN tags.
func (s *frameSite) tagged(l *frameList, eth testpkt.Ethernet, from netip.Addr, counted string) {
	for name, tags := range map[string][]testpkt.Layer{
		"a tag": {testpkt.VLAN{ID: 7}}, "a tag of the pods' bridge": {testpkt.VLAN{ID: 110}},
		"a service tag": {testpkt.VLAN{ID: 7, TPID: 0x88a8}}, "two tags": {testpkt.VLAN{ID: 7, TPID: 0x88a8}, testpkt.VLAN{ID: 8}},
	} {
		l.add(name, counted, append(append([]testpkt.Layer{eth}, tags...), s.ip(from), s.udp())...)
	}
}

// ofPod4 adds ARP and DHCP frames.
func (s *frameSite) ofPod4(l *frameList) {
	const spoofed = "spoofed"
	own, other, victim, gateway := s.evil.addr[0], s.other.addr[0], s.victim.addr[0], s.inPods(1, 1, 0)
	eth := s.bridged()
	eth.Type = 0x0806
	for name, a := range map[string]struct {
		operation      byte
		mac            [6]byte
		sender, target netip.Addr
	}{
		"ARP: reply of another pod": {2, s.evilMAC, other, victim}, "ARP: reply of the gateway": {2, s.evilMAC, gateway, victim},
		"ARP: request of another pod": {1, s.evilMAC, other, victim}, "ARP: announcement of the gateway": {1, s.evilMAC, gateway, gateway},
		"ARP: probe for another pod's": {1, s.evilMAC, netip.IPv4Unspecified(), other}, "ARP: another MAC": {2, s.victimMAC, own, victim}, "RARP": {3, s.evilMAC, own, own},
	} {
		l.add(name, spoofed, eth, joined([]byte{0, 1, 8, 0, 6, 4, 0, a.operation}, a.mac[:], a.sender.AsSlice(), s.victimMAC[:], a.target.AsSlice()))
	}
	eth.Type = 0
	dhcp := testpkt.UDP{Source: 67, Destination: 68}
	l.add("DHCP answer", spoofed, eth, s.ip(own), dhcp)
	l.add("DHCP answer with options", spoofed, eth, s.options(own), dhcp)
	l.add("DHCP answer in fragments", spoofed, eth, s.fragment(own, false, 0), dhcp)
	l.changed("a header of 16 bytes", spoofed, wrongHeader, eth, s.ip(own), s.udp())
}

// ofPod6 adds neighbour discovery and DHCPv6 frames.
func (s *frameSite) ofPod6(l *frameList) {
	const spoofed = "spoofed"
	own, other, victim, gateway := s.evil.addr[1].AsSlice(), s.other.addr[1].AsSlice(), s.victim.addr[1], s.inPods(1, 1, 1).AsSlice()
	ownMAC, otherMAC := linkLayer(2, s.evilMAC), linkLayer(2, s.victimMAC)
	for name, m := range map[string]struct {
		kind byte
		body testpkt.Raw
		ext  []testpkt.Extension
	}{
		"router advertisement":                           {134, joined(make([]byte, 8)), nil},
		"router advertisement behind options":            {134, joined(make([]byte, 8)), []testpkt.Extension{filler}},
		"router advertisement behind hop-by-hop options": {134, joined(make([]byte, 8)), []testpkt.Extension{{Type: testpkt.HopByHop, Data: filler.Data}}},
		"router advertisement in an atomic fragment":     {134, joined(make([]byte, 8)), []testpkt.Extension{testpkt.FragmentHeader(7, 0, false)}},
		"router advertisement in fragments":              {134, joined(make([]byte, 8)), []testpkt.Extension{testpkt.FragmentHeader(7, 0, true)}},
		"redirect":                                       {137, joined(own, victim.AsSlice()), nil},
		"advertisement of another pod":                   {136, joined(other, ownMAC), nil},
		"advertisement of the gateway":                   {136, joined(gateway, ownMAC), nil},
		"advertisement with another MAC":                 {136, joined(own, otherMAC), nil},
		"advertisement of another, behind options":       {136, joined(other, ownMAC), []testpkt.Extension{filler}},
		"solicitation with another MAC":                  {135, joined(victim.AsSlice(), linkLayer(1, s.victimMAC)), nil},
		"solicitation, two MACs":                         {135, joined(victim.AsSlice(), linkLayer(1, s.evilMAC), linkLayer(1, s.victimMAC)), nil},
		"solicitation, an option of no length":           {135, joined(victim.AsSlice(), make([]byte, 8)), nil},
	} {
		ip := s.nd(victim)
		ip.Extensions = m.ext
		l.add("neighbour discovery: "+name, spoofed, s.bridged(), ip, testpkt.ICMP{V6: true, Type: m.kind}, m.body)
	}
	ip := s.nd(victim)
	l.add("DHCPv6 answer", spoofed, s.bridged(), ip, testpkt.UDP{Source: 547, Destination: 546})
	ip.Extensions = []testpkt.Extension{filler}
	l.add("DHCPv6 answer behind options", spoofed, s.bridged(), ip, testpkt.UDP{Source: 547, Destination: 546})
	for range 8 {
		ip.Extensions = append(ip.Extensions, filler)
	}
	l.add("nine extension headers", spoofed, s.bridged(), ip, s.udp())
	ip = s.nd(victim)
	ip.Source = netip.MustParseAddr("fe80::5eff:fe10:129")
	l.add("the link-local address of another", spoofed, s.bridged(), ip, s.udp())
}
