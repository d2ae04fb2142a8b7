// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// packet is a packet of a conversation, before its bytes are built.
type packet struct {
	port int
	eth  testpkt.Ethernet
	tags []testpkt.Layer
	ip   testpkt.Layer
	rest []testpkt.Layer
	what string
}

func (p packet) bytes() []byte {
	layers := append([]testpkt.Layer{p.eth}, p.tags...)
	layers = append(layers, p.ip)
	return testpkt.Build(append(layers, p.rest...)...)
}

func (p packet) shot(k *talk) shot {
	return shot{port: p.port, frame: p.bytes(), flow: k.String(), what: p.what}
}

// odd returns the packet with something wrong, rare or hostile about it.
func (p packet) odd(r *router, k *talk) []shot {
	rng := r.rng
	pick := []func(packet, *rand.Rand) packet{
		packet.shortLived, packet.otherFlags, packet.strangeAddress, packet.options, packet.otherEthernet, packet.tagged, packet.icmp,
	}
	switch rng.IntN(4) {
	case 0:
		return p.fragments(r, k)
	case 1:
		q := p.shot(k)
		q.frame, q.what = damage(rng, q.frame)
		return []shot{q}
	default:
		p = pick[rng.IntN(len(pick))](p, rng)
		return []shot{p.shot(k)}
	}
}

// shortLived returns the packet with a TTL that expires here or soon.
func (p packet) shortLived(rng *rand.Rand) packet {
	ttl := uint8(1 + rng.IntN(3))
	switch ip := p.ip.(type) {
	case testpkt.IPv4:
		ip.TTL = ttl
		p.ip = ip
	case testpkt.IPv6:
		ip.HopLimit = ttl
		p.ip = ip
	}
	p.what = fmt.Sprintf("TTL %d", ttl)
	return p
}

// otherFlags returns the packet with random TCP flags; other protocols are unchanged.
func (p packet) otherFlags(rng *rand.Rand) packet {
	if h, ok := p.rest[0].(testpkt.TCP); ok {
		h.Flags = uint8(rng.Uint32())
		p.rest = append([]testpkt.Layer{h}, p.rest[1:]...)
		p.what = fmt.Sprintf("TCP flags %#x", h.Flags)
	}
	return p
}

var strange4 = []string{
	"127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "239.1.2.3", "240.0.0.1", "169.254.1.1", "198.18.99.1", "198.18.98.1",
	"192.0.2.63", "192.0.2.64", "192.0.2.1", "192.0.2.65", "192.0.2.129", "192.0.2.40", "203.0.113.9",
}

var strange6 = []string{
	"::1", "::", "ff02::1", "ff05::2", "ff0e::1234", "fe80::1", "fe80::1234:5678", "::ffff:192.0.2.2", "2001:db8:9900::1",
	"2001:db8:0:1::", "2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db8:ffff::1", "fc00::1",
}

// strangeAddress returns the packet with a source or destination that a router treats specially.
func (p packet) strangeAddress(rng *rand.Rand) packet {
	source := rng.IntN(2) == 0
	p.what = "strange destination"
	if source {
		p.what = "strange source"
	}
	switch ip := p.ip.(type) {
	case testpkt.IPv4:
		a := netip.MustParseAddr(strange4[rng.IntN(len(strange4))])
		if source {
			ip.Source = a
		} else {
			ip.Destination = a
		}
		p.ip = ip
	case testpkt.IPv6:
		a := netip.MustParseAddr(strange6[rng.IntN(len(strange6))])
		if source {
			ip.Source = a
		} else {
			ip.Destination = a
		}
		p.ip = ip
	}
	return p
}

