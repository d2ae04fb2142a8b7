// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// generator makes random states of few words, addresses and ports, so that much of it meets.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, 18))} }

func pick[T any](g generator, all ...T) T { return all[g.IntN(len(all))] }

func (g generator) chance(percent int) bool { return g.IntN(100) < percent }

func (g generator) several(least, most int, add func(i int)) {
	for i := range least + g.IntN(most-least+1) {
		add(i)
	}
}

func (g generator) addr() netip.Addr {
	if g.chance(50) {
		return netip.AddrFrom4([4]byte{10, 0, byte(g.IntN(2)), byte(g.IntN(8))})
	}
	return netip.AddrFrom16([16]byte{0x20, 1, 13, 0xb8, 14: byte(g.IntN(2)), 15: byte(g.IntN(8))})
}

func (g generator) prefix() netip.Prefix {
	addr := g.addr()
	bits := pick(g, 0, 1, 8, 21, 22, 23, 29, 30, 31, 32)
	if addr.Is6() && bits > 0 {
		bits += 96
	}
	p, _ := addr.Prefix(bits)
	return p
}

func (g generator) labels() map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"app", "role"} {
		if g.chance(70) {
			labels[key] = pick(g, "a", "b", "a b", "")
		}
	}
	return labels
}

func (g generator) requirements() (r Requirements) {
	g.several(0, 2, func(int) {
		r = append(r, Requirement{Key: pick(g, "app", "role"), Operator: Operator(g.IntN(4)), Values: [][]string{{"a"}, {"b"}, {"a", "b"}, {"a b"}, {""}, {}}[g.IntN(6)]})
	})
	return r
}

func (g generator) selector() Selector {
	s := Selector{Set: pick(g, "pods", "pods", "nodes"), Labels: g.requirements()}
	if g.chance(50) {
		s.Namespaces = &NamespaceSelector{Labels: g.requirements()}
		if g.chance(50) {
			s.Namespaces.Names = []string{pick(g, "n0", "n1", "n2", "n9")}
		}
	}
	return s
}

func (g generator) protocol() Protocol {
	return pick(g, TCP, UDP, SCTP)
}

func (g generator) rule() Rule {
	r := Rule{Action: Action(g.IntN(4))}
	g.several(0, 2, func(int) {
		p := Peer{}
		if g.chance(50) {
			s := g.selector()
			p.Entities = &s
		} else {
			g.several(1, 2, func(int) { p.Prefixes = append(p.Prefixes, g.prefix()) })
			g.several(0, 2, func(int) { p.Except = append(p.Except, g.prefix()) })
		}
		r.Peers = append(r.Peers, p)
	})
	g.several(0, 2, func(int) {
		p := Port{Protocol: g.protocol(), First: pick[uint16](g, 0, 1, 2, 3, 65534, 65535)}
		switch p.Last = p.First; g.IntN(4) {
		case 0:
			p.First, p.Last = 0, 65535
		case 1:
			p.Last = pick(g, max(p.First, 3), 65535)
		case 2:
			p = Port{Name: pick(g, "web", "dns")}
		}
		r.Ports = append(r.Ports, p)
	})
	return r
}

func (g generator) policy(name string, tiers []*Tier) *Policy {
	p := &Policy{Name: name, Tier: tiers[g.IntN(len(tiers))].Name, Priority: g.IntN(3), Staged: g.chance(20)}
	g.several(1, 2, func(int) { p.AppliedTo = append(p.AppliedTo, g.selector()) })
	for d := range p.Rules {
		p.Isolates[d] = g.chance(50)
		g.several(0, 3, func(int) { p.Rules[d] = append(p.Rules[d], g.rule()) })
	}
	return p
}

// entity returns an Entity whose addresses no other Entity has.
func (g generator) entity(name string, others map[string]*Entity) *Entity {
	e := &Entity{Name: name, Set: pick(g, "pods", "pods", "pods", "nodes"), Namespace: pick(g, "n0", "n1", "n2", ""), Labels: g.labels(), Endpoint: endpointIf(g.chance(60), name)}
	g.several(0, 2, func(int) {
		e.Ports = append(e.Ports, NamedPort{pick(g, "web", "dns"), g.protocol(), pick[uint16](g, 1, 2, 3)})
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
	if name == "e0" && g.chance(50) {
		e.Set, e.Here, e.Endpoint = "nodes", true, ""
	}
	return e
}

func (g generator) tier(name string) *Tier {
	return &Tier{name, Always{Self: g.chance(50), Node: g.chance(50)}}
}

// state returns a state in which one Entity may be this node.
func (g generator) state() *State {
	s := &State{Entities: map[string]*Entity{}, Policies: map[string]*Policy{}, Namespaces: map[string]*Namespace{"n0": {g.labels()}, "n1": {g.labels()}, "n2": {}}}
	g.several(1, 12, func(i int) {
		name := fmt.Sprint("e", i)
		s.Entities[name] = g.entity(name, s.Entities)
	})
	g.several(1, 3, func(i int) { s.Tiers = append(s.Tiers, g.tier(fmt.Sprint("t", i))) })
	g.several(0, 8, func(i int) { s.Policies[fmt.Sprint("p", i)] = g.policy(fmt.Sprint("p", i), s.Tiers) })
	return s
}

// next returns a state that differs in a few objects.
func (g generator) next(s *State) *State {
	n := &State{Entities: maps.Clone(s.Entities), Policies: maps.Clone(s.Policies), Namespaces: maps.Clone(s.Namespaces), Tiers: s.Tiers}
	g.several(1, 4, func(int) {
		entity, policy := fmt.Sprint("e", g.IntN(12)), fmt.Sprint("p", g.IntN(8))
		switch g.IntN(8) {
		case 0:
			delete(n.Entities, entity)
		case 1, 2, 3:
			n.Entities[entity] = g.entity(entity, n.Entities)
		case 4:
			delete(n.Policies, policy)
		case 5, 6:
			n.Policies[policy] = g.policy(policy, n.Tiers)
		case 7:
			switch i := g.IntN(len(n.Tiers)); g.IntN(4) {
			case 0:
				n.Tiers = slices.Clone(n.Tiers)
				n.Tiers[i] = g.tier(n.Tiers[i].Name)
			case 1:
				n.Tiers = slices.Clone(n.Tiers)
				slices.Reverse(n.Tiers)
			default:
				if name := pick(g, "n0", "n1", "n2"); g.chance(30) {
					delete(n.Namespaces, name)
				} else {
					n.Namespaces[name] = &Namespace{g.labels()}
				}
			}
		}
	})
	return n
}

func (g generator) traffic() Traffic {
	t := Traffic{Peer: g.addr(), Node: g.chance(10), Protocol: pick(g, TCP, UDP, SCTP, 1, 58, 47)}
	if t.Protocol.hasPorts() {
		t.Port = pick[uint16](g, 0, 1, 2, 3, 4, 1000, 65533, 65534, 65535)
	}
	return t
}
