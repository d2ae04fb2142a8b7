// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
)

// program contains the policies that are evaluated for the subjects of a table in one direction.
type program struct {
	tiers tierList
	terms []int    // of which it is a user
	names []string // of ports of peers
	here  bool     // of this node itself
	// hasDomains is set if the peers of a rule have names.
	hasDomains bool
}

type tierList []tierRules

// tierRules are the policies of a tier that apply to a subject, in order.
type tierRules struct {
	tier      *Tier
	direction Direction
	policies  []policyRules
}

type policyRules struct {
	policy   *Policy
	isolates bool
	rules    []compiledRule
}

// compiledRule is a rule whose peers are terms and whose ports are numbers, except for names of ports
// of the peer, which depend on its class.
type compiledRule struct {
	index  int
	action Action
	anyone bool // every peer
	terms  []int
	every  bool // every protocol
	spans  spans
	names  []Port // of the peer
	// domains are the names of peers. In the rules for a class: the rule matches only peers with these
	// names.
	domains []string
	place   int // in its program
}

type span struct {
	protocol    Protocol
	first, last uint16
}

// spans are sorted by protocol and first port, and do not overlap.
type spans []span

// merged returns spans that contain the same ports as a list in any order.
func merged(list []span) (all spans) {
	slices.SortFunc(list, func(a, b span) int { return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.first, b.first)) })
	for _, s := range list {
		if n := len(all) - 1; n >= 0 && all[n].protocol == s.protocol && int(s.first) <= int(all[n].last)+1 {
			all[n].last = max(all[n].last, s.last)
			continue
		}
		all = append(all, s)
	}
	return all
}

// has reports whether spans contain a port of a protocol.
func (l spans) has(protocol Protocol, port uint16) bool {
	at, exact := slices.BinarySearchFunc(l, span{protocol, port, 0}, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.first, b.first))
	})
	if exact {
		return true
	}
	return at > 0 && l[at-1].protocol == protocol && port <= l[at-1].last
}

// appliedTo selects the policies that apply to an Entity, in the order in which they are evaluated.
func (c *Compiler) appliedTo(e *Entity, some iter.Seq[*Policy]) (applied []*Policy) {
	for p := range some {
		if c.tier(p) >= 0 && c.state.isApplied(p, e) {
			applied = append(applied, p)
		}
	}
	slices.SortFunc(applied, func(a, b *Policy) int { return cmp.Or(cmp.Compare(c.tier(a), c.tier(b)), inOrder(a, b)) })
	return applied
}

// reapplied returns the policies that apply to a subject after some have changed.
func (c *Compiler) reapplied(s *subject, names map[string]bool) []*Policy {
	return c.appliedTo(s.of, func(yield func(*Policy) bool) {
		for _, p := range s.applied {
			if !names[p.Name] && !yield(p) {
				return
			}
		}
		for name := range names {
			if p := c.state.Policies[name]; p != nil && !yield(p) {
				return
			}
		}
	})
}

// tier returns the place of a policy's tier; -1: there is no such tier.
func (c *Compiler) tier(p *Policy) int {
	return slices.IndexFunc(c.state.Tiers, func(t *Tier) bool { return t.Name == p.Tier })
}

// takeTable returns the table of a subject, which is new if no other subject has the same policies,
// and the same ports with the names in their rules.
func (c *Compiler) takeTable(s *subject, d Direction) TableID {
	var applied []*Policy
	key := fmt.Sprint(d, s.of.Here)
	for _, p := range s.applied {
		if !p.Isolates[d] && len(p.Rules[d]) == 0 {
			continue
		}
		applied = append(applied, p)
		key += fmt.Sprintf(" %p %p", p, c.state.Tiers[c.tier(p)])
		if d == Ingress {
			key += keyOf(namedPorts(p, s.of))
		}
	}
	if len(applied) == 0 {
		return NoTable
	}
	if id, known := c.tables.ids[key]; known {
		c.tables.use(id)
		return TableID(id)
	}
	id, _ := c.tables.take(key, &table{program: c.compile(applied, s.of, d)})
	c.newTables = append(c.newTables, TableID(id))
	return TableID(id)
}

func (c *Compiler) dropTable(id TableID) {
	if id == NoTable || !c.tables.drop(int(id)) {
		return
	}
	c.lostTables = append(c.lostTables, id)
	p := c.tables.items[id].program
	c.terms.drop(p.terms)
	for _, name := range p.names {
		if c.names[name]--; c.names[name] == 0 {
			delete(c.names, name)
		}
	}
}

// namedPorts returns the ports of e to which the ingress rules of a policy refer by name.
func namedPorts(p *Policy, e *Entity) (ports []NamedPort) {
	for _, r := range p.Rules[Ingress] {
		for _, port := range r.Ports {
			for _, n := range e.Ports {
				if port.names(n) && !slices.Contains(ports, n) {
					ports = append(ports, n)
				}
			}
		}
	}
	return ports
}

