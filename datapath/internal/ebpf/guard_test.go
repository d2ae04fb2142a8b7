// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// The addresses of a pod behind in0, and of other hosts.
var (
	podMAC    = rigMAC("02:00:5e:10:01:17")
	otherMAC  = rigMAC("02:00:5e:10:01:29")
	groupMAC  = rigMAC("33:33:ff:00:00:17")
	pod4      = netip.MustParseAddr("192.0.2.17")
	pod6      = netip.MustParseAddr("2001:db8:1::17")
	podLocal  = netip.MustParseAddr("fe80::5eff:fe10:117")
	other4    = netip.MustParseAddr("192.0.2.29")
	other6    = netip.MustParseAddr("2001:db8:1::29")
	far4      = netip.MustParseAddr("10.0.1.52")
	far6      = netip.MustParseAddr("2001:db8:2::52")
	zero4     = netip.IPv4Unspecified()
	zero6     = netip.IPv6Unspecified()
	routers   = netip.MustParseAddr("ff02::2")
	listeners = netip.MustParseAddr("ff02::16")
	solicited = netip.MustParseAddr("ff02::1:ff00:17")
)

const etherARP = 0x0806

// guard puts a guard on in0, as written by guard.Table: closed or, if open, by its method Open.
func (r *rig) guard(open bool) {
	r.t.Helper()
	low := r.in.index & 0xffff
	r.put(kernel.MapLlGuarded, low>>6, uint64(1)<<(low&63))
	put := func(a netip.Addr, flags uint16) {
		key := kernel.GuardKey{Ifindex: r.in.index}
		if a.IsValid() {
			key.Addr.Word = rigWords(a.String())
		}
		r.put(kernel.MapLlGuard, key, kernel.Guard{Mac: podMAC, Flags: flags})
	}
	if !open {
		r.put(kernel.MapLlGuard, kernel.GuardKey{Ifindex: r.in.index}, kernel.Guard{})
		return
	}
	put(netip.Addr{}, kernel.GuardOpen)
	put(pod4, 0)
	put(pod6, 0)
	put(podLocal, 0)
}

func arp(op uint16, mac [6]byte, sender, target netip.Addr) []testpkt.Layer {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, mac[:]...), sender.AsSlice()...)
	b = append(append(b, make([]byte, 6)...), target.AsSlice()...)
	return []testpkt.Layer{testpkt.Ethernet{Source: podMAC, Destination: otherMAC, Type: etherARP}, testpkt.Raw(b)}
}

func sends(layers ...testpkt.Layer) []testpkt.Layer {
	return append([]testpkt.Layer{testpkt.Ethernet{Source: podMAC, Destination: rigMAC("02:00:5e:10:01:01")}}, layers...)
}

func ip4(from netip.Addr) testpkt.IPv4 { return testpkt.IPv4{Source: from, Destination: far4} }
func ip6(from netip.Addr, ext ...testpkt.Extension) testpkt.IPv6 {
	return testpkt.IPv6{Source: from, Destination: far6, Extensions: ext}
}

func udp(to uint16) testpkt.UDP { return testpkt.UDP{Source: 1053, Destination: to} }

// nd builds a neighbour discovery message; body follows the first eight bytes.
func nd(typ uint8, from, to netip.Addr, body ...[]byte) []testpkt.Layer {
	return ndBehind(nil, typ, from, to, body...)
}

func ndBehind(ext []testpkt.Extension, typ uint8, from, to netip.Addr, body ...[]byte) []testpkt.Layer {
	var all testpkt.Raw
	for _, b := range body {
		all = append(all, b...)
	}
	return sends(testpkt.IPv6{Source: from, Destination: to, HopLimit: 255, Extensions: ext},
		testpkt.ICMP{V6: true, Type: typ}, all)
}

// linkOption returns a source or target link-layer address option.
func linkOption(typ byte, mac [6]byte) []byte { return append([]byte{typ, 1}, mac[:]...) }

// guardCase is a frame from the pod's device.
type guardCase struct {
	what    string
	spoofed bool
	frame   []testpkt.Layer
}

// padding is an option that fills an extension header.
var padding = testpkt.Extension{Type: testpkt.Destination, Data: []byte{1, 4, 0, 0, 0, 0}}

