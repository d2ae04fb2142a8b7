// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// Protocols that have no layer in testpkt.
const (
	protoIPIP = 4
	protoGRE  = 47
	protoESP  = 50
)

// talk is a conversation between two hosts, as plausible as necessary for a connection to be
// tracked. It does not wait until its packets arrive.
type talk struct {
	proto    uint8
	from, to netip.AddrPort // initiator and responder
	steps    int            // packets so far
	end      int            // number of packets after which it starts again
	seq      [2]uint32      // next of each direction
	id       uint16         // ICMP echo
	frames   int            // numbers of fragments
}

var talkProtocols = []uint8{
	testpkt.ProtoTCP, testpkt.ProtoTCP, testpkt.ProtoTCP, testpkt.ProtoUDP, testpkt.ProtoUDP,
	testpkt.ProtoICMP, testpkt.ProtoSCTP, protoGRE, protoESP,
}

func newTalk(rng *rand.Rand, from, to netip.Addr) *talk {
	k := &talk{
		proto: talkProtocols[rng.IntN(len(talkProtocols))],
		from:  netip.AddrPortFrom(from, uint16(1024+rng.IntN(64000))),
		to:    netip.AddrPortFrom(to, uint16(1+rng.IntN(9000))),
		end:   8 + rng.IntN(40),
		seq:   [2]uint32{rng.Uint32(), rng.Uint32()},
		id:    uint16(rng.Uint32()),
	}
	if k.proto == testpkt.ProtoICMP && from.Is6() {
		k.proto = testpkt.ProtoICMPv6
	}
	return k
}

func (k *talk) String() string {
	return fmt.Sprintf("%d %s>%s", k.proto, k.from, k.to)
}

// next returns the next packet, starting at its transport header, and whether the initiator sends
// it. text is its payload.
func (k *talk) next(rng *rand.Rand, text string) (forth bool, layers []testpkt.Layer) {
	if k.steps >= k.end {
		k.steps, k.seq = 0, [2]uint32{rng.Uint32(), rng.Uint32()}
	}
	step := k.steps
	k.steps++
	forth = rng.IntN(2) == 0
	if step < 4 {
		forth = step%2 == 0
	}
	switch k.proto {
	case testpkt.ProtoTCP:
		return k.tcp(rng, step, forth, text)
	case testpkt.ProtoUDP:
		src, dst := k.ports(forth)
		return forth, []testpkt.Layer{testpkt.UDP{Source: src, Destination: dst, NoChecksum: k.from.Addr().Is4() && k.id%8 == 0}, testpkt.Payload(text)}
	case testpkt.ProtoSCTP:
		return k.sctp(step, forth, text)
	case testpkt.ProtoICMP, testpkt.ProtoICMPv6:
		v6 := k.proto == testpkt.ProtoICMPv6
		kind := map[[2]bool]uint8{{false, true}: testpkt.EchoRequest, {false, false}: testpkt.EchoReply,
			{true, true}: testpkt.V6EchoRequest, {true, false}: testpkt.V6EchoReply}[[2]bool{v6, forth}]
		return forth, []testpkt.Layer{testpkt.ICMP{V6: v6, Type: kind, ID: k.id, Seq: uint16(step)}, testpkt.Payload(text)}
	default:
		header := []byte{0, 0, 8, 0} // GRE that claims to contain IPv4
		if k.proto == protoESP {
			header = []byte{0, 0, byte(k.id >> 8), byte(k.id), 0, 0, 0, byte(step)}
		}
		return forth, []testpkt.Layer{testpkt.Raw(append(header, text...))}
	}
}

func (k *talk) ports(forth bool) (src, dst uint16) {
	if forth {
		return k.from.Port(), k.to.Port()
	}
	return k.to.Port(), k.from.Port()
}

func (k *talk) tcp(rng *rand.Rand, step int, forth bool, text string) (bool, []testpkt.Layer) {
	me, other := 0, 1
	if !forth {
		me, other = 1, 0
	}
	src, dst := k.ports(forth)
	h := testpkt.TCP{Source: src, Destination: dst, Seq: k.seq[me], Ack: k.seq[other], Flags: testpkt.ACK, Window: 29200}
	switch {
	case step == 0:
		h.Flags, h.Ack, h.Options = testpkt.SYN, 0, []byte{2, 4, 5, 0xb4, 1, 3, 3, 7}
	case step == 1:
		h.Flags, h.Options = testpkt.SYN|testpkt.ACK, []byte{2, 4, 5, 0xb4, 1, 3, 3, 6}
	case step == k.end-1 && rng.IntN(3) == 0:
		h.Flags = testpkt.RST | testpkt.ACK
	case step >= k.end-2:
		h.Flags |= testpkt.FIN
	default:
		h.Flags |= testpkt.PSH
	}
	k.seq[me] += uint32(len(text))
	if h.Flags&(testpkt.SYN|testpkt.FIN) != 0 {
		k.seq[me]++
	}
	return forth, []testpkt.Layer{h, testpkt.Payload(text)}
}

func (k *talk) sctp(step int, forth bool, text string) (bool, []testpkt.Layer) {
	src, dst := k.ports(forth)
	kinds := []uint8{1, 2, 10, 11} // INIT, INIT ACK, COOKIE ECHO, COOKIE ACK
	kind := uint8(0)               // DATA
	switch {
	case step < len(kinds):
		kind = kinds[step]
	case step == k.end-2:
		kind = 7 // SHUTDOWN
	case step == k.end-1:
		kind = 14 // SHUTDOWN COMPLETE
	}
	tag := k.seq[0]
	if !forth {
		tag = k.seq[1]
	}
	return forth, []testpkt.Layer{testpkt.SCTP{
		Source: src, Destination: dst, Tag: tag, Chunks: []testpkt.Chunk{{Type: kind, Flags: 3, Value: []byte(text)}},
	}}
}

// ip returns the IP header of a packet of the conversation.
func (k *talk) ip(rng *rand.Rand, forth bool) testpkt.Layer {
	src, dst := k.from.Addr(), k.to.Addr()
	if !forth {
		src, dst = dst, src
	}
	tos := uint8(0)
	if rng.IntN(4) == 0 {
		tos = uint8(rng.Uint32())
	}
	ttl := uint8(64)
	if rng.IntN(8) == 0 {
		ttl = uint8(3 + rng.IntN(253))
	}
	protocol := k.proto
	if src.Is4() {
		return testpkt.IPv4{Source: src, Destination: dst, TTL: ttl, TOS: tos, ID: uint16(rng.Uint32()), DontFragment: rng.IntN(2) == 0, Protocol: protocol}
	}
	return testpkt.IPv6{Source: src, Destination: dst, HopLimit: ttl, Class: tos, FlowLabel: uint32(rng.IntN(1 << 20)), Protocol: protocol}
}

// marked is a payload of size bytes or somewhat more, with the number of the frame.
func marked(number, size int) string {
	s := fmt.Sprintf("%s%d>", mark, number)
	return s + strings.Repeat("x", max(0, size-len(s)))
}
