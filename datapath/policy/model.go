// SPDX-License-Identifier: Apache-2.0

// Package policy decides which traffic the Endpoints of this node may send and receive.
//
// [State.Evaluate] is the definition: it evaluates tiers, policies and rules one after the other. A
// [Compiler] keeps tables with the same results, in which the verdict on a first packet takes four
// look-ups, however many policies exist: the subject's table, the class of the peer's address, the
// row of that class in the table, and in that row the cell of the protocol and port.
//
// Classes, rows and tables in force are never changed: a change adds others, and then gives other
// classes to addresses and other tables to subjects. So a reader that finds both old classes and old
// tables, or both new ones, obeys the state from before or from after the change, as a whole.
//
// Package datapath/internal/ebpf/policies writes the tables to the kernel.
package policy

import (
	"iter"
	"net/netip"
)

// State is everything on which verdicts depend. The values behind its pointers do not change: a
// changed object has a new pointer in the next state, all others have the same.
type State struct {
	Entities   map[string]*Entity    // by name
	Namespaces map[string]*Namespace // by name
	Tiers      []*Tier               // in the order in which they are evaluated
	Policies   map[string]*Policy    // by name
	// Resolvers are, by network, the DNS servers from whose responses names are learnt. A network without
	// them is not in the map.
	Resolvers map[string][]netip.Addr
}

// Namespace has labels that its Entities share.
type Namespace struct{ Labels map[string]string }

// Entity is a labelled participant. Each address belongs to at most one Entity.
type Entity struct {
	Name      string
	Set       string // selectors match one set, such as pods or nodes
	Namespace string // empty: none
	Labels    map[string]string
	Ports     []NamedPort
	Addrs     []netip.Addr
	Endpoint  string // of this node, whose traffic it is: policies can be applied to it; empty: none
	Network   string // of the Endpoint, if the network has resolvers; otherwise empty
	Here      bool   // this node itself, whose traffic is identified by its origin, not by its address; Endpoint is [Here]
}

func (e *Entity) isLocal() bool { return e != nil && e.Endpoint != "" }

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols with ports.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// NamedPort is a port of an [Entity].
type NamedPort struct {
	Name     string
	Protocol Protocol // TCP, UDP, SCTP
	Number   uint16
}

// Unknown is the name of the built-in policy, and of its tier, that denies all traffic of Endpoints
// that lack the Entity that their network requires. Packets that it drops are counted separately. No
// other policy has this name.
const Unknown = "#unknown"

// Here stands for this node itself in place of the name of an Endpoint. No Endpoint has this name.
const Here = "#here"

// Failsafe is the name of the built-in policy, and of its tier, that allows what no other policy of
// this node itself may deny. No other policy, and no other tier, has this name.
const Failsafe = "policy.failsafe"

// Tier is a group of policies. If no rule of a tier decides, and one of its policies isolates the
// subject, the traffic is denied, except with the peers that Always names.
type Tier struct {
	Name   string
	Always Always
}

// Always are peers that isolation never shuts out.
type Always struct {
	Self bool // the subject itself, by its own addresses
	Node bool // this node
}

// Direction is a direction of traffic, as its subject sees it.
type Direction int

// The directions.
const (
	Ingress Direction = iota
	Egress
)

func (d Direction) String() string { return [...]string{"ingress", "egress"}[d] }

// Policy is a list of rules for its subjects: the local Entities that a selector of AppliedTo matches.
// The policies of a tier are evaluated by priority, the lowest first, then by name.
type Policy struct {
	Name      string
	Tier      string // of State.Tiers
	Priority  int
	Staged    bool // evaluated, but not in force
	AppliedTo []Selector
	Here      bool      // it is applied to this node itself too
	Isolates  [2]bool   // by Direction
	Rejects   bool      // isolation notifies the sender
	Rules     [2][]Rule // by Direction
	LogsAllow bool      // packets that open connections, or belong to none, and that its rules allow
	LogsDeny  bool      // packets that it denies, by rules or isolation, or rejects
}

