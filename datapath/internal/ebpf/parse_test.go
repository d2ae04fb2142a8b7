// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// encoding is an unusual encoding of a datagram; layers returns its headers and payload.
type encoding struct {
	name   string
	layers func(eth testpkt.Ethernet, from, to netip.AddrPort) []testpkt.Layer
}

func udpOf(from, to netip.AddrPort) []testpkt.Layer {
	return []testpkt.Layer{testpkt.UDP{Source: from.Port(), Destination: to.Port()}, testpkt.Payload("datagram")}
}

func tagged(tags ...testpkt.Layer) func(testpkt.Ethernet, netip.AddrPort, netip.AddrPort) []testpkt.Layer {
	return func(eth testpkt.Ethernet, from, to netip.AddrPort) []testpkt.Layer {
		layers := append([]testpkt.Layer{eth}, tags...)
		return append(append(layers, ipHeader(from.Addr(), to.Addr(), 61)), udpOf(from, to)...)
	}
}

func options(o ...byte) func(testpkt.Ethernet, netip.AddrPort, netip.AddrPort) []testpkt.Layer {
	return func(eth testpkt.Ethernet, from, to netip.AddrPort) []testpkt.Layer {
		ip := testpkt.IPv4{Source: from.Addr(), Destination: to.Addr(), TTL: 61, Options: o}
		return append([]testpkt.Layer{eth, ip}, udpOf(from, to)...)
	}
}

func extensions(e ...testpkt.Extension) func(testpkt.Ethernet, netip.AddrPort, netip.AddrPort) []testpkt.Layer {
	return func(eth testpkt.Ethernet, from, to netip.AddrPort) []testpkt.Layer {
		ip := testpkt.IPv6{Source: from.Addr(), Destination: to.Addr(), HopLimit: 61, Extensions: e}
		return append([]testpkt.Layer{eth, ip}, udpOf(from, to)...)
	}
}

func hops(kind uint8, size int) testpkt.Extension {
	return testpkt.Extension{Type: kind, Data: append([]byte{1, byte(size - 4)}, make([]byte, size-4)...)}
}

// TestOddEncodings: packets with an unusual encoding match the service like any others.
func TestOddEncodings(t *testing.T) {
	base := newRig(t)
	both := []encoding{
		{"VLAN tag", tagged(testpkt.VLAN{ID: 0x6123})},
		{"two VLAN tags", tagged(testpkt.VLAN{ID: 0x123, TPID: 0x88a8}, testpkt.VLAN{ID: 0x456})},
	}
	odd := map[string][]encoding{
		"IPv4": append(both, encoding{"router alert", options(0x94, 4, 0, 0)},
			encoding{"options of 40 bytes", options(append([]byte{7, 39, 4}, make([]byte, 36)...)...)}),
		"IPv6": append(both, encoding{"hop-by-hop", extensions(hops(testpkt.HopByHop, 8))},
			encoding{"destination options of 64 bytes", extensions(hops(testpkt.Destination, 64))},
			encoding{"three headers", extensions(hops(testpkt.HopByHop, 8), hops(testpkt.Destination, 16),
				testpkt.Extension{Type: testpkt.Routing, Data: []byte{4, 0, 0, 0, 0, 0}})},
			encoding{"atomic fragment", extensions(testpkt.FragmentHeader(0x51525354, 0, false))}),
	}
	for _, f := range families {
		for _, e := range odd[f.name] {
			t.Run(f.name+"/"+e.name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, testpkt.ProtoUDP, natModes[0])
				in := testpkt.Build(e.layers(r.in.arrives(), p.client, p.vip)...)
				want := testpkt.Build(e.layers(r.in.arrives(), p.source, p.backend)...)
				r.step("datagram", r.in, in, actUnspec, want)
				r.counted(map[string]uint64{"VERDICT_SLOW": 1})
			})
		}
	}
}

