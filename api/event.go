// SPDX-License-Identifier: Apache-2.0

package api

import "encoding/json"

// Topics of events. A message on the events socket is the topic, a space, and
// one JSON object, which begins with the fields of [Event].
const (
	TopicChanges     = "changes"     // ChangeEvent
	TopicStatus      = "status"      // StatusEvent
	TopicDrops       = "drops"       // DropEvent, sampled
	TopicConnections = "connections" // ConnectionEvent, sampled
	TopicFirewall    = "firewall"    // FirewallEvent, sampled
	TopicPolicy      = "policy"      // PolicyEvent, sampled
	TopicHello       = "hello"       // HelloEvent: the first message of each connection, and repeated after events
)

// Topics lists the published topics; hello is sent without a subscription.
var Topics = []string{TopicChanges, TopicStatus, TopicDrops, TopicConnections, TopicFirewall, TopicPolicy}

// Event is common to all events. Seq counts a topic's events from 1 at the start of the daemon,
// without gaps: a gap means lost events.
type Event struct {
	Seq uint64 `json:"seq"`
}

// SetSeq numbers the event.
func (e *Event) SetSeq(seq uint64) { e.Seq = seq }

// HelloEvent is the first event of a subscriber: from then on, it sees every event, or a gap in the
// events' numbers. It is repeated each second for ten seconds after an event, so that a subscriber
// notices the loss of the last events. A HelloEvent has no number itself, and clients do not see it
// unless they subscribe to its topic.
type HelloEvent struct {
	// Last numbers the latest event of each topic so far; a topic without events is missing. State
	// that is read after the hello is at least as new as these events.
	Last map[string]uint64 `json:"last"`
}

// ChangeEvent reports a committed change of one object.
type ChangeEvent struct {
	Event
	Revision uint64 `json:"revision"`
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Action   string `json:"action"` // created, updated, deleted
}

// StatusEvent reports that the state of an object, or the health of a backend, has changed. Without
// kind and name, it concerns a change that must be confirmed; with the kind Table, a table of the
// data plane that fills up, or no longer does.
type StatusEvent struct {
	Event
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	State   string `json:"state"` // state of a change that must be confirmed: waiting, confirmed, rolled-back
	Message string `json:"message,omitempty"`
	Backend string `json:"backend,omitempty"` // address:port, for the health of a backend
	// Revision of the change that is to be confirmed.
	Revision uint64 `json:"revision,omitempty"`
}

// The kind of a [StatusEvent] about a table, and its states.
const (
	EventTable   = "Table"
	TableFilling = "filling" // at least 90 % full, or full within 15 minutes
	TableOK      = "ok"
)

// DropEvent reports one dropped packet. Events are a random sample: the counters count all drops.
type DropEvent struct {
	Event
	Reason string `json:"reason"`
	Packet
	Service string `json:"service,omitempty"`
	Rule    string `json:"rule,omitempty"` // FirewallRule that does not allow it
	NAT     string `json:"nat,omitempty"`  // NAT that should have translated it
	// Endpoint is the Endpoint on whose device the packet arrived, or was to be sent.
	Endpoint string        `json:"endpoint,omitempty"`
	Policy   *DecidingRule `json:"policy,omitempty"` // that does not allow it; nil: none, or it is unknown which
	Length   int           `json:"length"`           // bytes of the frame
}

// DecidingRule is the Policy, and its rule, that decided about a packet.
type DecidingRule struct {
	Endpoint  string `json:"endpoint"`  // to whose traffic the Policy applies
	Direction string `json:"direction"` // ingress: the packet was for the Endpoint; egress: the Endpoint sent it
	Tier      string `json:"tier,omitempty"`
	Policy    string `json:"policy,omitempty"` // empty: the Endpoint has no Entity, and its network requires one
	// Rule is the name of the rule, or its number from 1; empty: isolation, since no rule decided.
	Rule string `json:"rule,omitempty"`
	// FormerNames are names in Policies to which the destination of denied traffic belonged until its TTL
	// and the grace period ended.
	FormerNames []string `json:"formerNames,omitempty"`
}

// FirewallEvent reports a decision of a FirewallRule that logs.
type FirewallEvent struct {
	Event
	Rule   string `json:"rule"`
	Action string `json:"action"` // allow, deny, reject
	Packet
	Length int `json:"length"` // bytes of the frame
}

// PolicyEvent reports decisions of a Policy that logs. There is at most one event per second for each
// rule, pair of addresses, protocol and destination port.
type PolicyEvent struct {
	Event
	Action string `json:"action"` // allow, deny, reject
	DecidingRule
	Packet
	Length int `json:"length"` // bytes of the frame
	// Count is the number of such packets since the event before, including this one.
	Count uint64 `json:"count"`
}

// Packet is a packet that was seen at a hook.
type Packet struct {
	Device   string `json:"device"`
	Hook     string `json:"hook"` // ingress, egress
	Protocol string `json:"protocol"`
	Tuple
}

// ConnectionEvent reports a connection that was opened or closed.
type ConnectionEvent struct {
	Event
	Action string `json:"action"` // opened, closed
	Connection
}

// EventsListParams are the parameters of events.list.
type EventsListParams struct {
	// Since is a time by the daemon's clock, in RFC 3339 format; empty: all events that are kept.
	Since    string   `json:"since,omitempty"`
	Topics   []string `json:"topics,omitempty"` // empty: all topics
	Limit    int      `json:"limit,omitempty"`  // 0: as many as fit in the reply
	Continue string   `json:"continue,omitempty"`
}

// EventsListResult is the result of events.list.
type EventsListResult struct {
	Items []PastEvent `json:"items"` // in the order in which they were published
	// Complete is, for each requested topic, the time since which events are kept: the start of the
	// daemon, or later if older events were discarded to make room for newer ones.
	Complete map[string]string `json:"complete"`
	Continue string            `json:"continue,omitempty"` // empty: this is the last page
}

// PastEvent is an event with its topic and the time when it was published.
type PastEvent struct {
	Time  string          `json:"time"` // by the daemon's clock, in RFC 3339 format
	Topic string          `json:"topic"`
	Event json.RawMessage `json:"event"`
}
