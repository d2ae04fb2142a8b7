// SPDX-License-Identifier: Apache-2.0

// Package testpolicy makes random states of network policies, for tests.
package testpolicy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath/policy"
)

// Generator makes random states of few words, addresses and ports, so that much of it meets.
type Generator struct{ *rand.Rand }

// New returns a generator.
func New(seed uint64) Generator { return Generator{rand.New(rand.NewPCG(seed, 18))} }

func pick[T any](g Generator, all ...T) T { return all[g.IntN(len(all))] }

// Chance returns true in the given share of calls.
func (g Generator) Chance(percent int) bool { return g.IntN(100) < percent }

func (g Generator) several(least, most int, add func(i int)) {
	for i := range least + g.IntN(most-least+1) {
		add(i)
	}
}

func (g Generator) addr() netip.Addr {
	if g.Chance(50) {
		return netip.AddrFrom4([4]byte{10, 0, byte(g.IntN(2)), byte(g.IntN(8))})
	}
	return netip.AddrFrom16([16]byte{0x20, 1, 13, 0xb8, 14: byte(g.IntN(2)), 15: byte(g.IntN(8))})
}

func (g Generator) prefix() netip.Prefix {
	addr := g.addr()
	bits := pick(g, 0, 1, 8, 21, 22, 23, 29, 30, 31, 32)
	if addr.Is6() && bits > 0 {
		bits += 96
	}
	p, _ := addr.Prefix(bits)
	return p
}

func (g Generator) labels() map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"app", "role"} {
		if g.Chance(70) {
			labels[key] = pick(g, "a", "b", "a b", "")
		}
	}
	return labels
}

func (g Generator) requirements() (r policy.Requirements) {
	g.several(0, 2, func(int) {
		r = append(r, policy.Requirement{Key: pick(g, "app", "role"), Operator: policy.Operator(g.IntN(4)), Values: [][]string{{"a"}, {"b"}, {"a", "b"}, {"a b"}, {""}, {}}[g.IntN(6)]})
	})
	return r
}

func (g Generator) selector() policy.Selector {
	s := policy.Selector{Set: pick(g, "pods", "pods", "nodes"), Labels: g.requirements()}
	if g.Chance(50) {
		s.Namespaces = &policy.NamespaceSelector{Labels: g.requirements()}
		if g.Chance(50) {
			s.Namespaces.Names = []string{pick(g, "n0", "n1", "n2", "n9")}
		}
	}
	return s
}

func (g Generator) protocol() policy.Protocol {
	return pick(g, policy.TCP, policy.UDP, policy.SCTP)
}

// Names are the names in the rules of the states.
var Names = []string{"a.example", "b.example", "*.example"}

func (g Generator) rule(d policy.Direction) policy.Rule {
	r := policy.Rule{Action: policy.Action(g.IntN(4))}
	named := d == policy.Egress && g.Chance(30)
	if named {
		r.Action = policy.Allow
	}
	g.several(0, 2, func(int) {
		p := policy.Peer{}
		if named && g.Chance(70) {
			g.several(1, 2, func(int) { p.Names = append(p.Names, pick(g, Names...)) })
		} else if g.Chance(50) {
			s := g.selector()
			p.Entities = &s
		} else {
			g.several(1, 2, func(int) { p.Prefixes = append(p.Prefixes, g.prefix()) })
			g.several(0, 2, func(int) { p.Except = append(p.Except, g.prefix()) })
		}
		r.Peers = append(r.Peers, p)
	})
	g.several(0, 2, func(int) {
		p := policy.Port{Protocol: g.protocol(), First: pick[uint16](g, 0, 1, 2, 3, 65534, 65535)}
		switch p.Last = p.First; g.IntN(4) {
		case 0:
			p.First, p.Last = 0, 65535
		case 1:
			p.Last = pick(g, max(p.First, 3), 65535)
		case 2:
			p = policy.Port{Name: pick(g, "web", "dns")}
			if g.Chance(50) {
				p.Protocol = g.protocol()
			}
		}
		r.Ports = append(r.Ports, p)
	})
	return r
}

func (g Generator) policy(name string, tiers []*policy.Tier) *policy.Policy {
	p := &policy.Policy{Name: name, Tier: tiers[g.IntN(len(tiers))].Name, Priority: g.IntN(3), Staged: g.Chance(20), Rejects: g.Chance(30)}
	g.several(1, 2, func(int) { p.AppliedTo = append(p.AppliedTo, g.selector()) })
	for d := range p.Rules {
		p.Isolates[d] = g.Chance(50)
		g.several(0, 3, func(i int) {
			r := g.rule(policy.Direction(d))
			text, _ := json.Marshal(r) // strings and numbers only
			r.ID = fmt.Sprintf("%d %s", i, text)
			p.Rules[d] = append(p.Rules[d], r)
		})
	}
	p.LogsAllow, p.LogsDeny, p.Here = g.Chance(30), g.Chance(30), g.Chance(20)
	return p
}

// entity returns an policy.Entity whose addresses no other policy.Entity has.
func (g Generator) entity(name string, others map[string]*policy.Entity) *policy.Entity {
	e := &policy.Entity{Name: name, Set: pick(g, "pods", "pods", "pods", "nodes"), Namespace: pick(g, "n0", "n1", "n2", ""), Labels: g.labels(), Endpoint: EndpointIf(g.Chance(60), name)}
	g.several(0, 2, func(int) {
		e.Ports = append(e.Ports, policy.NamedPort{Name: pick(g, "web", "dns"), Protocol: g.protocol(), Number: pick[uint16](g, 1, 2, 3)})
	})
	taken := map[netip.Addr]bool{}
	for other, o := range others {
		for _, a := range o.Addrs {
			taken[a] = other != name
		}
	}
	g.several(0, 3, func(int) {
		if addr := g.addr(); !taken[addr] {
			e.Addrs = append(e.Addrs, addr)
		}
	})
	if e.Endpoint != "" && g.Chance(80) {
		e.Network = pick(g, "net", "far")
	}
	if name == "e0" && g.Chance(50) {
		e.Network = ""
		e.Set, e.Here, e.Endpoint, e.Addrs = "nodes", true, policy.Here, nil
	}
	return e
}