// TestTCPHeaderLengths: it sends packets with TCP headers of any length, and with padding.
func TestTCPHeaderLengths(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoTCP, natModes[3])
		for size := 0; size <= 40; size += 4 {
			build := func(from, to netip.AddrPort, ttl uint8, padding string) []byte {
				tcp := testpkt.TCP{Source: from.Port(), Destination: to.Port(), Seq: 1, Flags: testpkt.SYN,
					Options: bytes.Repeat([]byte{1}, size)}
				return append(testpkt.Build(r.in.arrives(), ipHeader(from.Addr(), to.Addr(), ttl), tcp), padding...)
			}
			action, ttl := p.outcome(61)
			left := "padding" // the programs send packets without padding, as a router does
			if action == actRedirect {
				left = ""
			}
			r.step(f.name, r.in, build(p.client, p.vip, 61, "padding"), action, build(p.source, p.backend, ttl, left))
		}
	}
}

// TestUDPWithoutChecksum: IPv4 allows packets without a checksum, which must be forwarded without
// one; a computed checksum of 0 is sent as 0xffff.
func TestUDPWithoutChecksum(t *testing.T) {
	r := newRig(t)
	p := r.connect(families[0], testpkt.ProtoUDP, natModes[0])
	build := func(from, to netip.AddrPort) []byte {
		return testpkt.Build(r.in.arrives(), ipHeader(from.Addr(), to.Addr(), 61),
			testpkt.UDP{Source: from.Port(), Destination: to.Port(), NoChecksum: true}, testpkt.Payload("bare"))
	}
	r.step("bare", r.in, build(p.client, p.vip), actUnspec, build(p.source, p.backend))

	for _, f := range families {
		r := newRig(t)
		p := r.connect(f, testpkt.ProtoUDP, natModes[0])
		// The last word of the payload makes the sum zero after translation.
		build := func(from, to netip.AddrPort, word []byte) []byte {
			return testpkt.Build(r.in.arrives(), ipHeader(from.Addr(), to.Addr(), 61),
				testpkt.UDP{Source: from.Port(), Destination: to.Port()}, testpkt.Raw(word))
		}
		at := len(build(p.source, p.backend, nil)) - 2
		word := bytes.Clone(build(p.source, p.backend, []byte{0, 0})[at : at+2])
		want := build(p.source, p.backend, word)
		if !bytes.Equal(want[at:at+2], []byte{0xff, 0xff}) {
			t.Fatalf("%s: the checksum is %x, not the one this test is about", f.name, want[at:at+2])
		}
		r.step(f.name+" zero", r.in, build(p.client, p.vip, word), actUnspec, want)
	}
}

// TestNotOurs: packets that cannot be parsed, or that match nothing here, go to the
// kernel unchanged, and create no entry.
func TestNotOurs(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.connect(f, testpkt.ProtoTCP, natModes[0])
			for name, frame := range strangers(r, f, p) {
				r.step(name, r.in, frame, actUnspec, frame)
				if n := r.count(kernel.MapLlFragment); n != 0 {
					t.Errorf("%s: %d fragments", name, n)
				}
			}
			r.counted(map[string]uint64{})
			if n, fragments := r.entries(), r.count(kernel.MapLlFragment); n+fragments != 0 {
				t.Errorf("%d connections and %d fragments have entries", n, fragments)
			}
		})
	}
}

