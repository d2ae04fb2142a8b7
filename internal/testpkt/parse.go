// SPDX-License-Identifier: Apache-2.0

package testpkt

import (
	"fmt"
	"net/netip"
	"strings"
)

const embeddedFault = "embedded: "

// Packet is a parsed packet. Missing layers are nil.
type Packet struct {
	Ethernet *Ethernet
	VLANs    []VLAN
	IPv4     *IPv4
	IPv6     *IPv6
	TCP      *TCP
	UDP      *UDP
	SCTP     *SCTP
	ICMP     *ICMP
	Payload  []byte
	Padding  int     // bytes after the end of the IP packet
	Embedded *Packet // in an ICMP error; it may be truncated
	CutOff   bool    // the packet is truncated: only for Embedded

	faults    []string
	checksums []string // as found in the packet, with their names
	laterPart bool     // a fragment other than the first
	someParts bool     // any fragment
}

// Parse parses a frame. [Packet.Check] reports the errors in the frame.
func Parse(frame []byte) *Packet {
	p := new(Packet)
	if len(frame) < 14 {
		p.fault("Ethernet header of %d bytes", len(frame))
		p.Payload = frame
		return p
	}
	eth := Ethernet{Destination: [6]byte(frame), Source: [6]byte(frame[6:]), Type: be.Uint16(frame[12:])}
	p.Ethernet = &eth
	p.parseEther(eth.Type, frame[14:])
	return p
}

// ParseIP parses an IP packet without a link header.
func ParseIP(b []byte) *Packet {
	p := new(Packet)
	p.parseVersion(b)
	return p
}

// Check returns all errors in the packet: headers that contradict its length, and wrong checksums,
// including those in an embedded packet. It returns nil if there are no errors.
func (p *Packet) Check() error {
	if len(p.faults) == 0 {
		return nil
	}
	return fmt.Errorf("bad packet: %q", p.faults)
}

// CheckOuter is like [Packet.Check], but ignores errors in an embedded packet: translation of an
// ICMP error does not update the checksums in its embedded packet.
func (p *Packet) CheckOuter() error {
	own := Packet{}
	for _, fault := range p.faults {
		if !strings.HasPrefix(fault, embeddedFault) {
			own.faults = append(own.faults, fault)
		}
	}
	return own.Check()
}

// Check is like [Packet.Check], but takes a frame.
func Check(frame []byte) error { return Parse(frame).Check() }

// Protocol returns the IP protocol, after extension headers.
func (p *Packet) Protocol() uint8 {
	switch {
	case p.IPv4 != nil:
		return p.IPv4.Protocol
	case p.IPv6 != nil:
		return p.IPv6.Protocol
	}
	return 0
}

// Source returns the source address with its port; for ICMP, with the identifier.
func (p *Packet) Source() netip.AddrPort {
	source, _ := p.addrs()
	port, _ := p.ports()
	return netip.AddrPortFrom(source, port)
}

// Destination returns the destination address with its port; for ICMP, with the identifier.
func (p *Packet) Destination() netip.AddrPort {
	_, destination := p.addrs()
	_, port := p.ports()
	return netip.AddrPortFrom(destination, port)
}

// TTL returns the time to live or the hop limit.
func (p *Packet) TTL() uint8 {
	switch {
	case p.IPv4 != nil:
		return p.IPv4.TTL
	case p.IPv6 != nil:
		return p.IPv6.HopLimit
	}
	return 0
}

func (p *Packet) addrs() (source, destination netip.Addr) {
	switch {
	case p.IPv4 != nil:
		return p.IPv4.Source, p.IPv4.Destination
	case p.IPv6 != nil:
		return p.IPv6.Source, p.IPv6.Destination
	}
	return source, destination
}

func (p *Packet) ports() (source, destination uint16) {
	switch {
	case p.TCP != nil:
		return p.TCP.Source, p.TCP.Destination
	case p.UDP != nil:
		return p.UDP.Source, p.UDP.Destination
	case p.SCTP != nil:
		return p.SCTP.Source, p.SCTP.Destination
	case p.ICMP != nil:
		return p.ICMP.ID, p.ICMP.ID
	}
	return 0, 0
}

func (p *Packet) fault(format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf(format, args...))
}