func (g Generator) tier(name string) *policy.Tier {
	return &policy.Tier{Name: name, Always: policy.Always{Self: g.Chance(50), Node: g.Chance(50)}}
}

// State returns a state in which one policy.Entity may be this node.
func (g Generator) State() *policy.State {
	s := &policy.State{Entities: map[string]*policy.Entity{}, Policies: map[string]*policy.Policy{}, Namespaces: map[string]*policy.Namespace{"n0": {Labels: g.labels()}, "n1": {Labels: g.labels()}, "n2": {}}}
	g.several(1, 12, func(i int) {
		name := fmt.Sprint("e", i)
		s.Entities[name] = g.entity(name, s.Entities)
	})
	g.several(1, 3, func(i int) { s.Tiers = append(s.Tiers, g.tier(fmt.Sprint("t", i))) })
	g.several(0, 8, func(i int) { s.Policies[fmt.Sprint("p", i)] = g.policy(fmt.Sprint("p", i), s.Tiers) })
	return s
}

// Next returns a state that differs in a few objects.
func (g Generator) Next(s *policy.State) *policy.State {
	n := &policy.State{Entities: maps.Clone(s.Entities), Policies: maps.Clone(s.Policies), Namespaces: maps.Clone(s.Namespaces), Tiers: s.Tiers}
	g.several(1, 4, func(int) {
		entity, of := fmt.Sprint("e", g.IntN(12)), fmt.Sprint("p", g.IntN(8))
		switch g.IntN(8) {
		case 0:
			delete(n.Entities, entity)
		case 1, 2, 3:
			n.Entities[entity] = g.entity(entity, n.Entities)
		case 4:
			delete(n.Policies, of)
		case 5, 6:
			n.Policies[of] = g.policy(of, n.Tiers)
		case 7:
			switch i := g.IntN(len(n.Tiers)); g.IntN(4) {
			case 0:
				n.Tiers = slices.Clone(n.Tiers)
				n.Tiers[i] = g.tier(n.Tiers[i].Name)
			case 1:
				n.Tiers = slices.Clone(n.Tiers)
				slices.Reverse(n.Tiers)
			default:
				if name := pick(g, "n0", "n1", "n2"); g.Chance(30) {
					delete(n.Namespaces, name)
				} else {
					n.Namespaces[name] = &policy.Namespace{Labels: g.labels()}
				}
			}
		}
	})
	return n
}

// Traffic returns traffic with addresses and ports of these states.
func (g Generator) Traffic() policy.Traffic {
	t := policy.Traffic{Peer: g.addr(), Node: g.Chance(10), Protocol: pick(g, policy.TCP, policy.UDP, policy.SCTP, 1, 58, 47)}
	if t.Protocol.HasPorts() {
		t.Port = pick[uint16](g, 0, 1, 2, 3, 4, 1000, 65533, 65534, 65535)
	}
	g.several(0, 2, func(int) {
		if name := pick(g, Names...); !slices.Contains(t.Names, name) {
			t.Names = append(t.Names, name)
		}
	})
	return t
}

// EndpointIf returns the name of the Endpoint of an Entity, if it is local.
func EndpointIf(local bool, name string) string {
	if !local {
		return ""
	}
	return "port of " + name
}

// App returns the requirement that the label app has a value.
func App(name string) policy.Requirements {
	return policy.Requirements{{Key: "app", Operator: policy.In, Values: []string{name}}}
}

// Large returns a state of namespaces with 100 Entities and 100 policies each; of 10,000 Entities,
// 250 are local.
func Large(namespaces int) *policy.State {
	s := &policy.State{Namespaces: map[string]*policy.Namespace{}, Tiers: []*policy.Tier{{Name: "namespaces"}}, Entities: map[string]*policy.Entity{}, Policies: map[string]*policy.Policy{}}
	for n := range namespaces {
		space := fmt.Sprint("n", n)
		s.Namespaces[space] = &policy.Namespace{Labels: map[string]string{"team": fmt.Sprint(n % 10)}}
		for i := range 100 {
			name := fmt.Sprint(space, "/", i)
			s.Entities[name] = &policy.Entity{
				Name: name, Set: "pods", Namespace: space, Endpoint: EndpointIf((n*7+i)%40 == 0, name), Labels: map[string]string{"app": fmt.Sprint(i % 20)},
				Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n), byte(i), 2})},
			}
			team := policy.Requirements{{Key: "team", Operator: policy.In, Values: []string{fmt.Sprint(i % 10)}}}
			s.Policies[name] = &policy.Policy{
				Name: name, Tier: "namespaces", Isolates: [2]bool{true, true},
				AppliedTo: []policy.Selector{{Set: "pods", Namespaces: &policy.NamespaceSelector{Names: []string{space}}, Labels: App(fmt.Sprint(i % 20))}},
				Rules: [2][]policy.Rule{{{
					Action: policy.Allow, Peers: []policy.Peer{{Entities: &policy.Selector{Set: "pods", Labels: App(fmt.Sprint((i + 1) % 20)), Namespaces: &policy.NamespaceSelector{Labels: team}}}},
					Ports: []policy.Port{{Protocol: policy.TCP, First: 80, Last: 90}},
				}}, {{Action: policy.Allow}}},
			}
		}
	}
	return s
}
