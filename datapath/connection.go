// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"slices"
	"time"
)

// Tuple is one direction of a connection. For ICMP echo the ports are the identifier.
type Tuple struct{ Source, Destination netip.AddrPort }

// Connection is one tracked connection.
type Connection struct {
	Protocol Protocol
	Original Tuple  // as the client sends it
	Reply    Tuple  // as the backend answers it
	State    string // in the words of the API: established, time-wait, unreplied, …
	Tracked  bool   // both directions take the fast path
	Forth    Way    // of the original direction
	Back     Way    // of the answers
	Age      time.Duration
	Idle     time.Duration
	Expires  time.Duration // after so much more idleness
	Sent     Traffic       // original direction
	Received Traffic
	DNAT     bool
	SNAT     bool
	NAT      NATName     // that translates it; of two, the destination's. Empty: none
	NATBack  NATName     // of the source, if it is another NAT
	Service  ServiceName // empty: unknown, or none
	Backend  BackendAddr // the zero value: none
}

// Way is the path of the packets of one direction.
type Way struct {
	Tracked bool       // takes the fast path
	Why     string     // not tracked: the slow-path reason
	Device  string     // tracked: that they leave by
	VLAN    uint16     // tracked: of the tag that they leave with; 0: none
	Peer    PeerName   // tracked: the packets are encapsulated for it; empty: no peer
	Tunnel  TunnelName // of that peer
}

// Traffic counts the packets of one direction; bytes are of whole frames.
type Traffic struct{ Packets, Bytes uint64 }

// ConnectionFilter chooses connections. Zero fields match everything.
type ConnectionFilter struct {
	Source          netip.Prefix // of the original tuple
	SourcePort      uint16
	Destination     netip.Prefix
	DestinationPort uint16
	Protocol        Protocol
	State           string
	Service         ServiceName
	Backend         netip.Prefix
	BackendPort     uint16
	Either          []netip.Addr // of initiator, original destination, or responder
}

// Match reports whether c is chosen.
func (f *ConnectionFilter) Match(c *Connection) bool {
	return matchAddr(f.Source, f.SourcePort, c.Original.Source) &&
		matchAddr(f.Destination, f.DestinationPort, c.Original.Destination) &&
		matchAddr(f.Backend, f.BackendPort, c.Backend) &&
		(f.Protocol == 0 || f.Protocol == c.Protocol) &&
		(f.State == "" || f.State == c.State) &&
		(f.Service == "" || f.Service == c.Service) &&
		(len(f.Either) == 0 || slices.ContainsFunc(f.Either, func(a netip.Addr) bool {
			return a == c.Original.Source.Addr() || a == c.Original.Destination.Addr() || a == c.Reply.Source.Addr()
		}))
}

func matchAddr(prefix netip.Prefix, port uint16, a netip.AddrPort) bool {
	return (!prefix.IsValid() || prefix.Contains(a.Addr())) && (port == 0 || port == a.Port())
}

// Sample is one event of the data plane, chosen by chance: a Drop, a Connection, or a decision,
// dropping or not, of a firewall rule that logs.
type Sample struct {
	Drop       *Drop
	Decision   *Decision
	Connection *Connection
	Opened     bool // of Connection: it began; else it ended
}

// Packet is a packet that was seen on a hook.
type Packet struct {
	Device   string
	Egress   bool
	Protocol Protocol
	Tuple    Tuple
	Length   int // bytes of the frame
}

// Drop is one dropped packet.
type Drop struct {
	Reason string
	Packet
	Service ServiceName // empty: none
	Rule    RuleName    // of the firewall; empty: none
	NAT     NATName     // empty: none
	// Endpoint is the endpoint that owns the device; empty: none.
	Endpoint EndpointName
}

// Decision is the decision of a firewall rule about a packet.
type Decision struct {
	Rule   RuleName
	Action FirewallAction
	Packet
}
