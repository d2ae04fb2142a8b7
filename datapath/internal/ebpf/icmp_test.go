// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// icmpErrors are the errors that concern a connection, by family.
var icmpErrors = map[string][]testpkt.ICMP{
	"IPv4": {
		{Type: 3, Code: 0}, {Type: 3, Code: 1}, {Type: 3, Code: 3},
		testpkt.FragmentationNeeded(1280), {Type: 11}, {Type: 12, ID: 0x1400},
	},
	"IPv6": {
		{V6: true, Type: 1, Code: 0}, {V6: true, Type: 1, Code: 4},
		testpkt.PacketTooBig(1280), {V6: true, Type: 3}, {V6: true, Type: 4, Code: 1, Seq: 6},
	},
}

// about builds the ICMP error e from router to whom about the packet inner. The error quotes the IP
// header and bytesOfL4 bytes after it.
func about(eth testpkt.Ethernet, e testpkt.ICMP, router, whom netip.Addr, inner []byte, bytesOfL4 int) []byte {
	header := 20 + 14
	if e.V6 {
		header = 40 + 14
	}
	return testpkt.Build(eth, ipHeader(router, whom, 61), e, testpkt.Raw(inner[14:min(header+bytesOfL4, len(inner))]))
}

// seen returns the expected quoted packet in a translated error: want with the layer 4 checksum of
// got, which the programs leave unchanged.
func seen(proto uint8, got, want []byte) []byte {
	header := 14 + 20
	if got[14]>>4 == 6 {
		header = 14 + 40
	}
	out := bytes.Clone(want)
	switch proto {
	case testpkt.ProtoUDP:
		copy(out[header+6:header+8], got[header+6:])
	case testpkt.ProtoTCP:
		copy(out[header+16:header+18], got[header+16:])
	case testpkt.ProtoSCTP:
		copy(out[header+8:header+12], got[header+8:])
	}
	return out
}

// TestICMPErrorsAreTranslated: both the outer addresses and the embedded tuple are
// translated to the ones that the receiver knows, whichever host sends the error and however little
// of the packet it quotes.
func TestICMPErrorsAreTranslated(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			for _, m := range natModes {
				t.Run(f.name+"/"+name+"/"+m.name, func(t *testing.T) {
					r := base.fresh(t)
					p := r.connect(f, proto, m)
					r.slow("opening", p, stageOpen)
					count := uint64(0)
					for _, e := range icmpErrors[f.name] {
						for _, size := range []int{8, 200} {
							r.translated(f, p, e, size)
							count += 4
						}
					}
					r.counted(map[string]uint64{"VERDICT_SLOW": 1, "VERDICT_ICMP_ERROR": count})
				})
			}
		}
	}
}

func (r *rig) translated(f family, p path, e testpkt.ICMP, size int) {
	r.t.Helper()
	// An error about the client's packet, which the network behind the node saw translated.
	asSent := packet(testpkt.Ethernet{}, p.proto, p.client, p.vip, stageData, 58)
	asLeft := packet(testpkt.Ethernet{}, p.proto, p.source, p.backend, stageData, 58)
	for sender, told := range map[netip.Addr]netip.Addr{f.farRouter: f.farRouter, p.backend.Addr(): p.vip.Addr()} {
		r.step(fmt.Sprintf("type %d code %d from %s, %d bytes, to the client", e.Type, e.Code, sender, size), p.beport,
			about(p.beport.arrives(), e, sender, p.source.Addr(), asLeft, size), actUnspec,
			about(p.beport.arrives(), e, told, p.client.Addr(), seen(p.proto, asLeft, asSent), size))
	}
	// An error about the backend's reply.
	asSent = packet(testpkt.Ethernet{}, p.proto, p.backend, p.source, stageData, 58)
	asLeft = packet(testpkt.Ethernet{}, p.proto, p.vip, p.client, stageData, 58)
	for sender, told := range map[netip.Addr]netip.Addr{f.farRouter: f.farRouter, p.client.Addr(): p.source.Addr()} {
		r.step(fmt.Sprintf("type %d code %d from %s, %d bytes, to the backend", e.Type, e.Code, sender, size), p.clientPort,
			about(p.clientPort.arrives(), e, sender, p.vip.Addr(), asLeft, size), actUnspec,
			about(p.clientPort.arrives(), e, told, p.backend.Addr(), seen(p.proto, asLeft, asSent), size))
	}
}

// TestICMPErrorsAboutFragments: an error about the first fragment of a datagram is translated like
// an error about a whole packet, even if a fragment header precedes the ports.
func TestICMPErrorsAboutFragments(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, f family, m natMode) {
		p := r.connect(f, testpkt.ProtoUDP, m)
		r.slow("opening", p, stageOpen)
		header, extension := 20, 0
		if f.client.Addr().Is6() {
			header, extension = 40, 8
		}
		first := func(frame []byte) []byte { return testpkt.Fragments(frame, header+extension+16, 7)[0] }
		asLeft := first(packet(testpkt.Ethernet{}, p.proto, p.source, p.backend, stageData, 58))
		asSent := first(packet(testpkt.Ethernet{}, p.proto, p.client, p.vip, stageData, 58))
		sum := 14 + header + extension + 6
		copy(asSent[sum:sum+2], asLeft[sum:])
		for _, e := range icmpErrors[f.name] {
			r.step(fmt.Sprintf("type %d code %d", e.Type, e.Code), p.beport,
				about(p.beport.arrives(), e, f.farRouter, p.source.Addr(), asLeft, 200), actUnspec,
				about(p.beport.arrives(), e, f.farRouter, p.client.Addr(), asSent, 200))
		}
	})
}

// TestUnrelatedICMPErrors: errors about unknown connections, and ICMP messages other than errors,
// go to the kernel unchanged.
func TestUnrelatedICMPErrors(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.connect(f, testpkt.ProtoTCP, natModes[0])
			r.slow("opening", p, stageOpen)
			e := icmpErrors[f.name][0]
			other := netip.AddrPortFrom(p.backend.Addr(), 9030)
			stray := packet(testpkt.Ethernet{}, p.proto, p.source, other, stageData, 58)
			whole := about(r.out.arrives(), e, f.farRouter, p.source.Addr(), stray, 40)
			r.step("another connection", r.out, whole, actUnspec, whole)
			short := whole[:len(whole)-41]
			r.step("cut off", r.out, short, actUnspec, short)
			echo := testpkt.ICMP{Type: testpkt.EchoRequest, ID: 7, Seq: 1}
			if f.name == "IPv6" {
				echo.V6, echo.Type = true, testpkt.V6EchoRequest
			}
			ping := testpkt.Build(r.in.arrives(), ipHeader(p.client.Addr(), p.vip.Addr(), 64), echo, testpkt.Payload("ping"))
			r.step("echo request", r.in, ping, actUnspec, ping)
			r.counted(map[string]uint64{"VERDICT_SLOW": 2}) // the first packet, and the echo request
		})
	}
}
