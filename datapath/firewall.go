// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// PortRange is First to Last, both of 0 to 65535, in host byte order.
type PortRange struct{ First, Last uint16 }

// ICMPMatch is a type of ICMP or ICMPv6 messages, and a code unless AnyCode.
type ICMPMatch struct {
	Type, Code uint8
	AnyCode    bool
}

// TCPFlagsMatch matches packets whose flags under Mask are exactly Flags, both as
// in the TCP header. A Mask of 0 matches every packet.
type TCPFlagsMatch struct{ Mask, Flags uint8 }

// Match selects packets by their fields on arrival, before any translation. An empty field matches
// everything; of a list one member must match, and all fields must match. A field that a packet
// does not have (ports of a GRE packet, say) is matched by the empty list only.
type Match struct {
	Source, Destination             []netip.Prefix
	SourceGroups, DestinationGroups []GroupName // beside the prefixes of Source and Destination
	Protocols                       []Protocol
	SourcePorts, Ports              []PortRange // Ports: of the destination
	ICMP                            []ICMPMatch // of the protocol, ICMP or ICMPv6, that Protocols names
	TCPFlags                        TCPFlagsMatch
	In, Out                         []string // devices, by name; of bridged packets the bridge's ports
	VLANs                           []VLANRange
	DSCP                            []uint8 // 0 to 63
}

// GroupName identifies an [AddressGroup].
type GroupName string

// LocalGroup contains the addresses of the node itself, see [Telemetry.LocalAddrs]. No configured
// AddressGroup can have its name.
const LocalGroup GroupName = "(local)"

// AddressGroup is a set of addresses under a name. Prefixes may overlap.
type AddressGroup struct{ Prefixes []netip.Prefix }

// RuleName identifies a [FirewallRule].
type RuleName string

// FirewallAction is the treatment of a packet that a rule matches.
type FirewallAction uint8

// The actions.
const (
	ActionAllow  FirewallAction = iota
	ActionDeny                  // dropped silently
	ActionReject                // dropped, and answered: RST, else ICMP administratively prohibited
)

// String returns the name of an action, as operators know it.
func (a FirewallAction) String() string { return [...]string{"allow", "deny", "reject"}[a] }

// FirewallHook is a set of the ways of a packet that a rule is about.
type FirewallHook uint8

// The ways of a packet.
const (
	HookForward FirewallHook = 1 << iota // routed or bridged through the node
	HookInput                            // for the node itself
	HookOutput                           // of the node itself

	HookAll = HookForward | HookInput | HookOutput
)

// FirewallRule defines the treatment of the packets that it matches. Of the matching rules, the
// rule with the lowest Priority decides, among equals the rule whose name sorts first; if no rule
// matches, the packet is allowed.
type FirewallRule struct {
	Priority int32
	Hooks    FirewallHook
	Match    Match
	Action   FirewallAction
	// Stateless rules open no connection, unless the packets that they allow are for a Service or
	// are translated: every packet of either direction is evaluated. Answers to packets that a
	// stateful rule allowed are allowed too.
	Stateless bool
	Log       bool // a sampled event for each decision, with the rule's name
}

// FirewallSet is the complete configuration of the firewall: it is in force as a whole or not at
// all. A rule that refers to a group that does not exist is a [*RuleError].
type FirewallSet struct {
	Rules  map[RuleName]FirewallRule
	Groups map[GroupName]AddressGroup
	// Exempt is allowed before any rule is evaluated: access for the management of the node.
	Exempt []Match
}

// Names returns the names of the rules, in no order.
func (s FirewallSet) Names() []string { return namesOf(s.Rules) }

func namesOf[K ~string, V any](rules map[K]V) []string {
	names := make([]string, 0, len(rules))
	for name := range rules {
		names = append(names, string(name))
	}
	return names
}
