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

// arpFrame builds an ARP packet.
func arpFrame(eth testpkt.Ethernet, op uint16, senderMAC [6]byte, sender netip.Addr, targetMAC [6]byte, target netip.Addr) []byte {
	f := append(append([]byte(nil), eth.Destination[:]...), eth.Source[:]...)
	f = append(f, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4)
	f = binary.BigEndian.AppendUint16(f, op)
	f = append(append(f, senderMAC[:]...), sender.AsSlice()...)
	return append(append(f, targetMAC[:]...), target.AsSlice()...)
}

// neighbourMessage builds a neighbour discovery message about target.
func neighbourMessage(eth testpkt.Ethernet, kind uint8, flags uint32, from, to, target netip.Addr, options ...byte) []byte {
	body := binary.BigEndian.AppendUint32([]byte{kind, 0, 0, 0}, flags)
	body = append(append(body, target.AsSlice()...), options...)
	sum := uint32(len(body)) + 58
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), body} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(body[2:], ^uint16(sum))
	f := append(append([]byte(nil), eth.Destination[:]...), eth.Source[:]...)
	f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(body)), 58, 255)
	return append(append(append(f, from.AsSlice()...), to.AsSlice()...), body...)
}

// announces makes the device with index answer requests for prefix; 0: the node owns prefix, but no
// device answers.
func (r *rig) announces(index uint32, prefix string, flags uint32) {
	r.t.Helper()
	p := netip.MustParsePrefix(prefix)
	r.put(kernel.MapLlAnnounced, kernel.AnnounceKey{PrefixLen: uint32(64 + kernel.Bits128(p)), Ifindex: index, Addr: kernel.AddrOf(p.Addr())}, kernel.Announced{Flags: flags})
}

var nobody [6]byte

// TestAnsweredARP: an ARP request for an announced address is answered, whichever host sent it,
// unless the request is malformed, or the address belongs to the kernel or to another host.
func TestAnsweredARP(t *testing.T) {
	base := newRig(t)
	asker, pool := netip.MustParseAddr("10.0.1.34"), netip.MustParseAddr("10.0.1.70")
	all := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	in, out := base.in, base.out
	to := func(dst [6]byte) testpkt.Ethernet { return testpkt.Ethernet{Source: out.other, Destination: dst} }
	back := testpkt.Ethernet{Source: out.mac, Destination: out.other}
	question := arpFrame(to(all), 1, out.other, asker, nobody, pool)
	for _, tt := range []struct {
		name string
		dev  rigPort
		in   []byte
		want []byte // nil: passed on
	}{
		{"question", out, question, arpFrame(back, 2, out.mac, pool, out.other, asker)},
		{"question to us alone", out, arpFrame(to(out.mac), 1, out.other, asker, nobody, pool), arpFrame(back, 2, out.mac, pool, out.other, asker)},
		{"probe", out, arpFrame(to(all), 1, out.other, netip.IPv4Unspecified(), nobody, pool), arpFrame(back, 2, out.mac, pool, out.other, netip.IPv4Unspecified())},
		{"of whom it is", out, arpFrame(to(all), 1, out.other, pool, nobody, pool), nil},
		{"our own", out, arpFrame(testpkt.Ethernet{Source: out.mac, Destination: all}, 1, out.mac, asker, nobody, pool), nil},
		{"answer", out, arpFrame(to(all), 2, out.other, asker, nobody, pool), nil},
		{"by another device", in, question, nil},
		{"for another address", out, arpFrame(to(all), 1, out.other, asker, nobody, netip.MustParseAddr("10.0.1.80")), nil},
		{"for another host's amid them", out, arpFrame(to(all), 1, out.other, asker, nobody, netip.MustParseAddr("10.0.1.71")), nil},
		{"for one of the kernel's", out, arpFrame(to(all), 1, out.other, asker, nobody, netip.MustParseAddr("10.0.1.72")), nil},
		{"cut off", out, question[:40], nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := base.fresh(t)
			r.announces(r.out.index, "10.0.1.64/28", 0)
			r.announces(r.out.index, "10.0.1.71/32", 1)
			r.put(kernel.MapLlLocal, kernel.LocalKey{Addr: kernel.AddrOf(netip.MustParseAddr("10.0.1.72"))}, uint8(1))
			if tt.want == nil {
				r.step("passes", tt.dev, tt.in, actUnspec, tt.in)
				return
			}
			r.step("is answered", tt.dev, tt.in, actRedirect, tt.want)
			r.counted(map[string]uint64{"VERDICT_ANSWERED": 1})
		})
	}
}

