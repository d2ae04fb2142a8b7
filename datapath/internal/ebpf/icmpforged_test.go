// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"testing"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestICMPErrorsElsewhere: an error whose destination is not the source of the packet that it
// quotes belongs to no connection, and goes to the kernel unchanged.
func TestICMPErrorsElsewhere(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, f family, m natMode) {
		p := r.connect(f, testpkt.ProtoUDP, m)
		r.slow("opening", p, stageOpen)
		asLeft := packet(testpkt.Ethernet{}, p.proto, p.source, p.backend, stageData, 58)
		for _, e := range icmpErrors[f.name] {
			in := about(p.beport.arrives(), e, f.farRouter, p.source.Addr().Next(), asLeft, 200)
			r.step(fmt.Sprintf("type %d code %d", e.Type, e.Code), p.beport, in, actUnspec, in)
		}
		r.counted(map[string]uint64{"VERDICT_SLOW": 1})
	})
}

// TestICMPErrorsAreNoEcho: an error is translated according to the connection that it quotes, even
// if its sender and receiver have an established echo connection with identifier 0.
func TestICMPErrorsAreNoEcho(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, f family, m natMode) {
		p := r.connect(f, testpkt.ProtoUDP, m)
		if p.source != p.client {
			t.Skip("the backend does not know the client")
		}
		r.slow("opening", p, stageOpen)
		echo := func(eth testpkt.Ethernet, request bool) []byte {
			e, from, to := testpkt.ICMP{Type: testpkt.EchoRequest, Seq: 1}, p.client.Addr(), p.backend.Addr()
			if from.Is6() {
				e.V6, e.Type = true, testpkt.V6EchoRequest
			}
			if !request {
				from, to = to, from
				e.Type = map[bool]uint8{true: 129, false: 0}[e.V6]
			}
			return testpkt.Build(eth, ipHeader(from, to, 60), e, testpkt.Payload("ping"))
		}
		for range 2 {
			r.run(r.ingress, p.clientPort, echo(p.clientPort.arrives(), true))
			r.run(r.ingress, p.beport, echo(p.beport.arrives(), false))
		}
		r.translated(f, p, icmpErrors[f.name][0], 200)
	})
}

// TestOwnTimeExceeded: the stack sends "time exceeded" only about packets that were not translated,
// such as a client's packets to the backend itself. Its other errors may also be about translated
// packets.
func TestOwnTimeExceeded(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.connect(f, testpkt.ProtoUDP, natModes[0])
			r.slow("opening", p, stageOpen)
			direct := packet(testpkt.Ethernet{}, p.proto, p.client, p.backend, stageData, 1)
			asSent := packet(testpkt.Ethernet{}, p.proto, p.client, p.vip, stageData, 1)
			ended, unreachable := testpkt.ICMP{Type: testpkt.TimeExceeded}, testpkt.ICMP{Type: 3, Code: 1}
			if f.name == "IPv6" {
				ended, unreachable = testpkt.ICMP{V6: true, Type: testpkt.V6TimeExceeded}, testpkt.ICMP{V6: true, Type: 1, Code: 3}
			}
			reassembly := ended
			reassembly.Code = 1
			own := func(e testpkt.ICMP, quoted []byte) []byte {
				return about(r.in.leaves(), e, f.inAddr, p.client.Addr(), quoted, 200)
			}
			r.compare("time exceeded", r.egress, r.in, own(ended, direct), actUnspec, own(ended, direct))
			for _, e := range []testpkt.ICMP{unreachable, reassembly} {
				r.compare(fmt.Sprintf("type %d code %d", e.Type, e.Code), r.egress, r.in,
					own(e, direct), actUnspec, own(e, seen(p.proto, direct, asSent)))
			}
		})
	}
}
