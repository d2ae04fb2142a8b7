// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// PortRange is the range First to Last, both from 0 to 65535, in host byte order.
type PortRange struct{ First, Last uint16 }

// ICMPMatch matches ICMP or ICMPv6 messages of one type, and of one code unless AnyCode is set.
type ICMPMatch struct {
	Type, Code uint8
	AnyCode    bool
}

// TCPFlagsMatch matches packets whose flags under Mask are exactly Flags, both as
// in the TCP header. A Mask of 0 matches every packet.
type TCPFlagsMatch struct{ Mask, Flags uint8 }

// Match selects packets by their fields on arrival, before any translation. An empty field matches
// everything; one member of each list must match, and all fields must match. A field that a packet
// does not have (ports of a GRE packet, for example) is matched only by the empty list.
type Match struct {
	Source, Destination             []netip.Prefix
	SourceGroups, DestinationGroups []GroupName // besides Source and Destination
	Protocols                       []Protocol
	SourcePorts, Ports              []PortRange // Ports: of the destination
	ICMP                            []ICMPMatch // for the protocol in Protocols, ICMP or ICMPv6
	TCPFlags                        TCPFlagsMatch
	In, Out                         []string // device names; for bridged packets the bridge ports
	VLANs                           []VLANRange
	DSCP                            []uint8 // 0 to 63
}

// GroupName identifies an [AddressGroup].
type GroupName string

// LocalGroup contains the addresses of the node itself, see [Telemetry.LocalAddrs]. No configured
// AddressGroup can have this name.
const LocalGroup GroupName = "(local)"

// AddressGroup is a named set of addresses. Prefixes may overlap.
type AddressGroup struct{ Prefixes []netip.Prefix }

// RuleName identifies a [FirewallRule].
type RuleName string

// FirewallAction defines what happens to a packet that a rule matches.
type FirewallAction uint8

// The actions.
const (
	ActionAllow  FirewallAction = iota
	ActionDeny                  // dropped silently
	ActionReject                // dropped with a reply: RST, or ICMP administratively prohibited
)

// String returns the name of the action in the API.
func (a FirewallAction) String() string { return [...]string{"allow", "deny", "reject"}[a] }

// FirewallHook is the set of packet paths to which a rule applies.
type FirewallHook uint8

// The packet paths.
const (
	HookForward FirewallHook = 1 << iota // routed or bridged through the node
	HookInput                            // for the node itself
	HookOutput                           // from the node itself

	HookAll = HookForward | HookInput | HookOutput
)

// FirewallRule defines the treatment of the packets that it matches. Of the matching rules, the
// rule with the lowest Priority applies; if several have it, the rule whose name sorts first. If no
// rule matches, the packet is allowed.
type FirewallRule struct {
	Priority int32
	Hooks    FirewallHook
	Match    Match
	Action   FirewallAction
	// Stateless rules open no connection, unless the packets that they allow are for a Service or
	// are translated: every packet of either direction is evaluated. Replies to packets that a
	// stateful rule allowed are allowed too.
	Stateless bool
	Log       bool // a sampled event for each decision of the rule
}

// FirewallSet is the complete configuration of the firewall: it takes effect as a whole or not at
// all. A reference to a group that does not exist is reported as a [*RuleError].
type FirewallSet struct {
	Rules  map[RuleName]FirewallRule
	Groups map[GroupName]AddressGroup
	// Exempt traffic is allowed before any rule is evaluated: management access to the node.
	Exempt []Match
}

// Names returns the names of the rules, in no particular order.
func (s FirewallSet) Names() []string { return namesOf(s.Rules) }

func namesOf[K ~string, V any](rules map[K]V) []string {
	names := make([]string, 0, len(rules))
	for name := range rules {
		names = append(names, string(name))
	}
	return names
}
