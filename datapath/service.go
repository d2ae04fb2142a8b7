// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"time"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The tracked protocols.
const (
	ICMP   Protocol = 1
	TCP    Protocol = 6
	UDP    Protocol = 17
	ICMPv6 Protocol = 58
	SCTP   Protocol = 132
)

var protocolNames = map[Protocol]string{ICMP: "icmp", TCP: "tcp", UDP: "udp", ICMPv6: "icmpv6", SCTP: "sctp"}

// String returns the lower-case name of p, or its number.
func (p Protocol) String() string {
	if s, ok := protocolNames[p]; ok {
		return s
	}
	return fmt.Sprintf("%d", uint8(p))
}

// ParseProtocol is the inverse of [Protocol.String] for names.
func ParseProtocol(s string) (Protocol, bool) {
	for p, name := range protocolNames {
		if name == s {
			return p, true
		}
	}
	return 0, false
}

// ServiceName identifies a [Service].
type ServiceName string

// Frontend is an address to which clients connect.
type Frontend struct {
	Addr     netip.AddrPort
	Protocol Protocol
}

// String returns address:port/protocol.
func (f Frontend) String() string { return f.Addr.String() + "/" + f.Protocol.String() }

// BackendAddr is the address on which a backend listens. The frontend defines the protocol.
type BackendAddr = netip.AddrPort

// BackendState defines which connections a backend receives.
type BackendState uint8

// States of a backend.
const (
	BackendActive   BackendState = iota // new connections
	BackendDraining                     // only existing connections, unless no backend is active
	BackendDown                         // nothing: its UDP connections end once another backend of its family is not down
)

// Backend is one server of a service.
type Backend struct {
	Addr   BackendAddr
	Weight uint16 // share of new connections; 0: like draining
	State  BackendState
}

// Algorithm defines how a backend is selected for a new connection.
type Algorithm uint8

// The algorithms.
const (
	Maglev           Algorithm = iota // consistent hash of the 5-tuple
	Random                            // weighted
	RoundRobin                        // weighted, interleaved
	LeastConnections                  // fewest tracked connections relative to its weight
	SourceHash                        // consistent hash of the client's address
)

// SourceMode defines which source address a backend sees.
type SourceMode uint8

// The source modes.
const (
	SourceAuto SourceMode = iota // SNAT if the reply would not return through the node
	SourceKeep                   // the client's address
	SourceSNAT                   // the node's address
)

// Service distributes the connections to its frontends among its backends.
type Service struct {
	Frontends    []Frontend
	Backends     []Backend // a frontend uses the backends of its own family
	Algorithm    Algorithm
	Affinity     time.Duration // client affinity; 0 turns it off; whole seconds
	Source       SourceMode
	SourceRanges []netip.Prefix // allowed clients; empty: all
	IdleTimeout  IdleTimeout
	Diverts      []Divert
	Silent       bool       // without a backend, new connections are dropped rather than rejected
	Announce     bool       // the frontends' addresses are announced on uplinks
	OtherPorts   OtherPorts // of the frontends' addresses
}

// Divert balances the connections of some clients as if they were for another service. If several
// match, the one with the longest prefix applies.
type Divert struct {
	Sources []netip.Prefix
	Service ServiceName
}

// OtherPorts defines what happens to packets to a frontend's address that belong to no service. It
// does not affect addresses of the node itself. If several services share an address, the strictest
// setting applies.
type OtherPorts uint8

// In ascending order of strictness.
const (
	OtherPortsPass OtherPorts = iota
	OtherPortsReject
	OtherPortsDrop
)

// Cost is the number of table entries that an object uses. Rules counts firewall and NAT rules
// together.
type Cost struct {
	Frontends, Backends, Ranges, Rules, Prefixes, Entities int
	Names                                                  int // in Policies; a name counts each time

	FirewallRules, NATs int // included in Rules
}

// Add returns the sum of c and d.
func (c Cost) Add(d Cost) Cost {
	return Cost{
		c.Frontends + d.Frontends, c.Backends + d.Backends, c.Ranges + d.Ranges,
		c.Rules + d.Rules, c.Prefixes + d.Prefixes, c.Entities + d.Entities, c.Names + d.Names,
		c.FirewallRules + d.FirewallRules, c.NATs + d.NATs,
	}
}

// Sub returns c less d.
func (c Cost) Sub(d Cost) Cost {
	return Cost{
		c.Frontends - d.Frontends, c.Backends - d.Backends, c.Ranges - d.Ranges,
		c.Rules - d.Rules, c.Prefixes - d.Prefixes, c.Entities - d.Entities, c.Names - d.Names,
		c.FirewallRules - d.FirewallRules, c.NATs - d.NATs,
	}
}

// Cost returns the largest number of table entries that s uses in any state of its backends.
func (s *Service) Cost() Cost {
	ranges := len(s.SourceRanges)
	for _, d := range s.Diverts {
		ranges += len(d.Sources)
	}
	return Cost{
		Frontends: len(s.Frontends),
		Backends:  len(s.Backends),
		Ranges:    ranges,
	}
}

// slotSizes are primes, as Maglev requires, each about twice the previous one.
var slotSizes = []int{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071}

// SlotCount returns the size of the selection table for a number of backends of one family: 1 for
// one backend, otherwise the first prime in slotSizes that is at least 100 times as large (Eisenbud
// et al., "Maglev", NSDI 2016, section 5.3: the larger the table, the more even the distribution),
// but no more than 131071.
func SlotCount(backends int) int {
	if backends <= 1 {
		return backends
	}
	for _, n := range slotSizes {
		if n >= 100*backends {
			return n
		}
	}
	return slotSizes[len(slotSizes)-1]
}