// Logs reports whether the policy logs the packets of a verdict of its own.
func (p *Policy) Logs(v Verdict) bool {
	return v.Action == Allow && p.LogsAllow || v.Action != Allow && p.LogsDeny
}

// RuleID returns the ID of the rule that decided a verdict of the policy; empty: isolation.
func (p *Policy) RuleID(v Verdict) string {
	if v.Rule < 0 {
		return ""
	}
	return p.Rules[v.Direction][v.Rule].ID
}

// Action is what a rule does with matching traffic.
type Action uint8

// The actions. Deny drops silently, Reject notifies the sender, Pass continues with the next tier.
const (
	Allow Action = iota
	Deny
	Reject
	Pass
)

func (a Action) String() string { return [...]string{"allow", "deny", "reject", "pass"}[a] }

// Rule matches traffic with one of its peers on one of its ports.
type Rule struct {
	ID     string // unique in its list; the same after changes of the policy, if it is the same rule
	Action Action
	Peers  []Peer // empty: every peer
	Ports  []Port // empty: every protocol
}

// Peer is a selector of Entities, or prefixes without exceptions, or names. Prefixes and names do not
// match this node's own traffic.
type Peer struct {
	Entities         *Selector
	Prefixes, Except []netip.Prefix
	// Names are DNS names in lower case, or *. and a name, for all names below it: the addresses that a
	// resolver of the subject's network has returned for them. Only egress rules that allow have them.
	Names []string
}

// Names returns the names in the rules of all policies.
func (s *State) Names() map[string]bool {
	all := make(map[string]bool)
	for _, p := range s.Policies {
		for name := range p.Names() {
			all[name] = true
		}
	}
	return all
}

// Size returns how many prefixes and names the rules of the policy have.
func (p *Policy) Size() (prefixes, names int) {
	for _, rules := range p.Rules {
		for i := range rules {
			for _, peer := range rules[i].Peers {
				prefixes, names = prefixes+len(peer.Prefixes)+len(peer.Except), names+len(peer.Names)
			}
		}
	}
	return prefixes, names
}

// Names yields the names in the rules of the policy. A name may occur repeatedly.
func (p *Policy) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range p.Rules[Egress] {
			for _, peer := range p.Rules[Egress][i].Peers {
				for _, name := range peer.Names {
					if !yield(name) {
						return
					}
				}
			}
		}
	}
}

// Port is a range of ports of a protocol, or a name: of a port of the subject for ingress, of the
// peer for egress. A name that the Entity does not have matches nothing.
type Port struct {
	Protocol    Protocol // TCP, UDP, SCTP; 0 with a name: any of them
	First, Last uint16   // 0 to 65535: every port
	Name        string
}

// Traffic is what a packet that opens a connection shows of its peer, after destination NAT and
// before source NAT.
type Traffic struct {
	Peer     netip.Addr
	Node     bool     // the peer is this node itself
	Protocol Protocol // of any number
	Port     uint16   // the destination port; 0 for protocols without ports
	Names    []string // in rules, that have the peer's address
}

// Verdict is the result of an evaluation.
type Verdict struct {
	Action       Action // but not Pass
	Tier, Policy string // that decided; empty: nothing did, so the traffic is allowed
	Direction    Direction
	Rule         int // index of the rule that decided; -1: isolation, or nothing
}

var allowed = Verdict{Action: Allow, Rule: -1}

// Isolation returns the verdict on traffic that no rule of the tier decides, of the first policy that
// isolates the subject.
func (p *Policy) Isolation(d Direction) Verdict {
	v := Verdict{Deny, p.Tier, p.Name, d, -1}
	if p.Rejects {
		v.Action = Reject
	}
	return v
}

// HasPorts reports whether the packets of a protocol have ports.
func (p Protocol) HasPorts() bool { return p == TCP || p == UDP || p == SCTP }
