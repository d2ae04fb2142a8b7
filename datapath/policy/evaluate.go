// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Step is the evaluation of one tier.
type Step struct {
	Tier     string
	Policies []string // that apply to the subject in this direction, in the order of evaluation
	// Verdict is what the tier decides, which may be Pass; without a Policy, the tier decides nothing.
	Verdict
	// Peer and Port are the indexes of what matched in the rule that decided; -1: there is no such
	// rule, or it lists none.
	Peer, Port int
	Exempt     bool // policies isolate the subject, but Always names the peer
}

// IsFinal reports whether no further tier is evaluated.
func (t *Step) IsFinal() bool { return t.Policy != "" && t.Action != Pass }

// Evaluate returns the verdict on traffic of a subject, one of s.Entities: of the policies in force,
// or, with staged, as if staged policies were in force too.
func (s *State) Evaluate(subject *Entity, d Direction, t Traffic, staged bool) Verdict {
	_, v := s.Explain(subject, d, t, staged)
	return v
}

// Explain is Evaluate, and also returns how the verdict came about: all tiers up to the deciding tier.
func (s *State) Explain(subject *Entity, d Direction, t Traffic, staged bool) (steps []Step, v Verdict) {
	if subject.Here && t.Node {
		return nil, allowed // this node with itself
	}
	peer := s.PeerOf(t)
	for _, tier := range s.Tiers {
		step := s.evaluateTier(tier, subject, peer, d, t, staged)
		if steps = append(steps, step); step.IsFinal() {
			return steps, step.Verdict
		}
	}
	return steps, allowed
}

// Without returns the verdict if the rule that led to v, or the isolation, did not exist.
func (s *State) Without(v Verdict, subject *Entity, d Direction, t Traffic, staged bool) Verdict {
	changed := *s.Policies[v.Policy]
	if v.Rule >= 0 {
		changed.Rules[d] = slices.Delete(slices.Clone(changed.Rules[d]), v.Rule, v.Rule+1)
	} else {
		changed.Isolates[d] = false
	}
	other := *s
	other.Policies = maps.Clone(s.Policies)
	other.Policies[v.Policy] = &changed
	return other.Evaluate(subject, d, t, staged)
}

// evaluateTier evaluates a tier; other: the Entity of the peer, or nil.
func (s *State) evaluateTier(tier *Tier, subject, other *Entity, d Direction, t Traffic, staged bool) Step {
	step := Step{Tier: tier.Name, Verdict: allowed, Peer: -1, Port: -1}
	var isolating *Policy
	for _, p := range slices.SortedFunc(maps.Values(s.Policies), inOrder) {
		if p.Tier != tier.Name || p.Staged && !staged || !s.isApplied(p, subject) || !p.Isolates[d] && len(p.Rules[d]) == 0 {
			continue
		}
		step.Policies = append(step.Policies, p.Name)
		if p.Isolates[d] && isolating == nil {
			isolating = p
		}
		for n := range p.Rules[d] {
			r := &p.Rules[d][n]
			peer, port, matches := s.matches(r, subject, other, d, t)
			if matches && step.Policy == "" {
				step.Verdict, step.Peer, step.Port = Verdict{r.Action, tier.Name, p.Name, d, n}, peer, port
			}
		}
	}
	if step.Policy != "" || isolating == nil {
		return step
	}
	isSelf := !t.Node && slices.Contains(subject.Addrs, t.Peer)
	if step.Exempt = isSelf && tier.Always.Self || t.Node && tier.Always.Node; !step.Exempt {
		step.Verdict = isolating.Isolation(d)
	}
	return step
}

// AppliedTo returns the policies that apply to an Entity, in force or staged, in the order in which
// they are evaluated.
func (s *State) AppliedTo(e *Entity) (applied []*Policy) {
	for _, tier := range s.Tiers {
		for _, p := range slices.SortedFunc(maps.Values(s.Policies), inOrder) {
			if p.Tier == tier.Name && s.isApplied(p, e) {
				applied = append(applied, p)
			}
		}
	}
	return applied
}

// inOrder compares policies of a tier as they are evaluated.
func inOrder(a, b *Policy) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
}

// PeerOf returns the Entity of the peer, or nil.
func (s *State) PeerOf(t Traffic) *Entity {
	for _, e := range s.Entities {
		if t.Node && e.Here || !t.Node && !e.Here && slices.Contains(e.Addrs, t.Peer) {
			return e
		}
	}
	return nil
}

// matches reports whether a rule matches, and the indexes of its peer and port that do; -1: it lists
// none. other: the Entity of the peer, or nil.
func (s *State) matches(r *Rule, subject, other *Entity, d Direction, t Traffic) (peer, port int, matches bool) {
	peer = slices.IndexFunc(r.Peers, func(p Peer) bool { return s.matchesPeer(&p, other, t) })
	named := subject
	if d == Egress {
		named = other
	}
	port = slices.IndexFunc(r.Ports, func(p Port) bool { return t.Protocol.HasPorts() && matchesPort(p, named, t) })
	return peer, port, (peer >= 0 || len(r.Peers) == 0) && (port >= 0 || len(r.Ports) == 0)
}

func (s *State) matchesPeer(p *Peer, peer *Entity, t Traffic) bool {
	if len(p.Names) > 0 {
		return !t.Node && haveCommon(p.Names, t.Names)
	}
	if p.Entities != nil {
		return peer != nil && s.Selects(p.Entities, peer)
	}
	contains := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(t.Peer) })
	}
	return !t.Node && contains(p.Prefixes) && !contains(p.Except)
}

func haveCommon(a, b []string) bool {
	return slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
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
