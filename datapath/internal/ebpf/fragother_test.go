// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// raw builds an IP packet of a protocol that may be fragmented, with 3000 bytes of payload.
func raw(eth testpkt.Ethernet, from, to netip.Addr, proto uint8, layers ...testpkt.Layer) []byte {
	body := make([]byte, 3000)
	for i := range body {
		body[i] = byte(i ^ i>>8)
	}
	ip := testpkt.Layer(testpkt.IPv4{Source: from, Destination: to, TTL: 61, Protocol: proto})
	if from.Is6() {
		ip = testpkt.IPv6{Source: from, Destination: to, HopLimit: 61, Protocol: proto}
	}
	return testpkt.Build(append(append([]testpkt.Layer{eth, ip}, layers...), testpkt.Payload(body))...)
}

// TestFragmentsWithoutPorts: all fragments of a protocol without ports are evaluated by their
// addresses and protocol, in any order.
func TestFragmentsWithoutPorts(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range map[string]uint8{"ESP": 50, "AH": 51, "GRE": 47, "IP in IP": 4, "IPv6 in IP": 41, "OSPF": 89} {
			match := datapath.Match{Protocols: []datapath.Protocol{datapath.Protocol(proto)}}
			for _, rules := range []struct {
				name   string
				list   []rigRule
				action int32
			}{
				{"no rules", nil, actUnspec}, {"allow all", []rigRule{{id: 1}}, actUnspec},
				{"allow it, deny the rest", []rigRule{{id: 1, match: match}, {id: 2, action: ruleDeny}}, actUnspec},
				{"deny it, allow the rest", []rigRule{{id: 1, match: match, action: ruleDeny}, {id: 2}}, actShot},
			} {
				t.Run(fmt.Sprint(f.name, "/", name, "/", rules.name), func(t *testing.T) {
					r := base.fresh(t)
					if rules.list != nil {
						r.rules(rules.list...)
					}
					parts := testpkt.Fragments(raw(r.in.arrives(), f.client.Addr(), f.far.Addr(), proto), 1400, 0x5152)
					for _, i := range []int{2, 0, 1, 2} {
						r.step(fmt.Sprint("fragment ", i), r.in, parts[i], rules.action, parts[i])
					}
				})
			}
		}
	}
}

// TestFragmentsOfEcho: fragments of an echo with identifier 0, and of an echo that a stateless rule
// allows by its type, get the same verdict as their first one.
func TestFragmentsOfEcho(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		proto, kind := uint8(1), uint8(8)
		if f.name == "IPv6" {
			proto, kind = 58, 128
		}
		match := datapath.Match{Protocols: []datapath.Protocol{datapath.Protocol(proto)}, ICMP: []datapath.ICMPMatch{{Type: kind, AnyCode: true}}}
		for _, id := range []uint16{0, 0x1718} {
			for name, flags := range map[string]uint8{"stateful": 0, "stateless": 1} {
				t.Run(fmt.Sprint(f.name, "/", id, "/", name), func(t *testing.T) {
					r := base.fresh(t)
					r.rules(rigRule{id: 1, match: match, flags: flags}, rigRule{id: 2, action: ruleDeny})
					echo := raw(r.in.arrives(), f.client.Addr(), f.far.Addr(), 0, testpkt.ICMP{V6: f.name == "IPv6", Type: kind, ID: id, Seq: 1})
					parts := testpkt.Fragments(echo, 1400, 0x5152)
					r.step("before the first", r.in, parts[1], actShot, parts[1])
					for i := range parts {
						r.step(fmt.Sprint("fragment ", i), r.in, parts[i], actUnspec, parts[i])
					}
					if n := r.counters()["DROP_FRAGMENT"]; n != 1 {
						t.Errorf("%d fragments dropped, want 1, the fragment before the first", n)
					}
				})
			}
		}
	}
}

// TestFragmentsToGroup: later fragments of a multicast datagram are evaluated with the ports of
// their first one.
func TestFragmentsToGroup(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			group := netip.MustParseAddrPort("239.1.2.3:4660")
			eth := testpkt.Ethernet{Source: r.in.other, Destination: [6]byte{1, 0, 0x5e, 1, 2, 3}}
			if f.name == "IPv6" {
				group = netip.MustParseAddrPort("[ff15::1:2:3]:4660")
				eth.Destination = [6]byte{0x33, 0x33, 0, 1, 0, 3}
			}
			r.rules(rigRule{id: 1, match: datapath.Match{Protocols: []datapath.Protocol{datapath.UDP},
				Ports: []datapath.PortRange{{First: 4660, Last: 4660}}}}, rigRule{id: 2, action: ruleDeny})
			parts := testpkt.Fragments(wideDatagram(eth, f.client, group, 61, 3000), 1400, 0x5152)
			r.step("before the first", r.in, parts[1], actShot, parts[1])
			for i := range parts {
				r.step(fmt.Sprint("fragment ", i), r.in, parts[i], actUnspec, parts[i])
			}
		})
	}
}
