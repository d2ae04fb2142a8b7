// SPDX-License-Identifier: Apache-2.0

package testpkt

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var (
	eth = Ethernet{Source: [6]byte{2, 1, 3, 5, 7, 9}, Destination: [6]byte{2, 4, 6, 8, 10, 12}}
	ip4 = IPv4{Source: netip.MustParseAddr("192.0.2.17"), Destination: netip.MustParseAddr("198.51.100.34"), TTL: 61, ID: 0x1a2b}
	ip6 = IPv6{Source: netip.MustParseAddr("2001:db8::17"), Destination: netip.MustParseAddr("2001:db8:5::34"), HopLimit: 62}
	tcp = TCP{Source: 40961, Destination: 80, Seq: 0x01020304, Ack: 0x05060708, Flags: PSH | ACK, Window: 513}
	udp = UDP{Source: 5353, Destination: 4660}
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBuildKnownBytes compares Build with bytes computed by another program.
func TestBuildKnownBytes(t *testing.T) {
	for name, tt := range map[string]struct {
		layers []Layer
		want   string
	}{
		"tcp4": {[]Layer{eth, ip4, tcp, Payload("odd")}, `020406080a0c02010305070908004500002b1a2b00003d06773bc0000211c6336422a001
			00500102030405060708501802013d9700006f6464`},
		"udp6": {[]Layer{eth, VLAN{ID: 110}, ip6, udp, Payload("hello")}, `020406080a0c0201030507098100006e86dd60000000000d113e20010db8000000000000
			00000000001720010db800050000000000000000003414e91234000d392368656c6c6f`},
		"sctp": {[]Layer{eth, ip4, SCTP{Source: 1234, Destination: 4321, Tag: 0xa1b2c3d4, Chunks: []Chunk{{Type: 14}}}}, `020406080a0c0201030507090800450000241a2b00003d8476c4c0000211c633642204d2
			10e1a1b2c3d4585957340e000004`},
		"icmp6": {[]Layer{eth, ip6, PacketTooBig(1280), Raw(Build(ip6, udp, Payload("hello")))}, `020406080a0c02010305070986dd60000000003d3a3e20010db800000000000000000000
			001720010db800050000000000000000003402002b990000050060000000000d113e2001
			0db800000000000000000000001720010db800050000000000000000003414e91234000d
			392368656c6c6f`},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := Diff(unhex(t, tt.want), Build(tt.layers...)); diff != "" {
				t.Errorf("built another packet:\n%s", diff)
			}
		})
	}
}

// drawLayers draws the layers of a packet of any kind that Build can make.
func drawLayers(t *rapid.T) []Layer {
	layers := []Layer{eth}
	for range rapid.IntRange(0, 2).Draw(t, "tags") {
		layers = append(layers, VLAN{ID: rapid.Uint16().Draw(t, "vlan"), TPID: etherVLAN})
	}
	v6 := rapid.Bool().Draw(t, "v6")
	if v6 {
		ip := ip6
		for range rapid.IntRange(0, 2).Draw(t, "extensions") {
			kind := rapid.SampledFrom([]uint8{HopByHop, Routing, Destination, AuthHeader}).Draw(t, "extension")
			ip.Extensions = append(ip.Extensions, Extension{kind, make([]byte, 6+8*rapid.IntRange(0, 2).Draw(t, "size"))})
		}
		layers = append(layers, ip)
	} else {
		ip := ip4
		ip.Options = bytes.Repeat([]byte{1}, 4*rapid.IntRange(0, 10).Draw(t, "options"))
		layers = append(layers, ip)
	}
	data := Payload(rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "payload"))
	switch rapid.IntRange(0, 4).Draw(t, "transport") {
	case 0:
		l4 := tcp
		l4.Options = bytes.Repeat([]byte{1}, 4*rapid.IntRange(0, 10).Draw(t, "tcp options"))
		return append(layers, l4, data)
	case 1:
		return append(layers, udp, data)
	case 2:
		return append(layers, SCTP{Source: 7, Destination: 9, Tag: 11, Chunks: []Chunk{{Type: 0, Value: []byte(data)}}})
	case 3:
		return append(layers, ICMP{V6: v6, Type: map[bool]uint8{false: EchoRequest, true: V6EchoRequest}[v6], ID: 77, Seq: 3}, data)
	}
	if v6 {
		return append(layers, PacketTooBig(1280), Raw(Build(ip6, tcp, data)))
	}
	return append(layers, FragmentationNeeded(1400), Raw(Build(ip4, tcp, data)[:28]))
}

// TestBuildParseRoundTrip: packets from Build are parsed without errors, and Build makes the same
// packets from the result.
func TestBuildParseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := Build(drawLayers(t)...)
		p := Parse(frame)
		if err := p.Check(); err != nil {
			t.Fatalf("%v\n%s", err, p)
		}
		layers := p.layers()
		if diff := Diff(frame, Build(layers...)); diff != "" && layers != nil {
			t.Fatalf("built again:\n%s", diff)
		}
	})
}

// layers returns the layers from which Build makes the packet.
func (p *Packet) layers() []Layer {
	out := []Layer{*p.Ethernet}
	for _, v := range p.VLANs {
		out = append(out, v)
	}
	if p.IPv4 != nil {
		out = append(out, *p.IPv4)
	}
	if p.IPv6 != nil {
		out = append(out, *p.IPv6)
	}
	switch {
	case p.TCP != nil:
		out = append(out, *p.TCP)
	case p.UDP != nil:
		out = append(out, *p.UDP)
	case p.SCTP != nil:
		out = append(out, *p.SCTP)
	case p.ICMP != nil:
		out = append(out, *p.ICMP)
	}
	if e := p.Embedded; e != nil && e.CutOff {
		return nil // missing bytes cannot be rebuilt
	} else if e != nil {
		inner := *e
		inner.Ethernet = new(Ethernet)
		out = append(out, Raw(Build(inner.layers()...)[14:]))
	}
	return append(out, Payload(p.Payload))
}

