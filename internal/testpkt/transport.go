// SPDX-License-Identifier: Apache-2.0

package testpkt

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// verify records a checksum as it was read, and an error if it is wrong.
func (p *Packet) verify(name string, field []byte, right, none bool) {
	switch {
	case none:
		p.checksums = append(p.checksums, name+" none")
	case right:
		p.checksums = append(p.checksums, fmt.Sprintf("%s %x", name, field))
	default:
		p.checksums = append(p.checksums, fmt.Sprintf("%s %x WRONG", name, field))
		p.fault("wrong %s checksum %x", name, field)
	}
}

// whole reports whether the packet contains everything that a transport checksum covers.
func (p *Packet) whole() bool { return !p.CutOff && !p.someParts }

func (p *Packet) parseTransport(protocol uint8, b []byte) {
	smallest := map[uint8]int{ProtoTCP: 20, ProtoUDP: 8, ProtoSCTP: 12, ProtoICMP: 8, ProtoICMPv6: 8}[protocol]
	if p.CutOff && smallest > 8 {
		smallest = 8 // the minimum that an ICMP error must contain
	}
	switch {
	case smallest == 0 || p.laterPart:
		p.Payload = b
		return
	case len(b) < smallest:
		p.fault("transport header of %d bytes", len(b))
		p.Payload = b
		return
	}
	switch protocol {
	case ProtoTCP:
		p.parseTCP(b)
	case ProtoUDP:
		p.parseUDP(b)
	case ProtoSCTP:
		p.parseSCTP(b)
	default:
		p.parseICMP(protocol, b)
	}
}

func (p *Packet) sumsUp(protocol uint8, b []byte) bool {
	source, destination := p.addrs()
	return checksum(b, pseudoHeader(source, destination, protocol, len(b))) == 0
}

func (p *Packet) parseTCP(b []byte) {
	p.TCP = &TCP{Source: be.Uint16(b), Destination: be.Uint16(b[2:]), Seq: be.Uint32(b[4:])}
	if len(b) < 20 {
		return
	}
	header := int(b[12]>>4) * 4
	p.TCP.Ack, p.TCP.Flags = be.Uint32(b[8:]), b[13]
	p.TCP.Window, p.TCP.Urgent = be.Uint16(b[14:]), be.Uint16(b[18:])
	switch {
	case header > len(b) && p.CutOff:
		return
	case header < 20 || header > len(b):
		p.fault("TCP header length %d of %d", header, len(b))
		return
	}
	p.TCP.Options, p.Payload = b[20:header:header], b[header:]
	if p.whole() {
		p.verify("TCP", b[16:18], p.sumsUp(ProtoTCP, b), false)
	}
}

func (p *Packet) parseUDP(b []byte) {
	p.UDP = &UDP{Source: be.Uint16(b), Destination: be.Uint16(b[2:]), NoChecksum: be.Uint16(b[6:]) == 0}
	p.Payload = b[8:]
	if !p.whole() {
		return
	}
	if length := int(be.Uint16(b[4:])); length != len(b) {
		p.fault("UDP length %d of %d", length, len(b))
	}
	none := p.UDP.NoChecksum && p.IPv4 != nil
	p.verify("UDP", b[6:8], p.sumsUp(ProtoUDP, b), none)
}

func (p *Packet) parseSCTP(b []byte) {
	p.SCTP = &SCTP{Source: be.Uint16(b), Destination: be.Uint16(b[2:]), Tag: be.Uint32(b[4:])}
	if !p.whole() {
		return
	}
	zeroed := append(append(append([]byte(nil), b[:8]...), 0, 0, 0, 0), b[12:]...)
	p.verify("SCTP", b[8:12], binary.LittleEndian.Uint32(b[8:]) == crc32.Checksum(zeroed, castagnoli), false)
	for rest := b[12:]; len(rest) > 0; {
		if len(rest) < 4 || int(be.Uint16(rest[2:])) < 4 || int(be.Uint16(rest[2:])) > len(rest) {
			p.fault("SCTP chunk of %d bytes", len(rest))
			return
		}
		length := int(be.Uint16(rest[2:]))
		p.SCTP.Chunks = append(p.SCTP.Chunks, Chunk{rest[0], rest[1], rest[4:length:length]})
		rest = rest[min((length+3)/4*4, len(rest)):]
	}
}

func (p *Packet) parseICMP(protocol uint8, b []byte) {
	p.ICMP = &ICMP{V6: protocol == ProtoICMPv6, Type: b[0], Code: b[1], ID: be.Uint16(b[4:]), Seq: be.Uint16(b[6:])}
	if p.whole() {
		if p.ICMP.V6 {
			p.verify("ICMPv6", b[2:4], p.sumsUp(protocol, b), false)
		} else {
			p.verify("ICMP", b[2:4], checksum(b, 0) == 0, false)
		}
	}
	if !p.ICMP.Error() {
		p.Payload = b[8:]
		return
	}
	p.Embedded = ParseIP(b[8:])
	if !p.CutOff {
		for _, fault := range p.Embedded.faults {
			p.fault(embeddedFault+"%s", fault)
		}
	}
}