// compile returns the program for policies, which are in the order of their tiers.
func (c *Compiler) compile(applied []*Policy, e *Entity, d Direction) *program {
	p, place := &program{here: e.Here}, 0
	for _, policy := range applied {
		if n := len(p.tiers); n == 0 || p.tiers[n-1].tier.Name != policy.Tier {
			p.tiers = append(p.tiers, tierRules{tier: c.state.Tiers[c.tier(policy)], direction: d})
		}
		rules := policyRules{policy: policy, isolates: policy.Isolates[d]}
		for i := range policy.Rules[d] {
			r := &policy.Rules[d][i]
			compiled := compiledRule{index: i, action: r.Action, every: len(r.Ports) == 0, anyone: len(r.Peers) == 0, place: place}
			place++
			for n := range r.Peers {
				if names := r.Peers[n].Names; len(names) > 0 {
					compiled.domains, p.hasDomains = append(compiled.domains, names...), true
				} else {
					compiled.terms = append(compiled.terms, c.terms.take(&r.Peers[n]))
				}
			}
			p.terms = append(p.terms, compiled.terms...)
			for _, port := range r.Ports {
				switch {
				case port.Name == "":
					compiled.spans = append(compiled.spans, span{port.Protocol, port.First, port.Last})
				case d == Ingress:
					compiled.spans = append(compiled.spans, spansOf(port, e.Ports)...)
				default:
					compiled.names = append(compiled.names, port)
					p.names = append(p.names, port.Name)
					if c.names[port.Name]++; c.names[port.Name] == 1 {
						c.newNames = true
					}
				}
			}
			compiled.spans = merged(compiled.spans)
			rules.rules = append(rules.rules, compiled)
		}
		last := &p.tiers[len(p.tiers)-1]
		last.policies = append(last.policies, rules)
	}
	return p
}

// spansOf returns the ports with a name.
func spansOf(name Port, ports []NamedPort) (spans []span) {
	for _, p := range ports {
		if name.names(p) {
			spans = append(spans, span{p.Protocol, p.Number, p.Number})
		}
	}
	return spans
}

// renumber gives terms other numbers.
func (p *program) renumber(number []int) {
	for i, n := range p.terms {
		p.terms[i] = number[n]
	}
	for _, t := range p.tiers {
		for _, policy := range t.policies {
			for _, r := range policy.rules {
				for i, n := range r.terms {
					r.terms[i] = number[n]
				}
			}
		}
	}
}

// view returns a text that is the same for classes that the program does not distinguish.
func (p *program) view(info *classInfo) string {
	var seen bits
	for _, n := range p.terms {
		if info.has(n) {
			seen = seen.with(n)
		}
	}
	key := fmt.Sprint(seen, info.node)
	if len(p.names) > 0 {
		key += keyOf(info.ports)
	}
	return key
}

// rulesFor returns the rules that can match peers of a class, with the peer's ports for names: none for
// traffic of this node with itself.
func (p *program) rulesFor(info *classInfo) tierList {
	if p.here && info.node {
		return nil
	}
	list := make(tierList, 0, len(p.tiers))
	for _, t := range p.tiers {
		policies := make([]policyRules, 0, len(t.policies))
		for _, policy := range t.policies {
			rules := policy.rules
			policy.rules = nil
			for _, r := range rules {
				switch {
				case r.anyone, slices.ContainsFunc(r.terms, info.has):
					r.domains = nil
				case len(r.domains) == 0 || info.node:
					continue
				}
				if len(r.names) > 0 {
					r.spans = slices.Clone(r.spans)
					for _, name := range r.names {
						r.spans = append(r.spans, spansOf(name, info.ports)...)
					}
					r.spans = merged(r.spans)
				}
				policy.rules = append(policy.rules, r)
			}
			policies = append(policies, policy)
		}
		list = append(list, tierRules{t.tier, t.direction, policies})
	}
	return list
}

// differ reports whether a policy is staged, so that verdicts as if it were in force may differ, and
// whether a tier never shuts out the subject itself.
func (l tierList) differ() (isStaged, exemptsSelf bool) {
	for _, t := range l {
		exemptsSelf = exemptsSelf || t.tier.Always.Self
		isStaged = isStaged || slices.ContainsFunc(t.policies, func(p policyRules) bool { return p.policy.Staged })
	}
	return isStaged, exemptsSelf
}

// boundaries returns the ports of a protocol at which the verdict may change, sorted, beginning with
// 0.
func (l tierList) boundaries(protocol Protocol) []uint16 {
	all := []uint16{0}
	for _, t := range l {
		for _, p := range t.policies {
			for _, r := range p.rules {
				for _, s := range r.spans {
					if s.protocol != protocol {
						continue
					}
					if all = append(all, s.first); s.last < 65535 {
						all = append(all, s.last+1)
					}
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// decide returns the verdict of rules that match the peers of a class. It calls named for the rules
// before it that decide about peers with some names, in order.
func (l tierList) decide(info *classInfo, self bool, protocol Protocol, port uint16, staged bool, named func(*compiledRule, Verdict)) Verdict {
	for _, t := range l {
		v, decided := t.decide(protocol, port, staged, named)
		isExempt := self && t.tier.Always.Self || info.node && t.tier.Always.Node
		if decided && v.Action != Pass && (v.Rule >= 0 || !isExempt) {
			return v
		}
	}
	return allowed
}

// decide returns the verdict of a tier: of its first rule that matches, or of isolation.
func (t *tierRules) decide(protocol Protocol, port uint16, staged bool, named func(*compiledRule, Verdict)) (v Verdict, decided bool) {
	for _, p := range t.policies {
		if p.policy.Staged && !staged {
			continue
		}
		for i := range p.rules {
			r := &p.rules[i]
			if !r.every && !r.spans.has(protocol, port) {
				continue
			}
			is := Verdict{r.action, t.tier.Name, p.policy.Name, t.direction, r.index}
			if len(r.domains) == 0 {
				return is, true
			}
			named(r, is)
		}
		if p.isolates && !decided {
			v, decided = p.policy.Isolation(t.direction), true
		}
	}
	return v, decided
}
