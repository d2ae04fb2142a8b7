// SPDX-License-Identifier: Apache-2.0

package api

// ConnectionFilter selects connections; every field that is set must match.
type ConnectionFilter struct {
	All         bool   `json:"all,omitempty"`         // for flush: select all connections
	Source      string `json:"source,omitempty"`      // address, prefix or address:port of the client
	Destination string `json:"destination,omitempty"` // the same, for the original destination
	Protocol    string `json:"protocol,omitempty"`    // tcp, udp, sctp, icmp, icmpv6
	State       string `json:"state,omitempty"`       // see [Connection.State]
	Service     string `json:"service,omitempty"`     // name
	Backend     string `json:"backend,omitempty"`     // address or address:port
	Endpoint    string `json:"endpoint,omitempty"`    // name
}

// ConnectionsListParams are the parameters of connections.list. Connections are listed in table
// order; only connections that are opened or closed in the meantime may be missed.
type ConnectionsListParams struct {
	Filter   ConnectionFilter `json:"filter,omitzero"`
	Limit    int              `json:"limit,omitempty"`
	Continue string           `json:"continue,omitempty"`
	Policies bool             `json:"policies,omitempty"` // add [Connection.Policies]
}

// ConnectionsListResult is the result of connections.list.
type ConnectionsListResult struct {
	Items    []Connection `json:"items"`
	Continue string       `json:"continue,omitempty"`
}

// ConnectionsFlushParams are the parameters of connections.flush. An empty filter is rejected:
// {all: true} flushes all.
type ConnectionsFlushParams struct {
	Filter ConnectionFilter `json:"filter"`
}

// ConnectionsFlushResult is the result of connections.flush.
type ConnectionsFlushResult struct {
	Flushed uint64 `json:"flushed"` // connections, not entries
}

// Way is the path that packets in one direction of a connection take.
type Way struct {
	Path   string `json:"path"`             // fast, slow
	Why    string `json:"why,omitempty"`    // slow-path reason, in words
	Device string `json:"device,omitempty"` // outgoing device, if the path is fast
	VLAN   uint16 `json:"vlan,omitempty"`   // VLAN tag of outgoing packets; absent: untagged
	Peer   string `json:"peer,omitempty"`   // the Peer to which packets are tunnelled
	Tunnel string `json:"tunnel,omitempty"` // name of that Peer's Tunnel
}

// Connection is one tracked connection.
type Connection struct {
	Protocol string `json:"protocol"`
	Original Tuple  `json:"original"` // as the client sends it
	Reply    Tuple  `json:"reply"`    // as the backend answers it
	// State: syn-sent, syn-received, established, fin-wait, time-wait, closed
	// (TCP, SCTP); unreplied, replied (others).
	State    string   `json:"state"`
	Path     string   `json:"path"`           // fast: both directions take the fast path; slow: through the kernel's stack
	Forth    Way      `json:"forth,omitzero"` // path of the original direction
	Back     Way      `json:"back,omitzero"`  // path of the reply direction
	Age      Duration `json:"age"`
	Idle     Duration `json:"idle"`
	Expires  Duration `json:"expires"` // remaining idle time
	Sent     Traffic  `json:"sent"`    // original direction
	Received Traffic  `json:"received"`
	NAT      string   `json:"nat"` // dnat, snat, dnat+snat
	// TranslatedBy names the NAT objects that translate the connection, its destination NAT first.
	TranslatedBy []string `json:"translatedBy,omitempty"`
	// Rule is the FirewallRule that allows the connection, or that denies it since the rules were
	// changed. Empty: none, or unknown.
	Rule    string `json:"rule,omitempty"`
	Service string `json:"service,omitempty"`
	Backend string `json:"backend,omitempty"` // address:port
	// From is the Endpoint that opened the connection, To the Endpoint that answers; nil: no
	// Endpoint has the address.
	From *ConnectionSide `json:"from,omitempty"`
	To   *ConnectionSide `json:"to,omitempty"`
	// Policies are what decides about the connection at present: of From for egress, of To for ingress.
	// A side about which no Policy decides is omitted.
	Policies []DecidingRule `json:"policies,omitempty"`
}

// ConnectionSide is the Endpoint that currently has the address of one side of a connection.
type ConnectionSide struct {
	Endpoint  string `json:"endpoint"`            // name of the object
	Namespace string `json:"namespace,omitempty"` // namespace of its pod
	Pod       string `json:"pod,omitempty"`
}

// Tuple is one direction of a connection. For ICMP echo the ports are the identifier.
type Tuple struct {
	Source      string `json:"source"` // address:port
	Destination string `json:"destination"`
}

// Traffic counts the packets of one direction.
type Traffic struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // counting whole frames
}