func (p *Packet) parseEther(etherType uint16, b []byte) {
	for etherType == etherVLAN || etherType == etherQinQ {
		if len(b) < 4 {
			p.fault("VLAN tag of %d bytes", len(b))
			p.Payload = b
			return
		}
		tag := VLAN{ID: be.Uint16(b), TPID: etherType, Protocol: be.Uint16(b[2:])}
		p.VLANs = append(p.VLANs, tag)
		etherType, b = tag.Protocol, b[4:]
	}
	switch {
	case etherType != etherIPv4 && etherType != etherIPv6:
		p.Payload = b
	case len(b) > 0 && (etherType == etherIPv4) != (b[0]>>4 == 4):
		p.fault("EtherType %#x and IP version %d", etherType, b[0]>>4)
		p.Payload = b
	default:
		p.parseVersion(b)
	}
}

func (p *Packet) parseVersion(b []byte) {
	switch {
	case len(b) > 0 && b[0]>>4 == 4:
		p.parseIPv4(b)
	case len(b) > 0 && b[0]>>4 == 6:
		p.parseIPv6(b)
	default:
		p.fault("no IP packet")
		p.Payload = b
	}
}

// body returns the part of b that belongs to the packet, and records padding and truncation. length
// is the length in the packet's header.
func (p *Packet) body(b []byte, length int) []byte {
	if length > len(b) {
		p.CutOff = true
		return b
	}
	p.Padding = len(b) - length
	return b[:length]
}

func (p *Packet) parseIPv4(b []byte) {
	if len(b) < 20 {
		p.fault("IPv4 header of %d bytes", len(b))
		p.Payload = b
		return
	}
	header, flags := int(b[0]&15)*4, be.Uint16(b[6:])
	length := int(be.Uint16(b[2:]))
	if header < 20 || header > len(b) || length < header {
		p.fault("IPv4 header length %d, total length %d of %d", header, length, len(b))
		p.Payload = b
		return
	}
	p.IPv4 = &IPv4{
		Source: netip.AddrFrom4([4]byte(b[12:])), Destination: netip.AddrFrom4([4]byte(b[16:])),
		TTL: b[8], TOS: b[1], ID: be.Uint16(b[4:]), Protocol: b[9],
		DontFragment: flags&0x4000 != 0, MoreFragments: flags&0x2000 != 0, Offset: int(flags&0x1fff) * 8,
		Options: b[20:header:header],
	}
	p.verify("IPv4", b[10:12], checksum(b[:header], 0) == 0, false)
	p.laterPart = p.IPv4.Offset > 0
	p.someParts = p.laterPart || p.IPv4.MoreFragments
	p.parseTransport(b[9], p.body(b, length)[header:])
}

func (p *Packet) parseIPv6(b []byte) {
	if len(b) < 40 {
		p.fault("IPv6 header of %d bytes", len(b))
		p.Payload = b
		return
	}
	p.IPv6 = &IPv6{
		Source: netip.AddrFrom16([16]byte(b[8:])), Destination: netip.AddrFrom16([16]byte(b[24:])),
		HopLimit: b[7], Class: byte(be.Uint16(b) >> 4), FlowLabel: be.Uint32(b) & 0xfffff,
	}
	next := b[6]
	b = p.body(b, 40+int(be.Uint16(b[4:])))[40:]
	for isExtension(next) && !p.laterPart {
		if len(b) < 8 {
			p.fault("extension header %d of %d bytes", next, len(b))
			break
		}
		size := 8 + int(b[1])*8
		switch next {
		case AuthHeader:
			size = 8 + int(b[1])*4
		case Fragment:
			size = 8
			p.laterPart = be.Uint16(b[2:])&^7 != 0
			p.someParts = p.laterPart || b[3]&1 != 0
		}
		if size > len(b) {
			p.fault("extension header %d of %d bytes in %d", next, size, len(b))
			break
		}
		p.IPv6.Extensions = append(p.IPv6.Extensions, Extension{next, b[2:size:size]})
		next, b = b[0], b[size:]
	}
	p.IPv6.Protocol = next
	p.parseTransport(next, b)
}

func isExtension(next uint8) bool {
	switch next {
	case HopByHop, Routing, Fragment, AuthHeader, Destination:
		return true
	}
	return false
}