// TestAnsweredND does the same for IPv6.
func TestAnsweredND(t *testing.T) {
	base := newRig(t)
	asker, pool := netip.MustParseAddr("fe80::17"), netip.MustParseAddr("2001:db8:2::46")
	group, allNodes := netip.MustParseAddr("ff02::1:ff00:46"), netip.MustParseAddr("ff02::1")
	out := base.out
	groupMAC := [6]byte{0x33, 0x33, 0xff, 0, 0, 0x46}
	sll := append([]byte{1, 1}, out.other[:]...)
	tll := append([]byte{2, 1}, out.mac[:]...)
	eth := testpkt.Ethernet{Source: out.other, Destination: groupMAC}
	back := testpkt.Ethernet{Source: out.mac, Destination: out.other}
	toAll := testpkt.Ethernet{Source: out.mac, Destination: [6]byte{0x33, 0x33, 0, 0, 0, 1}}
	const ns, na, solicited, override = 135, 136, 0x40000000, 0x20000000
	question := neighbourMessage(eth, ns, 0, asker, group, pool, sll...)
	bad := func(at int) []byte {
		f := append([]byte(nil), question...)
		f[at]--
		return f
	}
	for _, tt := range []struct {
		name string
		in   []byte
		want []byte // nil: passed on
	}{
		{"question", question, neighbourMessage(back, na, solicited|override, pool, asker, pool, tll...)},
		{"question to us alone", neighbourMessage(testpkt.Ethernet{Source: out.other, Destination: out.mac}, ns, 0, asker, pool, pool),
			neighbourMessage(back, na, solicited|override, pool, asker, pool, tll...)},
		{"probe", neighbourMessage(eth, ns, 0, netip.IPv6Unspecified(), group, pool),
			neighbourMessage(toAll, na, override, pool, allNodes, pool, tll...)},
		{"probe with a nonce", neighbourMessage(eth, ns, 0, netip.IPv6Unspecified(), group, pool, 14, 1, 1, 2, 3, 4, 5, 6),
			neighbourMessage(toAll, na, override, pool, allNodes, pool, tll...)},
		{"of whom it is", neighbourMessage(eth, ns, 0, pool, group, pool, sll...), nil},
		{"from afar", bad(14 + 7), nil},
		{"wrong checksum", bad(14 + 40 + 2), nil},
		{"advertisement", neighbourMessage(eth, na, 0, asker, group, pool, sll...), nil},
		{"for another address", neighbourMessage(eth, ns, 0, asker, group, netip.MustParseAddr("2001:db8:2::50"), sll...), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := base.fresh(t)
			r.announces(r.out.index, "2001:db8:2::40/124", 0)
			if tt.want == nil {
				r.step("passes", r.out, tt.in, actUnspec, tt.in)
				return
			}
			r.step("is answered", r.out, tt.in, actRedirect, tt.want)
			r.counted(map[string]uint64{"VERDICT_ANSWERED": 1})
		})
	}
}

// TestUnownedAddress: packets to an address that only NAT rules use are dropped unless they belong
// to a connection, as replies do.
func TestUnownedAddress(t *testing.T) {
	base := newRig(t)
	for i, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			pool := []string{"203.0.113.64/28", "2001:db8:cb00:71::/64"}[i]
			r.translate(map[datapath.NATName]datapath.NAT{"away": {Addresses: prefixes(pool)}})
			r.announces(0, pool, 0)
			proto := protocolsOf(f)["UDP"]
			_, out := r.leave(r.in, r.out, message(r.out.leaves(), proto, f.client, f.far, stageOpen, 60))
			outer := netip.AddrPortFrom(addressOf(out), sourcePort(out, proto))
			r.step("answer", r.out, message(r.out.arrives(), proto, f.far, outer, stageAnswer, 61),
				actUnspec, message(r.out.arrives(), proto, f.far, f.client, stageAnswer, 61))
			stranger := netip.AddrPortFrom(f.far.Addr(), f.far.Port()+1)
			frame := message(r.out.arrives(), proto, stranger, outer, stageOpen, 61)
			r.step("of another host", r.out, frame, actShot, frame)
			untracked := testpkt.ICMP{Type: 13}
			if f.name == "IPv6" {
				untracked = testpkt.ICMP{Type: 200, V6: true}
			}
			frame = testpkt.Build(r.out.arrives(), ipHeader(stranger.Addr(), outer.Addr(), 61), untracked)
			r.step("of no connection", r.out, frame, actShot, frame)
			// A packet from a client, whose source would be translated, is dropped as well.
			r.knowNeighbours(f)
			r.ns.Run(t, "ip", "route", "replace", pool, "via", f.far.Addr().String())
			frame = message(r.in.arrives(), proto, f.client, netip.AddrPortFrom(outer.Addr(), 9), stageOpen, 61)
			r.step("of a client", r.in, frame, actShot, frame)
			if c := r.counters(); c["DROP_NO_MAPPING"] != 3 {
				t.Errorf("counters %v", c)
			}
		})
	}
}
