// SPDX-License-Identifier: Apache-2.0

package datapath

// RuleError is an error in a whole rule set that is caused by one rule or address group. Several of
// them may be joined.
type RuleError struct {
	Rule  string    // name of the FirewallRule, NAT or policy; empty: see Group
	Group GroupName // empty: see Rule
	Err   error
}

func (e *RuleError) Error() string {
	if e.Rule == "" {
		return "group " + string(e.Group) + ": " + e.Err.Error()
	}
	return "rule " + e.Rule + ": " + e.Err.Error()
}

// Unwrap returns the error of the rule or group.
func (e *RuleError) Unwrap() error { return e.Err }

// prefixes returns how many prefixes m itself names, without those in its groups.
func (m *Match) prefixes() int { return len(m.Source) + len(m.Destination) }

// Cost returns the table entries that r uses, without its groups.
func (r *FirewallRule) Cost() Cost {
	return Cost{Rules: 1, FirewallRules: 1, Prefixes: r.Match.prefixes()}
}

// Cost returns the table entries that n uses, without its groups.
func (n *NAT) Cost() Cost {
	return Cost{Rules: 1, NATs: 1, Prefixes: n.Match.prefixes() + len(n.Addresses)}
}

// Cost returns the table entries that g uses, regardless of the number of rules that refer to it.
func (g *AddressGroup) Cost() Cost { return Cost{Prefixes: len(g.Prefixes)} }

// Cost returns the table entries that s uses.
func (s *FirewallSet) Cost() (c Cost) {
	for _, r := range s.Rules {
		c = c.Add(r.Cost())
	}
	return c.Add(groupsCost(s.Groups))
}

// Cost returns the table entries that s uses.
func (s *NATSet) Cost() (c Cost) {
	for _, r := range s.Rules {
		c = c.Add(r.Cost())
	}
	return c.Add(groupsCost(s.Groups))
}

func groupsCost(groups map[GroupName]AddressGroup) (c Cost) {
	for _, g := range groups {
		c = c.Add(g.Cost())
	}
	return c
}
