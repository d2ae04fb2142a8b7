// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"time"

	"github.com/loxilight/loxilight/datapath/policy"
)

// NodeCounters count packets since the data plane was set up.
type NodeCounters struct {
	Packets, Bytes uint64            // handled by the fast path
	Verdicts       map[string]uint64 // packets by verdict
	Drops          map[string]uint64 // packets by reason; contains every reason
	Connections    uint64            // opened so far
}

// ServiceCounters count the traffic of a service since its entry was created.
type ServiceCounters struct {
	Packets, Bytes uint64
	Connections    uint64
	Drops          map[string]uint64
	Backends       []BackendCounters
}

// BackendCounters are the counters of one backend of a service.
type BackendCounters struct {
	Backend             BackendAddr
	Connections, Active uint64
	Packets, Bytes      uint64
}

// RuleCounters count the decisions of a rule since it took effect.
type RuleCounters struct {
	Packets, Bytes uint64 // packets whose first match it was; not later packets of a connection
	Connections    uint64 // that it opened
}

// PolicyCounters count the decisions of the rules of a network policy, by [policy.Direction].
type PolicyCounters struct {
	Rules     [2]map[PolicyRule]PolicyDecisions
	Isolation [2]PolicyDecisions
}

// PolicyRule identifies a rule of a network policy in its direction.
type PolicyRule struct {
	ID     string // as in [policy.Rule]
	Action policy.Action
}

// PolicyDecisions are the decisions of a rule, or of isolation, about packets that open connections, that
// are denied, or that belong to no connection. With a staged policy: the decisions that it
// would have made.
type PolicyDecisions struct {
	Connections    uint64    // new connections among the packets that passed
	Packets, Bytes uint64    // whole frames
	Since          time.Time // when counting began; zero: it applies to no packet of an Endpoint of this node
	Last           time.Time // of the last decision; zero: none
}

// NATCounters count the translations of a NAT since it took effect.
type NATCounters struct {
	Packets, Bytes uint64            // of connections that it translated, both ways, as of the last sweep
	Connections    uint64            // that it translated
	Drops          map[string]uint64 // matching packets that were dropped, by reason
}

// PortCounters count packets of a port's device in both directions, as the kernel counts them:
// without packets that the programs redirect to the other end of a veth.
type PortCounters struct {
	Packets, Bytes uint64            // since the device was created
	Drops          map[string]uint64 // by the programs on it, by reason
}