// strangers returns frames that no service may change. The service of p exists.
func strangers(r *rig, f family, p path) map[string][]byte {
	good := packet(r.in.arrives(), p.proto, p.client, p.vip, stageOpen, 61)
	l3 := 14
	l4 := l3 + 20
	edit := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(good)) }
	set := func(at int, values ...byte) []byte {
		return edit(func(b []byte) []byte { copy(b[at:], values); return b })
	}
	all := map[string][]byte{
		"another station's":      set(0, 2, 0, 0x5e, 0x10, 9, 9),
		"EtherType of ARP":       set(12, 8, 6),
		"EtherType of the other": set(12, map[string]byte{"IPv4": 0x86, "IPv6": 8}[f.name], map[string]byte{"IPv4": 0xdd}[f.name]),
		"IP version 5":           set(l3, 0x55),
		"cut in the VLAN tag":    edit(func(b []byte) []byte { copy(b[12:], []byte{0x81, 0}); return b[:16] }),
		"three VLAN tags": testpkt.Build(r.in.arrives(), testpkt.VLAN{ID: 1}, testpkt.VLAN{ID: 2}, testpkt.VLAN{ID: 3},
			ipHeader(p.client.Addr(), p.vip.Addr(), 61), testpkt.TCP{Source: 1, Destination: p.vip.Port(), Flags: testpkt.SYN}),
	}
	if f.name == "IPv4" {
		all["IP header of 16 bytes"] = set(l3, 0x44)
		all["cut in the TCP header"] = good[:l4+19]
		all["options beyond the end"] = edit(func(b []byte) []byte { b[l3] = 0x4f; return b[:l4+20] })
		all["tiny first fragment"] = testpkt.Build(r.in.arrives(), testpkt.IPv4{Source: p.client.Addr(),
			Destination: p.vip.Addr(), MoreFragments: true, Protocol: p.proto}, testpkt.Raw(good[l4:l4+8]))
		all["fragment without a first"] = testpkt.Build(r.in.arrives(), testpkt.IPv4{Source: p.client.Addr(),
			Destination: p.vip.Addr(), Offset: 64, Protocol: p.proto}, testpkt.Raw(good[l4:]))
		return all
	}
	extended := func(protocol uint8, body []byte, e ...testpkt.Extension) []byte {
		ip := testpkt.IPv6{Source: p.client.Addr(), Destination: p.vip.Addr(), Extensions: e, Protocol: protocol}
		return testpkt.Build(r.in.arrives(), ip, testpkt.Raw(body))
	}
	l4 = l3 + 40
	var nine []testpkt.Extension
	for range 9 {
		nine = append(nine, hops(testpkt.Destination, 8))
	}
	all["cut in the TCP header"] = good[:l4+19]
	all["nine extension headers"] = extended(p.proto, good[l4:], nine...)
	all["TCP behind 600 bytes"] = extended(p.proto, good[l4:], hops(testpkt.Destination, 600))
	all["extension beyond the end"] = extended(p.proto, nil, hops(testpkt.Destination, 8))[:l4+4]
	all["tiny first fragment"] = extended(p.proto, good[l4:l4+8], testpkt.FragmentHeader(7, 0, true))
	all["fragment without a first"] = extended(p.proto, good[l4:], testpkt.FragmentHeader(7, 64, false))
	all["authentication header"] = extended(p.proto, good[l4:], testpkt.Extension{Type: testpkt.AuthHeader, Data: make([]byte, 22)})
	all["no next header"] = extended(59, good[l4:])
	return all
}

// TestSCTPWithoutChecksum: a packet of the node itself has no checksum until its output device
// fills it in. The field must stay zero, since the device includes it in the sum.
func TestSCTPWithoutChecksum(t *testing.T) {
	for _, f := range families {
		r := newRig(t)
		p := r.connect(f, testpkt.ProtoSCTP, natModes[0])
		build := func(from, to netip.AddrPort) []byte {
			frame := testpkt.Build(r.in.arrives(), ipHeader(from.Addr(), to.Addr(), 61),
				testpkt.SCTP{Source: from.Port(), Destination: to.Port(), Tag: 0x01020304, Chunks: []testpkt.Chunk{{Type: 0, Flags: 3, Value: []byte("unsigned")}}})
			at := len(frame) - (4 + len("unsigned")) - 4
			copy(frame[at:], []byte{0, 0, 0, 0})
			return frame
		}
		r.step(f.name, r.in, build(p.client, p.vip), actUnspec, build(p.source, p.backend))
	}
}
