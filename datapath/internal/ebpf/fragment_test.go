// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// big builds a datagram, or an SCTP packet, that needs fragments.
func big(eth testpkt.Ethernet, proto uint8, from, to netip.AddrPort) []byte {
	ip := ipHeader(from.Addr(), to.Addr(), 61)
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

// TestFragments: later fragments follow the first, of both directions, and each
// datagram by its own identification.
func TestFragments(t *testing.T) {
	for _, f := range families {
		for _, name := range []string{"UDP", "TCP"} {
			for _, m := range natModes {
				t.Run(f.name+"/"+name+"/"+m.name, func(t *testing.T) {
					r := newRig(t)
					p := r.connect(f, protocols[name], m)
					r.fragments("forth", p.clientPort, big(p.clientPort.arrives(), p.proto, p.client, p.vip),
						big(p.clientPort.arrives(), p.proto, p.source, p.backend), 0x5152)
					r.fragments("back", p.beport, big(p.beport.arrives(), p.proto, p.backend, p.source),
						big(p.beport.arrives(), p.proto, p.vip, p.client), 0x5152)
					r.counted(map[string]uint64{"VERDICT_SLOW": 8})
					if n := r.count(kernelMapLlFragment); n != 2 {
						t.Errorf("%d datagrams are remembered, want 2", n)
					}
				})
			}
		}
	}
}

func (r *rig) fragments(what string, dev rigPort, in, want []byte, id uint32) {
	r.t.Helper()
	ins, wants := testpkt.Fragments(in, 1400, id), testpkt.Fragments(want, 1400, id)
	if len(ins) != 3 {
		r.t.Fatalf("%d fragments, want 3", len(ins))
	}
	// A later one that is early is not of this datagram for all that we know.
	early := testpkt.Fragments(in, 1400, id+1)[2]
	if action, out := r.run(r.ingress, dev, early); action != actUnspec || !bytes.Equal(out, early) {
		r.t.Errorf("%s: fragment of an unknown datagram: action %d, changed %t", what, action, !bytes.Equal(out, early))
	}
	for _, i := range []int{0, 2, 1, 2} {
		r.step(fmt.Sprintf("%s: fragment %d", what, i), dev, ins[i], actUnspec, wants[i])
	}
}