func guardCases() []guardCase {
	other := func(layers ...testpkt.Layer) []testpkt.Layer {
		f := sends(layers...)
		f[0] = testpkt.Ethernet{Source: otherMAC, Destination: rigMAC("02:00:5e:10:01:01")}
		return f
	}
	ether := func(typ uint16, body string) []testpkt.Layer {
		return []testpkt.Layer{testpkt.Ethernet{Source: podMAC, Destination: groupMAC, Type: typ}, testpkt.Raw(body)}
	}
	first := func(e ...testpkt.Extension) []testpkt.Extension { return append(e, testpkt.FragmentHeader(7, 0, true)) }
	var long []testpkt.Extension
	for range 9 {
		long = append(long, padding)
	}
	mld := func(typ uint8, from netip.Addr, hops uint8) []testpkt.Layer {
		alert := testpkt.Extension{Type: testpkt.HopByHop, Data: []byte{5, 2, 0, 0, 1, 0}}
		return sends(testpkt.IPv6{Source: from, Destination: listeners, HopLimit: hops, Extensions: []testpkt.Extension{alert}},
			testpkt.ICMP{V6: true, Type: typ, Seq: 1}, testpkt.Raw(make([]byte, 20)))
	}
	return []guardCase{
		{"its IPv4", false, sends(ip4(pod4), udp(53))},
		{"its IPv6", false, sends(ip6(pod6), udp(53))},
		{"its link-local", false, sends(ip6(podLocal), udp(53))},
		{"a TCP SYN", false, sends(ip4(pod4), testpkt.TCP{Source: 4660, Destination: 80, Flags: testpkt.SYN})},
		{"GRE with whatever inside", false, sends(testpkt.IPv4{Source: pod4, Destination: far4, Protocol: 47}, testpkt.Raw("\x00\x00\x08\x00E"))},
		{"IPv6 in its IPv4", false, sends(testpkt.IPv4{Source: pod4, Destination: far4, Protocol: 41}, ip6(other6), udp(53))},
		{"another's IPv4", true, sends(ip4(other4), udp(53))},
		{"another's IPv6", true, sends(ip6(other6), udp(53))},
		{"another's link-local", true, sends(ip6(netip.MustParseAddr("fe80::5eff:fe10:129")), udp(53))},
		{"an IPv4 address in IPv6 clothes", true, sends(ip6(netip.AddrFrom16(pod4.As16())), udp(53))},
		{"no IPv4 address", true, sends(ip4(zero4), udp(67))},
		{"no IPv6 address", true, sends(ip6(zero6), udp(53))},
		{"the loopback", true, sends(ip4(netip.MustParseAddr("127.0.0.1")), udp(53))},
		{"a group's address", true, sends(ip4(netip.MustParseAddr("224.0.0.5")), udp(53))},
		{"GRE of another", true, sends(testpkt.IPv4{Source: other4, Destination: far4, Protocol: 47}, testpkt.Raw("\x00\x00\x08\x00E"))},
		{"another's MAC, IPv4", true, other(ip4(pod4), udp(53))},
		{"another's MAC, IPv6", true, other(ip6(pod6), udp(53))},
		{"another's MAC, no IP", true, []testpkt.Layer{testpkt.Ethernet{Source: otherMAC, Destination: groupMAC, Type: 0x88cc}, testpkt.Raw("x")}},
		{"IPv4 options", false, sends(testpkt.IPv4{Source: pod4, Destination: far4, Options: []byte{148, 4, 0, 0}}, udp(53))},
		{"another's with IPv4 options", true, sends(testpkt.IPv4{Source: other4, Destination: far4, Options: []byte{148, 4, 0, 0}}, udp(53))},
		{"first fragment", false, sends(testpkt.IPv4{Source: pod4, Destination: far4, ID: 7, MoreFragments: true}, udp(53), testpkt.Payload("12345678"))},
		{"later fragment", false, sends(testpkt.IPv4{Source: pod4, Destination: far4, ID: 7, Offset: 16, Protocol: 17}, testpkt.Payload("12345678"))},
		{"another's later fragment", true, sends(testpkt.IPv4{Source: other4, Destination: far4, ID: 7, Offset: 16, Protocol: 17}, testpkt.Payload("12345678"))},
		{"later fragment, IPv6", false, sends(ip6(pod6, testpkt.FragmentHeader(7, 16, false)), udp(dhcp6Client), testpkt.Payload("12345678"))},
		{"another's later fragment, IPv6", true, sends(ip6(other6, testpkt.FragmentHeader(7, 16, false)), udp(53), testpkt.Payload("12345678"))},
		{"no address, later fragment", true, sends(ip6(zero6, testpkt.FragmentHeader(7, 16, false)), udp(53), testpkt.Payload("12345678"))},
		{"behind extension headers", false, sends(ip6(pod6, padding, padding), udp(53))},
		{"behind too many", true, sends(ip6(pod6, long...), udp(53))},
		{"headers cut off", true, sends(testpkt.IPv6{Source: pod6, Destination: far6, Protocol: testpkt.Destination}, testpkt.Raw("\x3a"))},

		{"DHCP request", false, sends(ip4(pod4), testpkt.UDP{Source: 68, Destination: 67})},
		{"DHCP answer", true, sends(ip4(pod4), testpkt.UDP{Source: 67, Destination: 68})},
		{"DHCP answer in fragments", true, sends(testpkt.IPv4{Source: pod4, Destination: far4, ID: 7, MoreFragments: true}, testpkt.UDP{Source: 67, Destination: 68}, testpkt.Payload("12345678"))},
		{"DHCP answer behind options", true, sends(testpkt.IPv4{Source: pod4, Destination: far4, Options: make([]byte, 40)}, testpkt.UDP{Source: 67, Destination: 68})},
		{"DHCPv6 request", false, sends(ip6(podLocal), testpkt.UDP{Source: 546, Destination: 547})},
		{"DHCPv6 answer", true, sends(ip6(podLocal), testpkt.UDP{Source: 547, Destination: dhcp6Client})},
		{"DHCPv6 answer behind headers", true, sends(ip6(podLocal, padding), testpkt.UDP{Source: 547, Destination: dhcp6Client})},

		{"ARP request", false, arp(1, podMAC, pod4, other4)},
		{"ARP reply", false, arp(2, podMAC, pod4, other4)},
		{"ARP announcement", false, arp(1, podMAC, pod4, pod4)},
		{"ARP probe", false, arp(1, podMAC, zero4, pod4)},
		{"ARP probe for another's", true, arp(1, podMAC, zero4, other4)},
		{"ARP reply of the unspecified address", true, arp(2, podMAC, zero4, pod4)},
		{"ARP reply of another", true, arp(2, podMAC, other4, far4)},
		{"ARP request of another", true, arp(1, podMAC, other4, far4)},
		{"ARP announcement of another", true, arp(1, podMAC, other4, other4)},
		{"ARP with another's MAC", true, arp(2, otherMAC, pod4, far4)},
		{"RARP", true, arp(3, podMAC, pod4, pod4)},
		{"ARP cut off", true, ether(etherARP, "\x00\x01\x08\x00\x06\x04\x00\x01")},
		{"a VLAN tag", true, []testpkt.Layer{testpkt.Ethernet{Source: podMAC, Destination: groupMAC}, testpkt.VLAN{ID: 7}, ip4(pod4), udp(53)}},
		{"a service tag", true, []testpkt.Layer{testpkt.Ethernet{Source: podMAC, Destination: groupMAC}, testpkt.VLAN{ID: 7, TPID: 0x88a8}, ip4(pod4), udp(53)}},
		{"LLDP", true, ether(0x88cc, "\x02\x07")},
		{"spanning tree", true, ether(39, "\x42\x42\x03\x00\x00")},

		{"solicitation", false, nd(135, pod6, solicited, other6.AsSlice(), linkOption(1, podMAC))},
		{"solicitation, from its link-local", false, nd(135, podLocal, solicited, other6.AsSlice(), linkOption(1, podMAC))},
		{"solicitation, with another's MAC", true, nd(135, pod6, solicited, other6.AsSlice(), linkOption(1, otherMAC))},
		{"solicitation, another's MAC behind its own", true, nd(135, pod6, solicited, other6.AsSlice(), linkOption(1, podMAC), linkOption(1, otherMAC))},
		{"solicitation, with a nonce", false, nd(135, pod6, solicited, other6.AsSlice(), []byte{14, 1, 1, 2, 3, 4, 5, 6}, linkOption(1, podMAC))},
		{"solicitation, an option of no length", true, nd(135, pod6, solicited, other6.AsSlice(), []byte{14, 0, 1, 2, 3, 4, 5, 6})},
		{"is it taken", false, nd(135, zero6, solicited, pod6.AsSlice())},
		{"is it taken, with a nonce", false, nd(135, zero6, solicited, pod6.AsSlice(), []byte{14, 1, 1, 2, 3, 4, 5, 6})},
		{"is another's taken", true, nd(135, zero6, netip.MustParseAddr("ff02::1:ff00:29"), other6.AsSlice())},
		{"duplicate detection, to the owner", true, nd(135, zero6, pod6, pod6.AsSlice())},
		{"is it taken, with a MAC", true, nd(135, zero6, solicited, pod6.AsSlice(), linkOption(1, podMAC))},
		{"is it taken, from afar", true, sends(testpkt.IPv6{Source: zero6, Destination: solicited, HopLimit: 64}, testpkt.ICMP{V6: true, Type: 135}, testpkt.Raw(pod6.AsSlice()))},
		{"I have", false, nd(136, pod6, other6, pod6.AsSlice(), linkOption(2, podMAC))},
		{"I have its link-local", false, nd(136, podLocal, other6, podLocal.AsSlice(), linkOption(2, podMAC))},
		{"I have another's", true, nd(136, pod6, other6, other6.AsSlice(), linkOption(2, podMAC))},
		{"I have, another's MAC", true, nd(136, pod6, other6, pod6.AsSlice(), linkOption(2, otherMAC))},
		{"I have nothing", true, nd(136, pod6, other6, zero6.AsSlice(), linkOption(2, podMAC))},
		{"I have, of another", true, nd(136, other6, other6, pod6.AsSlice(), linkOption(2, podMAC))},
		{"I have, from the unspecified address", true, nd(136, zero6, routers, pod6.AsSlice())},
		{"I have another's, behind a header", true, ndBehind([]testpkt.Extension{padding}, 136, pod6, other6, other6.AsSlice())},
		{"I have, in fragments", true, ndBehind(first(), 136, pod6, other6, pod6.AsSlice())},
		{"I have another's, in fragments behind a header", true, ndBehind(first(padding), 136, pod6, other6, other6.AsSlice())},
		{"routers, please", false, nd(133, podLocal, routers, linkOption(1, podMAC))},
		{"routers, please, another's MAC", true, nd(133, podLocal, routers, linkOption(1, otherMAC))},
		{"routers, please, from the unspecified address", true, nd(133, zero6, routers)},
		{"I am the router", true, nd(134, podLocal, routers, make([]byte, 8))},
		{"I am the router, behind a header", true, ndBehind([]testpkt.Extension{padding}, 134, podLocal, routers, make([]byte, 8))},
		{"I am the router, in fragments", true, ndBehind(first(), 134, podLocal, routers, make([]byte, 8))},
		{"I am the router, atomic fragment", true, ndBehind([]testpkt.Extension{testpkt.FragmentHeader(7, 0, false)}, 134, podLocal, routers, make([]byte, 8))},
		{"go elsewhere", true, nd(137, podLocal, other6, other6.AsSlice(), far6.AsSlice())},
		{"echo", false, sends(ip6(pod6), testpkt.ICMP{V6: true, Type: 128, ID: 7})},
		{"echo of the unspecified address", true, sends(ip6(zero6), testpkt.ICMP{V6: true, Type: 128, ID: 7})},
		{"I listen", false, mld(143, podLocal, 1)},
		{"I listen, no address yet", false, mld(143, zero6, 1)},
		{"I listen, no address and from afar", true, mld(143, zero6, 64)},
	}
}

