// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"time"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that are tracked.
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

// ParseProtocol is the reverse of [Protocol.String] for the names.
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

// Frontend is an address that clients connect to.
type Frontend struct {
	Addr     netip.AddrPort
	Protocol Protocol
}

// String returns address:port/protocol.
func (f Frontend) String() string { return f.Addr.String() + "/" + f.Protocol.String() }

// BackendAddr is where a backend listens. The protocol is the frontend's.
type BackendAddr = netip.AddrPort

// BackendState is which connections a backend gets.
type BackendState uint8

// States of a backend.
const (
	BackendActive   BackendState = iota // new connections
	BackendDraining                     // only existing connections, unless no backend is active
	BackendDown                         // nothing: its connections of UDP end, once another one of its family is not down
)

// Backend is one server of a service.
type Backend struct {
	Addr   BackendAddr
	Weight uint16 // share of new connections; 0: as draining
	State  BackendState
}

// Algorithm is how a backend is chosen for a new connection.
type Algorithm uint8

// The algorithms.
const (
	Maglev           Algorithm = iota // consistent hash of the 5-tuple
	Random                            // weighted
	RoundRobin                        // weighted, interleaved
	LeastConnections                  // fewest tracked connections for its weight
	SourceHash                        // consistent hash of the client's address
)

// SourceMode is which source address a backend sees.
type SourceMode uint8

// The source modes.
const (
	SourceAuto SourceMode = iota // SNAT if the reply would not return through the node
	SourceKeep                   // the client's
	SourceSNAT                   // the node's
)

// Service spreads the connections to its frontends over its backends.
type Service struct {
	Frontends    []Frontend
	Backends     []Backend // a frontend uses the backends of its own family
	Algorithm    Algorithm
	Affinity     time.Duration // client affinity; 0 turns it off; whole seconds
	Source       SourceMode
	SourceRanges []netip.Prefix // clients let in; empty: all
	IdleTimeout  IdleTimeout
	Diverts      []Divert
	Silent       bool       // without a backend new connections are dropped, not refused
	Announce     bool       // the frontends' addresses are answered for on uplinks
	OtherPorts   OtherPorts // of the frontends' addresses
}

// Divert has clients served by the backends of another service, as it serves its own.
// Of several that match the one with the longest prefix decides.
type Divert struct {
	Sources []netip.Prefix
	Service ServiceName
}

// OtherPorts is the treatment of packets to an address of a frontend that belong to no service. It
// does not affect addresses of the node itself. If several services have an address, the strictest
// setting applies.
type OtherPorts uint8

// From the least strict on.
const (
	OtherPortsPass OtherPorts = iota
	OtherPortsReject
	OtherPortsDrop
)

// Cost is how many table entries an object uses. Rules counts firewall and NAT rules together.
type Cost struct {
	Frontends, Backends, Slots, Ranges, Rules, Prefixes int

	FirewallRules, NATs int // of Rules
}

// Add returns the sum of c and d.
func (c Cost) Add(d Cost) Cost {
	return Cost{
		c.Frontends + d.Frontends, c.Backends + d.Backends, c.Slots + d.Slots, c.Ranges + d.Ranges,
		c.Rules + d.Rules, c.Prefixes + d.Prefixes, c.FirewallRules + d.FirewallRules, c.NATs + d.NATs,
	}
}

// Sub returns c less d.
func (c Cost) Sub(d Cost) Cost {
	return Cost{
		c.Frontends - d.Frontends, c.Backends - d.Backends, c.Slots - d.Slots, c.Ranges - d.Ranges,
		c.Rules - d.Rules, c.Prefixes - d.Prefixes, c.FirewallRules - d.FirewallRules, c.NATs - d.NATs,
	}
}

// Cost returns the most that s takes of the tables in any state of its backends.
func (s *Service) Cost() Cost {
	var n4, n6 int
	ranges := len(s.SourceRanges)
	for _, d := range s.Diverts {
		ranges += len(d.Sources)
	}
	for _, b := range s.Backends {
		if b.Addr.Addr().Is4() {
			n4++
		} else {
			n6++
		}
	}
	return Cost{
		Frontends: len(s.Frontends),
		Backends:  len(s.Backends),
		Slots:     SlotCount(n4) + SlotCount(n6),
		Ranges:    ranges,
	}
}

// slotSizes are primes, as Maglev needs them, each about twice the one before.
var slotSizes = []int{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071}

// SlotCount returns the size of the selection table for so many backends of one
// family: 1 for one, else the first prime in the row that is at least 100 times
// as large (Eisenbud et al., "Maglev", NSDI 2016, section 5.3: the larger the
// table, the more even the spread), but no more than 131071.
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
