// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// tuple identifies a connection. For ICMP echo, both ports are the identifier; for protocols
// without ports, they are 0.
type tuple struct {
	proto    uint8
	src, dst netip.AddrPort
}

func (k tuple) turned() tuple { return tuple{k.proto, k.dst, k.src} }

func (k tuple) String() string {
	return fmt.Sprintf("%s %s > %s", protoName(k.proto), k.src, k.dst)
}

var protoNames = map[uint8]string{
	testpkt.ProtoICMP: "icmp", testpkt.ProtoTCP: "tcp", testpkt.ProtoUDP: "udp",
	testpkt.ProtoICMPv6: "icmpv6", testpkt.ProtoSCTP: "sctp", protoGRE: "gre",
}

const protoGRE = 47

const blindBy = 1 << 30 // further than any window reaches

func protoName(p uint8) string {
	if s, ok := protoNames[p]; ok {
		return s
	}
	return fmt.Sprint(p)
}

func isICMP(proto uint8) bool { return proto == testpkt.ProtoICMP || proto == testpkt.ProtoICMPv6 }
func hasPorts(proto uint8) bool {
	return proto == testpkt.ProtoTCP || proto == testpkt.ProtoUDP || proto == testpkt.ProtoSCTP
}

// pkt is a packet as hosts send it.
type pkt struct {
	tuple
	flags    uint8  // TCP
	chunk    uint8  // SCTP: type of the first chunk
	reply    bool   // ICMP: an echo reply
	seq, ack uint32 // TCP
	blind    uint32 // offset of seq from the correct value
	ttl, tos uint8
	id       uint16 // IPv4
	df       bool
	payload  string
}

// frame is the packet on the wire between two hosts.
func (p *pkt) frame(from, to [6]byte) []byte {
	eth := testpkt.Ethernet{Source: from, Destination: to}
	var ip testpkt.Layer = testpkt.IPv6{
		Source: p.src.Addr(), Destination: p.dst.Addr(), HopLimit: p.ttl, Class: p.tos, FlowLabel: uint32(p.id), Protocol: p.proto,
	}
	v6 := p.src.Addr().Is6()
	if !v6 {
		ip = testpkt.IPv4{Source: p.src.Addr(), Destination: p.dst.Addr(), TTL: p.ttl, TOS: p.tos, ID: p.id, DontFragment: p.df, Protocol: p.proto}
	}
	layers := []testpkt.Layer{eth, ip}
	switch {
	case p.proto == testpkt.ProtoTCP:
		layers = append(layers, testpkt.TCP{Source: p.src.Port(), Destination: p.dst.Port(), Seq: p.seq + p.blind, Ack: p.ack, Flags: p.flags}, testpkt.Payload(p.payload))
	case p.proto == testpkt.ProtoUDP:
		layers = append(layers, testpkt.UDP{Source: p.src.Port(), Destination: p.dst.Port()}, testpkt.Payload(p.payload))
	case p.proto == testpkt.ProtoSCTP:
		layers = append(layers, testpkt.SCTP{Source: p.src.Port(), Destination: p.dst.Port(), Tag: p.seq + p.blind, Chunks: []testpkt.Chunk{{Type: p.chunk, Flags: 3, Value: []byte(p.payload)}}})
	case isICMP(p.proto):
		kind := map[[2]bool]uint8{{false, false}: testpkt.EchoRequest, {false, true}: testpkt.EchoReply, {true, false}: testpkt.V6EchoRequest, {true, true}: testpkt.V6EchoReply}[[2]bool{v6, p.reply}]
		layers = append(layers, testpkt.ICMP{V6: v6, Type: kind, ID: p.echoID(), Seq: uint16(p.seq)}, testpkt.Payload(p.payload))
	default:
		layers = append(layers, testpkt.Raw(append([]byte{0, 0, 8, 0}, p.payload...)))
	}
	return testpkt.Build(layers...)
}

// echoID returns the identifier, which is in both ports; if a translation changed one port, it is
// in the port of the end that replies.
func (p *pkt) echoID() uint16 {
	if p.reply {
		return p.src.Port()
	}
	return p.dst.Port()
}

// tupleOf reads the tuple of a frame.
func tupleOf(frame []byte) (tuple, bool) {
	p := testpkt.Parse(frame)
	if p.IPv4 == nil && p.IPv6 == nil {
		return tuple{}, false
	}
	return tuple{p.Protocol(), p.Source(), p.Destination()}, true
}

func (p *pkt) String() string {
	s := p.tuple.String()
	switch {
	case p.proto == testpkt.ProtoTCP:
		s += " [" + flagNames(p.flags) + "]"
	case p.proto == testpkt.ProtoSCTP:
		s += fmt.Sprintf(" [chunk %d]", p.chunk)
	case isICMP(p.proto) && p.reply:
		s += " [echo reply]"
	case isICMP(p.proto):
		s += " [echo request]"
	}
	if p.blind != 0 {
		s += " blind"
	}
	if p.ttl != 64 {
		s += fmt.Sprintf(" ttl %d", p.ttl)
	}
	if p.tos != 0 {
		s += fmt.Sprintf(" dscp %d", p.tos>>2)
	}
	return s
}

func flagNames(flags uint8) string {
	s := ""
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if flags>>i&1 != 0 {
			if s != "" {
				s += " "
			}
			s += name
		}
	}
	return s
}
