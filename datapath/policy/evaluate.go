// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Evaluate returns the verdict on traffic of a subject, one of s.Entities: of the policies in force,
// or, with staged, as if staged policies were in force too.
func (s *State) Evaluate(subject *Entity, d Direction, t Traffic, staged bool) Verdict {
	for _, tier := range s.Tiers {
		if v, decided := s.evaluateTier(tier, subject, d, t, staged); decided {
			return v
		}
	}
	return allowed
}

func (s *State) evaluateTier(tier *Tier, subject *Entity, d Direction, t Traffic, staged bool) (v Verdict, decided bool) {
	isolating := ""
	for _, p := range slices.SortedFunc(maps.Values(s.Policies), inOrder) {
		if p.Tier != tier.Name || p.Staged && !staged || !s.isApplied(p, subject) {
			continue
		}
		if p.Isolates[d] && isolating == "" {
			isolating = p.Name
		}
		for n := range p.Rules[d] {
			switch r := &p.Rules[d][n]; {
			case !s.matches(r, subject, d, t):
			case r.Action == Pass:
				return Verdict{}, false
			default:
				return Verdict{r.Action, tier.Name, p.Name, n}, true
			}
		}
	}
	isSelf := !t.Node && slices.Contains(subject.Addrs, t.Peer)
	if isolating == "" || isSelf && tier.Always.Self || t.Node && tier.Always.Node {
		return Verdict{}, false
	}
	return Verdict{Deny, tier.Name, isolating, -1}, true
}

// inOrder compares policies of a tier as they are evaluated.
func inOrder(a, b *Policy) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
}

// peerOf returns the Entity of the peer, or nil.
func (s *State) peerOf(t Traffic) *Entity {
	for _, e := range s.Entities {
		if t.Node && e.Here || !t.Node && !e.Here && slices.Contains(e.Addrs, t.Peer) {
			return e
		}
	}
	return nil
}

func (s *State) matches(r *Rule, subject *Entity, d Direction, t Traffic) bool {
	peer := s.peerOf(t)
	if len(r.Peers) > 0 && !slices.ContainsFunc(r.Peers, func(p Peer) bool { return s.matchesPeer(&p, peer, t) }) {
		return false
	}
	if len(r.Ports) == 0 {
		return true
	}
	named := subject
	if d == Egress {
		named = peer
	}
	return t.Protocol.HasPorts() && slices.ContainsFunc(r.Ports, func(p Port) bool { return matchesPort(p, named, t) })
}

func (s *State) matchesPeer(p *Peer, peer *Entity, t Traffic) bool {
	if p.Entities != nil {
		return peer != nil && s.Selects(p.Entities, peer)
	}
	contains := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(t.Peer) })
	}
	return !t.Node && contains(p.Prefixes) && !contains(p.Except)
}

// names reports whether p is a name, and n has it.
func (p *Port) names(n NamedPort) bool {
	return p.Name != "" && p.Name == n.Name && (p.Protocol == 0 || p.Protocol == n.Protocol)
}

func matchesPort(p Port, named *Entity, t Traffic) bool {
	if p.Name == "" {
		return p.Protocol == t.Protocol && p.First <= t.Port && t.Port <= p.Last
	}
	return named != nil && slices.ContainsFunc(named.Ports, func(n NamedPort) bool {
		return p.names(n) && n.Protocol == t.Protocol && n.Number == t.Port
	})
}