// TestCheckFindsEveryBit: any flipped bit that a checksum covers is detected.
func TestCheckFindsEveryBit(t *testing.T) {
	for _, layers := range [][]Layer{
		{eth, ip4, tcp, Payload("odd")},
		{eth, ip6, udp, Payload("even")},
		{eth, ip4, SCTP{Source: 1, Destination: 2, Tag: 3, Chunks: []Chunk{{Type: 1, Value: []byte("abcd")}}}},
		{eth, ip4, ICMP{Type: EchoRequest, ID: 9, Seq: 4}, Payload("ping")},
		{eth, ip6, ICMP{V6: true, Type: V6EchoRequest, ID: 9, Seq: 4}, Payload("ping")},
	} {
		frame := Build(layers...)
		start := 14
		if _, v6 := layers[1].(IPv6); v6 {
			start = 14 + 8 // no checksum covers the bytes before this one
		}
		for bit := start * 8; bit < len(frame)*8; bit++ {
			frame[bit/8] ^= 1 << (bit % 8)
			if Check(frame) == nil {
				t.Errorf("%T: bit %d of byte %d turned over, without an error", layers[2], bit%8, bit/8)
			}
			frame[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// TestCheckEmbedded: the part of an embedded packet that is present is checked.
func TestCheckEmbedded(t *testing.T) {
	inner := Build(ip4, udp, Payload("whole"))
	for _, length := range []int{len(inner), 28} {
		bad := bytes.Clone(inner[:length])
		bad[8]++ // the TTL
		if err := Check(Build(eth, ip4, FragmentationNeeded(1280), Raw(bad))); err == nil {
			t.Errorf("a wrong embedded header in %d bytes passed", length)
		}
	}
	inner[len(inner)-1]++
	if Check(Build(eth, ip4, FragmentationNeeded(1280), Raw(inner))) == nil {
		t.Error("a wrong embedded UDP checksum passed")
	}
	p := Parse(Build(eth, ip4, FragmentationNeeded(1280), Raw(inner[:28])))
	if got := p.Embedded.Destination().String(); got != "198.51.100.34:4660" || !p.Embedded.CutOff {
		t.Errorf("embedded destination %s, cut off %t", got, p.Embedded.CutOff)
	}
}

func TestFragmentsPutTogether(t *testing.T) {
	// Room for the longest headers in the first fragment: IPv6, two extensions of 24 bytes, the
	// fragment header, and 60 bytes of TCP, of which all but the last fragment carry multiples of 8.
	const smallest = 40 + 2*24 + 8 + 64
	rapid.Check(t, func(t *rapid.T) {
		frame := Build(drawLayers(t)...)
		mtu := rapid.IntRange(smallest, 400).Draw(t, "mtu")
		var body []byte
		for i, fragment := range Fragments(frame, mtu, 4711) {
			p := Parse(fragment)
			if err := p.Check(); err != nil {
				t.Fatalf("fragment %d: %v", i, err)
			}
			link := 14 + 4*len(p.VLANs)
			if len(fragment)-link > mtu {
				t.Fatalf("fragment %d has %d bytes, more than %d", i, len(fragment)-link, mtu)
			}
			body = append(body, fragment[link+ipHeader(p):]...)
		}
		p := Parse(frame)
		if want := frame[14+4*len(p.VLANs)+ipHeader(p):]; !bytes.Equal(body, want) {
			t.Fatalf("fragments hold %x, want %x", body, want)
		}
	})
}

func ipHeader(p *Packet) int {
	if p.IPv4 != nil {
		return 20 + len(p.IPv4.Options)
	}
	n := 40
	for _, e := range p.IPv6.Extensions {
		n += 2 + len(e.Data)
	}
	return n
}

func TestDiffNamesTheField(t *testing.T) {
	other := tcp
	other.Destination = 8080
	diff := Diff(Build(eth, ip4, tcp), Build(eth, ip4, other))
	for _, want := range []string{"  ipv4 192.0.2.17 > 198.51.100.34", "- tcp 40961 > 80 [PSH ACK]", "+ tcp 40961 > 8080 [PSH ACK]"} {
		if !strings.Contains(diff, want) {
			t.Errorf("no %q in\n%s", want, diff)
		}
	}
	if d := Diff(Build(eth, ip4, tcp), Build(eth, ip4, tcp)); d != "" {
		t.Errorf("equal frames differ:\n%s", d)
	}
}

func TestParsePadding(t *testing.T) {
	frame := append(Build(eth, ip4, udp, Payload("x")), make([]byte, 17)...)
	p := Parse(frame)
	if p.Padding != 17 || string(p.Payload) != "x" || p.Check() != nil {
		t.Errorf("padding %d, payload %q, %v", p.Padding, p.Payload, p.Check())
	}
	if diff := cmp.Diff(&udp, p.UDP); diff != "" {
		t.Error(diff)
	}
}

// FuzzParse: no input makes Parse or Check panic.
func FuzzParse(f *testing.F) {
	f.Add(Build(eth, VLAN{ID: 3}, ip4, tcp, Payload("x")))
	f.Add(Build(eth, ip6, PacketTooBig(1280), Raw(Build(ip6, udp))))
	f.Add(Build(eth, ip4, SCTP{Chunks: []Chunk{{Type: 1}}}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		p := Parse(frame)
		_, _ = p.String(), p.Check()
	})
}
