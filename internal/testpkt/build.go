// SPDX-License-Identifier: Apache-2.0

package testpkt

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// position is the context that a layer needs for its encoding.
type position struct {
	source, destination netip.Addr // addresses in the enclosing IP header
	next                Layer      // nil: the layer is the last
}

var be = binary.BigEndian

// Build encodes layers, outermost first, with correct lengths and checksums. It panics if the
// layers cannot be encoded, which is a mistake in the test.
func Build(layers ...Layer) []byte {
	var at position
	var body []byte
	for i := len(layers) - 1; i >= 0; i-- {
		at.source, at.destination = enclosing(layers[:i])
		at.next = nil
		if i+1 < len(layers) {
			at.next = layers[i+1]
		}
		body = layers[i].append(nil, body, at)
	}
	return body
}

// enclosing returns the addresses of the innermost IP header.
func enclosing(outer []Layer) (source, destination netip.Addr) {
	for i := len(outer) - 1; i >= 0; i-- {
		switch ip := outer[i].(type) {
		case IPv4:
			return ip.Source, ip.Destination
		case IPv6:
			return ip.Source, ip.Destination
		}
	}
	return source, destination
}

func (at position) etherType(set uint16) uint16 {
	if set != 0 {
		return set
	}
	switch next := at.next.(type) {
	case VLAN:
		return next.tpid()
	case IPv4:
		return etherIPv4
	case IPv6:
		return etherIPv6
	}
	panic(fmt.Sprintf("testpkt: no EtherType for %T: set it", at.next))
}

func (at position) protocol(set uint8) uint8 {
	if set != 0 {
		return set
	}
	switch next := at.next.(type) {
	case TCP:
		return ProtoTCP
	case UDP:
		return ProtoUDP
	case SCTP:
		return ProtoSCTP
	case ICMP:
		if next.V6 {
			return ProtoICMPv6
		}
		return ProtoICMP
	}
	panic(fmt.Sprintf("testpkt: no IP protocol for %T: set it", at.next))
}

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
)

func (e Ethernet) append(b, body []byte, at position) []byte {
	b = append(b, e.Destination[:]...)
	b = append(b, e.Source[:]...)
	return append(be.AppendUint16(b, at.etherType(e.Type)), body...)
}

func (v VLAN) tpid() uint16 {
	if v.TPID == 0 {
		return etherVLAN
	}
	return v.TPID
}

func (v VLAN) append(b, body []byte, at position) []byte {
	b = be.AppendUint16(b, v.ID)
	return append(be.AppendUint16(b, at.etherType(v.Protocol)), body...)
}

func (ip IPv4) append(b, body []byte, at position) []byte {
	options := pad(ip.Options, 4)
	if ip.Offset%8 != 0 || len(options) > 40 || !ip.Source.Is4() || !ip.Destination.Is4() {
		panic(fmt.Sprintf("testpkt: no such IPv4 header: %+v", ip))
	}
	start := len(b)
	b = append(b, byte(0x45+len(options)/4), ip.TOS)
	b = be.AppendUint16(b, uint16(20+len(options)+len(body)))
	b = be.AppendUint16(b, ip.ID)
	flags := uint16(ip.Offset / 8)
	if ip.DontFragment {
		flags |= 0x4000
	}
	if ip.MoreFragments {
		flags |= 0x2000
	}
	b = be.AppendUint16(b, flags)
	b = append(b, or(ip.TTL, 64), at.protocol(ip.Protocol), 0, 0)
	b = append(b, ip.Source.AsSlice()...)
	b = append(b, ip.Destination.AsSlice()...)
	b = append(b, options...)
	be.PutUint16(b[start+10:], checksum(b[start:], 0))
	return append(b, body...)
}

func (ip IPv6) append(b, body []byte, at position) []byte {
	if !ip.Source.Is6() || !ip.Destination.Is6() {
		panic(fmt.Sprintf("testpkt: no such IPv6 header: %+v", ip))
	}
	next := at.protocol(ip.Protocol)
	var extensions []byte
	for i := len(ip.Extensions) - 1; i >= 0; i-- {
		extensions = append(ip.Extensions[i].encode(next), extensions...)
		next = ip.Extensions[i].Type
	}
	b = be.AppendUint32(b, 6<<28|uint32(ip.Class)<<20|ip.FlowLabel)
	b = be.AppendUint16(b, uint16(len(extensions)+len(body)))
	b = append(b, next, or(ip.HopLimit, 64))
	b = append(b, ip.Source.AsSlice()...)
	b = append(b, ip.Destination.AsSlice()...)
	return append(append(b, extensions...), body...)
}

