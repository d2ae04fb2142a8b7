// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestLastHop: if the TTL of a translated packet ends at this node, the error goes to the
// original sender and quotes the original packet, in both directions.
func TestLastHop(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, m := range natModes {
			for _, name := range []string{"TCP", "UDP"} {
				t.Run(f.name+"/"+name+"/"+m.name, func(t *testing.T) { testLastHop(t, base.fresh(t), f, m, protocols[name]) })
			}
		}
	}
}

func testLastHop(t *testing.T, r *rig, f family, m natMode, proto uint8) {
	p := r.connect(f, proto, m)
	tell := func(what string, dev rigPort, frame []byte) {
		t.Helper()
		sent := testpkt.Parse(frame)
		icmp, tos, from := testpkt.ICMP{Type: 11}, uint8(0xd0), f.inAddr
		if dev.index == r.out.index {
			from = f.outAddr
		}
		if f.name == "IPv6" {
			icmp, tos = testpkt.ICMP{V6: true, Type: 3}, 0
		}
		want := testpkt.Build(dev.leaves(), answerIP(from, sent.Source().Addr(), tos), icmp, testpkt.Raw(frame[14:]))
		r.step(what, dev, frame, actRedirect, want)
	}
	tell("opening", p.clientPort, packet(p.clientPort.arrives(), p.proto, p.client, p.vip, stageOpen, 1))
	r.slow("opening", p, stageOpen)
	r.slow("answer", p, stageAnswer)
	r.slow("confirmation", p, stageConfirm)
	r.nexthop(5, p.beport, 0, p.forth())
	r.nexthop(6, p.clientPort, 0, p.back())
	tell("data", p.clientPort, packet(p.clientPort.arrives(), p.proto, p.client, p.vip, stageData, 1))
	tell("data back", p.beport, packet(p.beport.arrives(), p.proto, p.backend, p.source, stageData, 1))
	if got := r.counters()["DROP_TTL"]; got != 3 {
		t.Errorf("%d packets were dropped for their TTL, want 3", got)
	}
}

// TestLastHopOnABridge: a reply that the kernel's bridge delivers, and that is translated on the way,
// may have a TTL of 1, like any bridged packet.
func TestLastHopOnABridge(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, name := range []string{"TCP", "UDP"} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, protocols[name], natModes[0])
				for _, s := range []stage{stageOpen, stageAnswer, stageConfirm} {
					r.slow("opening", p, s)
				}
				low := r.out.index & 0xffff
				r.put(kernel.MapLlBridged, low>>6, uint64(1)<<(low&63))
				r.put(kernel.MapLlBridgePort, kernel.BridgePortKey{Ifindex: r.out.index},
					kernel.BridgePort{Bridge: 99, Domain: 3, Mac: r.out.mac, Flags: kernel.BridgePortFlat})
				eth := testpkt.Ethernet{Source: r.out.other, Destination: r.in.other}
				r.step("bridged", r.out, packet(eth, p.proto, p.backend, p.source, stageData, 1),
					actUnspec, packet(eth, p.proto, p.vip, p.client, stageData, 1))
				if got := r.counters()["DROP_TTL"]; got != 0 {
					t.Errorf("%d packets were dropped for their TTL", got)
				}
			})
		}
	}
}

// TestPadding: padding after an IP packet is removed when the packet is routed.
func TestPadding(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, name := range []string{"TCP", "UDP", "SCTP"} {
			for _, m := range []natMode{natModes[0], natModes[3]} {
				t.Run(f.name+"/"+name+"/"+m.name, func(t *testing.T) {
					r := base.fresh(t)
					p := r.connect(f, protocols[name], m)
					for _, s := range []stage{stageOpen, stageAnswer, stageConfirm} {
						r.slow("opening", p, s)
					}
					r.nexthop(5, r.out, 0, p.forth())
					in := packet(r.in.arrives(), p.proto, p.client, p.vip, stageData, 61)
					want := packet(r.out.leaves(), p.proto, p.source, p.backend, stageData, 60)
					for _, padding := range []int{0, 1, 6, 40} {
						r.step("padded", r.in, slices.Concat(in, make([]byte, padding)), actRedirect, want)
					}
				})
			}
		}
	}
}
