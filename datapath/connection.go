// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"slices"
	"time"

	"github.com/loxilight/loxilight/datapath/policy"
)

// Tuple is one direction of a connection. For ICMP echo the ports are the identifier.
type Tuple struct{ Source, Destination netip.AddrPort }

// Connection is one tracked connection.
type Connection struct {
	Protocol Protocol
	Original Tuple  // as sent by the client
	Reply    Tuple  // as sent by the backend
	State    string // as named in the API: established, time-wait, unreplied, …
	Tracked  bool   // both directions take the fast path
	Forth    Way    // of the original direction
	Back     Way    // of the replies
	Age      time.Duration
	Idle     time.Duration
	Expires  time.Duration // after this additional idle time
	Sent     Traffic       // original direction
	Received Traffic
	DNAT     bool
	SNAT     bool
	FromNode bool        // the client is this node itself
	NAT      NATName     // that translates the connection; of two, the destination NAT. Empty: none
	NATBack  NATName     // the source NAT, if different
	Rule     RuleName    // the FirewallRule that allows it, or denies it by now. Empty: none, or unknown
	Service  ServiceName // empty: unknown, or none
	Backend  BackendAddr // the zero value: none
}

// Way is the path that the packets of one direction take.
type Way struct {
	Tracked bool       // takes the fast path
	Why     string     // otherwise: the slow-path reason
	Device  string     // tracked: the egress device
	VLAN    uint16     // tracked: the VLAN on egress; 0: untagged
	Peer    PeerName   // tracked: the packets are encapsulated for it; empty: no peer
	Tunnel  TunnelName // to that peer
}

// Traffic counts the packets of one direction; bytes count whole frames.
type Traffic struct{ Packets, Bytes uint64 }

// ConnectionFilter selects connections. Zero fields match everything.
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

// Match reports whether f matches c.
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

// Sample is one randomly sampled event of the data plane: a Drop, a Connection, or decisions of a
// firewall rule or of network policies with logging, whether or not they drop.
type Sample struct {
	Drop       *Drop
	Decision   *Decision
	Policies   []PolicyDecision // with logging; by direction, each at most once
	Packet     *Packet          // to which Policies refer
	Connection *Connection
	Opened     bool // Connection was opened; otherwise it ended
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
	Policy   *PolicyDecision // nil: no network policy dropped it, or it is unknown which
}

// PolicyDecision is the decision of a network policy about a packet.
type PolicyDecision struct {
	Endpoint EndpointName // to whose traffic the policy applies
	// FormerNames are names in policies to which the destination of denied traffic has belonged, until
	// its time was over; separated by spaces.
	FormerNames string
	policy.Verdict
}

// Decision is the decision of a firewall rule for a packet.
type Decision struct {
	Rule   RuleName
	Action FirewallAction
	Packet
}
