// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// NATName identifies a [NAT].
type NATName string

// NATType defines which address is translated, and how.
type NATType uint8

// The types.
const (
	SNAT       NATType = iota // the source, to an address of a pool
	DNAT                      // the destination
	Masquerade                // the source, to the address of the egress device
)

// NATBehaviour defines how a mapping, or its filter, depends on the remote host (RFC 4787, sections
// 4.1 and 5).
type NATBehaviour uint8

// The behaviours.
const (
	AddressAndPortDependent NATBehaviour = iota
	EndpointIndependent
)

// NAT is one rule of address translation. Of the rules of one direction (source, destination) that
// match a connection's first packet, the rule with the lowest Priority applies; if several have it,
// the rule whose name sorts first. In the Match, In is for DNAT and Out for the other types; both
// fields may be empty.
type NAT struct {
	Type     NATType
	Priority int32
	Match    Match
	// Addresses are the new addresses: a pool for SNAT, one for DNAT (or several, selected by a
	// hash of the connection). With OneToOne, there is one prefix for each prefix of Match.Source
	// (SNAT) or Match.Destination (DNAT), of the same length, and the host bits stay.
	Addresses []netip.Prefix
	// Ports is the range of source ports (SNAT, Masquerade; empty: 1024 to 65535), or the new
	// destination port (DNAT: one range as long as the range in Match.Ports, port by port, or a
	// single port; empty: the port stays).
	Ports     []PortRange
	OneToOne  bool
	Mapping   NATBehaviour // SNAT, Masquerade
	Filtering NATBehaviour // SNAT, Masquerade; EndpointIndependent needs an equal Mapping
	// BlockSize is how many ports are allocated to an inner address at a time: a power of two from
	// 64 to 4096; 0: ports are allocated one by one.
	BlockSize uint16
	Log       bool // write a log line at the start and end of each block or mapping
	// Unannounced prevents announcement of the rule's addresses by ARP or neighbour discovery.
	Unannounced bool
}

// NATSet is the complete configuration of NAT: it takes effect as a whole or not at all. Groups are
// as in a [FirewallSet].
type NATSet struct {
	Rules  map[NATName]NAT
	Groups map[GroupName]AddressGroup
	// Uplinks are the device names that rules of the set contain because the devices are uplinks.
	// An uplink keeps such a name until a set with its new name takes effect.
	Uplinks []string
}

// Names returns the names of the rules, in no particular order.
func (s NATSet) Names() []string { return namesOf(s.Rules) }