// options returns the packet with IP options, or extension headers.
func (p packet) options(rng *rand.Rand) packet {
	switch ip := p.ip.(type) {
	case testpkt.IPv4:
		target := host(rng.IntN(portCount), 1+rng.IntN(3), false).As4()
		route := append([]byte{0, 7, 4}, target[:]...)
		all := map[string][]byte{
			"NOPs": {1, 1, 1, 1}, "router alert": {0x94, 4, 0, 0}, "record route": {7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0},
			"timestamp, full": {68, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "bad length": {7, 60, 4, 0}, "unknown": {0x99, 4, 1, 2},
			"loose source route": append([]byte{0x83}, route[1:]...), "strict source route": append([]byte{0x89}, route[1:]...),
		}
		name := anyKey(rng, all)
		ip.Options, p.what = all[name], "option "+name
		p.ip = ip
	case testpkt.IPv6:
		hbh := testpkt.Extension{Type: testpkt.HopByHop, Data: []byte{1, 4, 0, 0, 0, 0}}
		all := map[string][]testpkt.Extension{
			"hop-by-hop": {hbh}, "router alert": {{Type: testpkt.HopByHop, Data: []byte{5, 2, 0, 0, 1, 0}}},
			"unknown option, report": {{Type: testpkt.HopByHop, Data: []byte{0x9e, 4, 0, 0, 0, 0}}},
			"destination":            {{Type: testpkt.Destination, Data: []byte{1, 4, 0, 0, 0, 0}}},
			"routing":                {{Type: testpkt.Routing, Data: make([]byte, 6)}},
			"segments left":          {{Type: testpkt.Routing, Data: append([]byte{0, 1}, make([]byte, 20)...)}},
			"atomic fragment":        {testpkt.FragmentHeader(rng.Uint32(), 0, false)},
			"chain":                  {hbh, {Type: testpkt.Destination, Data: []byte{1, 4, 0, 0, 0, 0}}, {Type: testpkt.Destination, Data: make([]byte, 14)}},
		}
		name := anyKey(rng, all)
		ip.Extensions, p.what = all[name], "extension "+name
		p.ip = ip
	}
	return p
}

// anyKey picks a key, the same one for the same seed.
func anyKey[V any](rng *rand.Rand, m map[string]V) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys[rng.IntN(len(keys))]
}

// otherEthernet returns the packet as addressed to another host or to all, or from an unknown host.
func (p packet) otherEthernet(rng *rand.Rand) packet {
	switch rng.IntN(5) {
	case 0:
		p.eth.Destination, p.what = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "Ethernet broadcast"
	case 1:
		p.eth.Destination, p.what = [6]byte{1, 0, 0x5e, 1, 2, 3}, "Ethernet multicast"
	case 2:
		p.eth.Destination, p.what = hostMAC(0, 99), "to another station"
	case 3:
		p.eth.Source, p.what = hostMAC(3, 77), "from another station"
	default:
		p.eth.Destination, p.what = nodeMAC((p.port+1)%portCount), "to another port's address"
	}
	return p
}

// tagged returns the packet with VLAN tags, which the router is not configured for.
func (p packet) tagged(rng *rand.Rand) packet {
	p.what = "VLAN tag"
	id := []uint16{0, 0x2000, 10, 4095}[rng.IntN(4)]
	p.tags = []testpkt.Layer{testpkt.VLAN{ID: id}}
	if rng.IntN(3) == 0 {
		p.what = "two VLAN tags"
		p.tags = []testpkt.Layer{testpkt.VLAN{ID: 100, TPID: 0x88a8}, testpkt.VLAN{ID: id}}
	}
	return p
}

