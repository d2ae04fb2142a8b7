// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// NATName identifies a [NAT].
type NATName string

// NATType is which address is translated, and how.
type NATType uint8

// The types.
const (
	SNAT       NATType = iota // the source, to an address of a pool
	DNAT                      // the destination
	Masquerade                // the source, to the address of the device that the packet leaves by
)

// NATBehaviour is how much a mapping, or its filter, depends on the remote host (RFC 4787,
// sections 4.1 and 5).
type NATBehaviour uint8

// The behaviours.
const (
	AddressAndPortDependent NATBehaviour = iota
	EndpointIndependent
)

// NAT is one rule of address translation. Of the rules of one direction (source, destination) that
// match a connection's first packet, the rule with the lowest Priority applies, among equals the
// rule whose name sorts first. In the Match, In is for DNAT and Out for the others; both fields
// may be empty.
type NAT struct {
	Type     NATType
	Priority int32
	Match    Match
	// Addresses are the new addresses: of SNAT a pool, of DNAT one (or several, chosen by a hash
	// of the connection). With OneToOne, there is one prefix for each prefix of Match.Source
	// (SNAT) or Match.Destination (DNAT), of the same length, and the bits behind it stay.
	Addresses []netip.Prefix
	// Ports is the range of source ports (SNAT, Masquerade; empty: 1024 to 65535), or the new
	// destination port (DNAT: one range as long as the range in Match.Ports, port by port, or a
	// single port; empty: the port stays).
	Ports     []PortRange
	OneToOne  bool
	Mapping   NATBehaviour // SNAT, Masquerade
	Filtering NATBehaviour // SNAT, Masquerade; EndpointIndependent needs such a Mapping
	// BlockSize is how many ports an inner address gets at a time: a power of two from 64 to 4096;
	// 0: ports are allocated one by one.
	BlockSize uint16
	Log       bool // an event for each block, or each mapping, that begins and ends
	// Unannounced has no address of the rule announced by ARP or neighbour discovery.
	Unannounced bool
}

// NATSet is all translation of addresses, as one: it is in force whole or not at all.
// Groups are as in a [FirewallSet].
type NATSet struct {
	Rules  map[NATName]NAT
	Groups map[GroupName]AddressGroup
	// Uplinks are the names of uplinks that rules of the set name because they are uplinks. An
	// uplink keeps a name that is among them until a set with its new name is in force.
	Uplinks []string
}

// Names returns the names of the rules, in no order.
func (s NATSet) Names() []string { return namesOf(s.Rules) }