func (e Extension) encode(next uint8) []byte {
	size := 2 + len(e.Data)
	var length int
	switch {
	case e.Type == AuthHeader && size%4 == 0:
		length = size/4 - 2
	case e.Type == Fragment && size == 8:
	case size%8 == 0:
		length = size/8 - 1
	default:
		panic(fmt.Sprintf("testpkt: extension header %d of %d bytes", e.Type, size))
	}
	return append([]byte{next, byte(length)}, e.Data...)
}

func (t TCP) append(b, body []byte, at position) []byte {
	options := pad(t.Options, 4)
	if len(options) > 40 {
		panic(fmt.Sprintf("testpkt: %d bytes of TCP options", len(options)))
	}
	start := len(b)
	b = be.AppendUint16(b, t.Source)
	b = be.AppendUint16(b, t.Destination)
	b = be.AppendUint32(b, t.Seq)
	b = be.AppendUint32(b, t.Ack)
	b = append(b, byte((20+len(options))/4<<4), t.Flags)
	b = be.AppendUint16(b, or(t.Window, 64240))
	b = append(b, 0, 0)
	b = be.AppendUint16(b, t.Urgent)
	b = append(append(b, options...), body...)
	be.PutUint16(b[start+16:], checksum(b[start:], at.pseudo(ProtoTCP, len(b)-start)))
	return b
}

func (u UDP) append(b, body []byte, at position) []byte {
	start := len(b)
	b = be.AppendUint16(b, u.Source)
	b = be.AppendUint16(b, u.Destination)
	b = be.AppendUint16(b, uint16(8+len(body)))
	b = append(append(b, 0, 0), body...)
	if !u.NoChecksum {
		be.PutUint16(b[start+6:], udpChecksum(b[start:], at.pseudo(ProtoUDP, len(b)-start)))
	}
	return b
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s SCTP) append(b, body []byte, _ position) []byte {
	start := len(b)
	b = be.AppendUint16(b, s.Source)
	b = be.AppendUint16(b, s.Destination)
	b = be.AppendUint32(b, s.Tag)
	b = append(b, 0, 0, 0, 0)
	for _, chunk := range s.Chunks {
		b = append(b, chunk.Type, chunk.Flags)
		b = be.AppendUint16(b, uint16(4+len(chunk.Value)))
		b = append(b, pad(chunk.Value, 4)...)
	}
	b = append(b, body...)
	binary.LittleEndian.PutUint32(b[start+8:], crc32.Checksum(b[start:], castagnoli))
	return b
}

func (i ICMP) append(b, body []byte, at position) []byte {
	start := len(b)
	b = append(b, i.Type, i.Code, 0, 0)
	b = be.AppendUint16(b, i.ID)
	b = be.AppendUint16(b, i.Seq)
	b = append(b, body...)
	var pseudo uint32
	if i.V6 {
		pseudo = at.pseudo(ProtoICMPv6, len(b)-start)
	}
	be.PutUint16(b[start+2:], checksum(b[start:], pseudo))
	return b
}

func (p Payload) append(b, body []byte, _ position) []byte { return append(append(b, p...), body...) }
func (r Raw) append(b, body []byte, _ position) []byte     { return append(append(b, r...), body...) }

func (at position) pseudo(protocol uint8, length int) uint32 {
	return pseudoHeader(at.source, at.destination, protocol, length)
}

// pseudoHeader returns the checksum of the pseudo header for TCP and UDP.
func pseudoHeader(source, destination netip.Addr, protocol uint8, length int) uint32 {
	return sum(source.AsSlice()) + sum(destination.AsSlice()) + uint32(protocol) + uint32(length)
}

// udpChecksum is like checksum, but never returns 0, which means no checksum.
func udpChecksum(b []byte, start uint32) uint16 {
	return or(checksum(b, start), 0xffff)
}

func checksum(b []byte, start uint32) uint16 {
	s := start + sum(b)
	for s>>16 != 0 {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

func sum(b []byte) (s uint32) {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(be.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func pad(b []byte, to int) []byte {
	return append(append([]byte(nil), b...), make([]byte, (to-len(b)%to)%to)...)
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
