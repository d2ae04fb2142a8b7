// SPDX-License-Identifier: Apache-2.0

package api

// Match selects packets by their fields on arrival, before any translation. An empty field matches
// everything; at least one member of each list must match, and all fields must match.
type Match struct {
	Source      Words  `json:"source,omitempty"`      // addresses, prefixes, group:NAME
	Destination Words  `json:"destination,omitempty"` // the same
	Protocol    Words  `json:"protocol,omitempty"`    // tcp, udp, sctp, icmp, icmpv6, gre, …, or a number
	Ports       Words  `json:"ports,omitempty"`       // destination ports: 80, "8000-8100"
	SourcePorts Words  `json:"sourcePorts,omitempty"`
	ICMP        Words  `json:"icmp,omitempty"`     // "echo-request", 3, "3/4": type, or type/code
	TCPFlags    string `json:"tcpFlags,omitempty"` // "syn,!ack": flags that must be set, and with ! flags that must not be set
	In          Words  `json:"in,omitempty"`       // devices
	Out         Words  `json:"out,omitempty"`
	VLANs       Words  `json:"vlans,omitempty"` // 100, "200-299"
	DSCP        Words  `json:"dscp,omitempty"`  // 0 to 63, or cs0 to cs7, af11 to af43, ef
}

// FirewallRuleSpec defines the treatment of the packets that it matches.
type FirewallRuleSpec struct {
	Priority *int32 `json:"priority,omitempty"` // lower first; default 1000
	// Hooks: forward, input, output. Default: all hooks at which the fields of the match are
	// known.
	Hooks    Words  `json:"hooks,omitempty"`
	Match    *Match `json:"match,omitempty"`    // nil: every packet
	Action   string `json:"action"`             // allow, deny, reject
	Stateful *bool  `json:"stateful,omitempty"` // default true: replies are allowed too
	Log      bool   `json:"log,omitempty"`
}

// NATSpec translates addresses of the connections that it matches.
type NATSpec struct {
	Type     string     `json:"type"`               // snat, dnat, masquerade
	Priority *int32     `json:"priority,omitempty"` // lower first; default 1000
	Match    *Match     `json:"match,omitempty"`    // nil: every connection
	To       *NATTarget `json:"to,omitempty"`
	OneToOne bool       `json:"oneToOne,omitempty"` // each address is mapped to an address of its own, prefix by prefix
	Mapping  string     `json:"mapping,omitempty"`  // address-and-port-dependent (default), endpoint-independent
	// Filtering defines which remote hosts may use a mapping; values as for Mapping.
	Filtering string `json:"filtering,omitempty"`
	PortBlock int    `json:"portBlock,omitempty"` // ports that an address gets at a time; 0: single ports
	Log       bool   `json:"log,omitempty"`
}

// NATTarget is the new address and port of a translation.
type NATTarget struct {
	Addresses Words `json:"addresses,omitempty"` // addresses, prefixes, ranges
	Ports     Words `json:"ports,omitempty"`
}

// AddressGroupSpec is a set of addresses under a name, for rules to refer to.
type AddressGroupSpec struct {
	Members []Member `json:"members,omitempty"`
}