// dhcp6Client is the port of DHCPv6 clients.
const dhcp6Client = 546

// TestGuard: frames from a pod's device pass only with the pod's addresses, whatever their type.
// Frames from other devices pass, and so do all frames without a guard.
func TestGuard(t *testing.T) {
	loaded := newRig(t)
	for _, c := range guardCases() {
		t.Run(c.what, func(t *testing.T) {
			r := loaded.fresh(t)
			frame := testpkt.Build(c.frame...)
			r.put(kernel.MapLlGuarded, (r.in.index&0xffff)>>6, uint64(0))
			open := int32(actUnspec)
			if c.what == "the loopback" {
				open = actShot // this source is invalid on any device
			}
			if got, _ := r.run(r.ingress, r.in, frame); got != open {
				t.Fatalf("without a guard: action %d, want %d", got, open)
			}
			r = loaded.fresh(t)
			r.guard(true)
			want, counted := int32(actUnspec), uint64(0)
			if c.spoofed {
				want, counted = actShot, 1
			}
			got, _ := r.run(r.ingress, r.in, frame)
			if n := r.counters()["DROP_SPOOFED"]; got != want || n != counted {
				t.Errorf("action %d, %d counted as spoofed; want %d and %d", got, n, want, counted)
			}
			if got, _ := r.run(r.ingress, r.out, frame); got == actShot {
				t.Error("dropped at a device without a guard")
			}
			r.guard(false) // closed
			if got, _ := r.run(r.ingress, r.in, frame); got != actShot {
				t.Errorf("action %d while the guard is closed", got)
			}
		})
	}
}

// TestLinkLocal compares LinkLocal with an address that was computed by hand.
func TestLinkLocal(t *testing.T) {
	if got := datapath.LinkLocal(podMAC); got != podLocal {
		t.Errorf("got %s, want %s", got, podLocal)
	}
}
