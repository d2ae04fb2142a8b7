// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// big builds a UDP or TCP packet that must be fragmented.
func big(eth testpkt.Ethernet, proto uint8, from, to netip.AddrPort, ttl uint8) []byte {
	ip := ipHeader(from.Addr(), to.Addr(), ttl)
	if four, ok := ip.(testpkt.IPv4); ok {
		four.DontFragment = false
		ip = four
	}
	var text bytes.Buffer
	for i := range 820 {
		fmt.Fprintf(&text, "%d,", i)
	}
	if proto == testpkt.ProtoUDP {
		return testpkt.Build(eth, ip, testpkt.UDP{Source: from.Port(), Destination: to.Port()}, testpkt.Payload(text.String()))
	}
	return testpkt.Build(eth, ip, testpkt.TCP{Source: from.Port(), Destination: to.Port(), Flags: testpkt.SYN, Seq: 9},
		testpkt.Payload(text.String()))
}

// TestFragments: later fragments are handled like the first one with the same identification, in
// both directions.
func TestFragments(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, name := range []string{"UDP", "TCP"} {
			for _, m := range natModes {
				t.Run(f.name+"/"+name+"/"+m.name, func(t *testing.T) {
					r := base.fresh(t)
					p := r.connect(f, protocols[name], m)
					action, ttl := p.outcome(61)
					r.fragments("forth", p.clientPort, big(p.clientPort.arrives(), p.proto, p.client, p.vip, 61),
						action, big(p.clientPort.arrives(), p.proto, p.source, p.backend, ttl))
					r.fragments("back", p.beport, big(p.beport.arrives(), p.proto, p.backend, p.source, 61),
						actUnspec, big(p.beport.arrives(), p.proto, p.vip, p.client, 61))
					r.counted(map[string]uint64{"VERDICT_SLOW": 8})
					if n := r.count(kernel.MapLlFragment); n != 2 {
						t.Errorf("%d datagrams are remembered, want 2", n)
					}
				})
			}
		}
	}
}

func (r *rig) fragments(what string, dev rigPort, in []byte, action int32, want []byte) {
	r.t.Helper()
	const id = 0x5152
	ins, wants := testpkt.Fragments(in, 1400, id), testpkt.Fragments(want, 1400, id)
	if len(ins) != 3 {
		r.t.Fatalf("%d fragments, want 3", len(ins))
	}
	// A later fragment that arrives before its first one cannot be assigned to a datagram.
	early := testpkt.Fragments(in, 1400, id+1)[2]
	r.step(what+": fragment of an unknown datagram", dev, early, actUnspec, early)
	for _, i := range []int{0, 2, 1, 2} {
		r.step(fmt.Sprintf("%s: fragment %d", what, i), dev, ins[i], action, wants[i])
	}
}

// TestFragmentsOnTheShortCut: the first fragment of an established connection takes the fast path,
// and later fragments follow it.
func TestFragmentsOnTheShortCut(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, f family, m natMode) {
		p := r.connect(f, testpkt.ProtoUDP, m)
		r.slow("opening", p, stageOpen)
		r.slow("answer", p, stageAnswer)
		r.nexthop(5, p.beport, 0, p.forth())
		ins := testpkt.Fragments(big(p.clientPort.arrives(), p.proto, p.client, p.vip, 61), 1400, 0x5152)
		wants := testpkt.Fragments(big(p.beport.leaves(), p.proto, p.source, p.backend, 60), 1400, 0x5152)
		for i := range ins {
			r.step(fmt.Sprint("fragment ", i), p.clientPort, ins[i], actRedirect, wants[i])
		}
		r.counted(map[string]uint64{"VERDICT_SLOW": 2, "VERDICT_FAST": 3})
	})
}