// icmp returns an ICMP message, often an error about the packet, from its destination.
func (p packet) icmp(rng *rand.Rand) packet {
	quoted := p.bytes()[14:]
	quoted = quoted[:min(len(quoted), 28+rng.IntN(100))]
	switch ip := p.ip.(type) {
	case testpkt.IPv4:
		kind := []uint8{3, 3, 3, 4, 5, 11, 12, 13, 17, 40, uint8(rng.Uint32())}[rng.IntN(11)]
		code := uint8(rng.IntN(6))
		p.rest = []testpkt.Layer{testpkt.ICMP{Type: kind, Code: code, Seq: 1300}, testpkt.Raw(quoted)}
		ip.Source, ip.Destination, ip.Protocol = ip.Destination, ip.Source, testpkt.ProtoICMP
		p.what, p.ip = fmt.Sprintf("ICMP %d/%d", kind, code), ip
		return p.from(ip.Source)
	case testpkt.IPv6:
		kind := []uint8{1, 1, 2, 3, 4, 127, 130, 133, 134, 139, uint8(rng.Uint32())}[rng.IntN(11)]
		p.rest = []testpkt.Layer{testpkt.ICMP{V6: true, Type: kind, Code: uint8(rng.IntN(6)), Seq: 1300}, testpkt.Raw(quoted)}
		ip.Source, ip.Destination, ip.Protocol = ip.Destination, ip.Source, testpkt.ProtoICMPv6
		p.what, p.ip = fmt.Sprintf("ICMPv6 %d", kind), ip
		return p.from(ip.Source)
	}
	return p
}

// from returns the packet as it arrives from the network of src.
func (p packet) from(src netip.Addr) packet {
	n, mac := network(src)
	p.port, p.eth.Source, p.eth.Destination = n, mac, nodeMAC(n)
	return p
}

// damage changes bytes, more often of headers than of the payload.
func damage(rng *rand.Rand, frame []byte) ([]byte, string) {
	frame = append([]byte(nil), frame...)
	v6 := frame[12] == 0x86
	switch rng.IntN(8) {
	case 0:
		return frame[:14+rng.IntN(len(frame)-14)], "cut off"
	case 1:
		return append(frame, make([]byte, 1+rng.IntN(40))...), "padding"
	case 2:
		if !v6 {
			binary.BigEndian.PutUint16(frame[16:], uint16(rng.IntN(2*len(frame))))
			return fixHeader(frame), "other total length"
		}
		binary.BigEndian.PutUint16(frame[18:], uint16(rng.IntN(2*len(frame))))
		return frame, "other payload length"
	case 3:
		frame[14] = uint8(rng.Uint32())
		return frame, "other version and header length"
	case 4:
		at := map[bool]int{false: 24, true: 54 + 4}[v6]
		frame[at] ^= 1 << rng.IntN(8)
		return frame, "wrong checksum or length"
	case 5:
		frame[12], frame[13] = uint8(rng.Uint32()), uint8(rng.Uint32())
		return frame, "other EtherType"
	case 6:
		for i := 14; i < len(frame); i++ {
			frame[i] = uint8(rng.Uint32())
		}
		frame[14] = map[bool]byte{false: 0x45, true: 0x60}[v6]
		return frame, "garbage"
	default:
		at := 14 + rng.IntN(min(60, len(frame)-14))
		frame[at] ^= 1 << rng.IntN(8)
		if !v6 {
			frame = fixHeader(frame)
		}
		return frame, fmt.Sprintf("a bit of byte %d", at)
	}
}

// fixHeader corrects the IPv4 header's checksum, if there is a header.
func fixHeader(frame []byte) []byte {
	n := int(frame[14]&15) * 4
	if n < 20 || len(frame) < 14+n {
		return frame
	}
	copy(frame[24:], []byte{0, 0})
	var sum uint32
	for i := 14; i < 14+n; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(frame[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(frame[24:], ^uint16(sum))
	return frame
}

// fragments returns the packet in fragments: in order or not, some of them twice or missing.
func (p packet) fragments(r *router, k *talk) (all []shot) {
	k.frames++
	if ip, ok := p.ip.(testpkt.IPv4); ok {
		ip.DontFragment = false
		p.ip = ip
	}
	pieces := testpkt.Fragments(p.bytes(), 104+8*r.rng.IntN(4), r.rng.Uint32())
	p.what = "fragments"
	if r.rng.IntN(2) == 0 {
		p.what = "fragments, out of order"
		r.rng.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
	}
	for _, piece := range pieces {
		if r.rng.IntN(20) == 0 {
			continue
		}
		all = append(all, shot{port: p.port, frame: piece, flow: k.String(), what: p.what})
		if r.rng.IntN(20) == 0 {
			all = append(all, all[len(all)-1])
		}
	}
	return all
}
