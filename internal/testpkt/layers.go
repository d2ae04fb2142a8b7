// SPDX-License-Identifier: Apache-2.0

// Package testpkt builds and parses packets for tests, as bytes with correct checksums, and
// describes how two packets differ. It shares no code with the code under test. It sends and
// receives nothing.
package testpkt

import "net/netip"

// IP protocol numbers.
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
	ProtoSCTP   = 132
)

// A Layer is one header, or the payload, of a packet.
type Layer interface {
	// append adds the layer to b; body is its encoded payload.
	append(b, body []byte, at position) []byte
}

// Ethernet is the Ethernet header. Unless it is set, the type follows from the next layer.
type Ethernet struct {
	Source, Destination [6]byte
	Type                uint16
}

// VLAN is one tag. TPID 0 means 0x8100.
type VLAN struct {
	ID       uint16 // with the priority in the upper four bits
	TPID     uint16
	Protocol uint16 // 0: determined by the next layer
}

// IPv4 is an IPv4 header. Zero TTL means 64.
type IPv4 struct {
	Source, Destination netip.Addr
	TTL, TOS            uint8
	ID                  uint16
	DontFragment        bool
	MoreFragments       bool
	Offset              int    // offset of a fragment, in bytes
	Options             []byte // padded with zeros to a multiple of four
	Protocol            uint8  // 0: determined by the next layer
}

// IPv6 is an IPv6 header with its extension headers. Zero HopLimit means 64.
type IPv6 struct {
	Source, Destination netip.Addr
	HopLimit, Class     uint8
	FlowLabel           uint32
	Extensions          []Extension
	Protocol            uint8 // after the extensions; 0: determined by the next layer
}

// Types of [Extension].
const (
	HopByHop    = 0
	Routing     = 43
	Fragment    = 44
	AuthHeader  = 51
	Destination = 60
)

// Extension is an IPv6 extension header. Data follows the next header and length bytes; together
// their size must be a multiple of eight (AuthHeader: four).
type Extension struct {
	Type uint8
	Data []byte
}

// FragmentHeader is the extension header of a fragment; offset is in bytes.
func FragmentHeader(id uint32, offset int, more bool) Extension {
	word := uint16(offset)
	if more {
		word |= 1
	}
	return Extension{Fragment, []byte{byte(word >> 8), byte(word),
		byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}}
}

// TCP flags.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
)

// TCP is a TCP header. Zero Window means 64240.
type TCP struct {
	Source, Destination uint16
	Seq, Ack            uint32
	Flags               uint8
	Window, Urgent      uint16
	Options             []byte // padded with zeros to a multiple of four
}

// UDP is a UDP header.
type UDP struct {
	Source, Destination uint16
	NoChecksum          bool // send checksum 0, which means none
}

// SCTP is an SCTP common header with its chunks.
type SCTP struct {
	Source, Destination uint16
	Tag                 uint32
	Chunks              []Chunk
}

// Chunk is one SCTP chunk; it is padded to a multiple of four.
type Chunk struct {
	Type, Flags uint8
	Value       []byte
}

// ICMP types.
const (
	EchoReply              = 0
	DestinationUnreachable = 3
	EchoRequest            = 8
	TimeExceeded           = 11
	V6Unreachable          = 1
	V6PacketTooBig         = 2
	V6TimeExceeded         = 3
	V6EchoRequest          = 128
	V6EchoReply            = 129
)

// ICMP is an ICMP or, with V6, an ICMPv6 header. The payload of an error is the packet that caused
// it, in [Raw].
type ICMP struct {
	V6         bool
	Type, Code uint8
	ID, Seq    uint16 // bytes 4 to 7, of any meaning
}

// FragmentationNeeded returns the ICMP error that reports an MTU.
func FragmentationNeeded(mtu uint16) ICMP {
	return ICMP{Type: DestinationUnreachable, Code: 4, Seq: mtu}
}

// PacketTooBig returns the ICMPv6 error that reports an MTU.
func PacketTooBig(mtu uint32) ICMP {
	return ICMP{V6: true, Type: V6PacketTooBig, ID: uint16(mtu >> 16), Seq: uint16(mtu)}
}

// Error reports whether i is an error, whose payload is a packet.
func (i ICMP) Error() bool {
	if i.V6 {
		return i.Type < 128
	}
	return i.Type == 3 || i.Type == 4 || i.Type == 5 || i.Type == 11 || i.Type == 12
}

// Payload is application data.
type Payload string

// Raw is verbatim bytes, such as an embedded packet or a malformed header.
type Raw []byte
