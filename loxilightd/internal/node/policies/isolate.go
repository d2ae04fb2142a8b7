// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"iter"
	"maps"
	"slices"
	"sort"

	"github.com/loxilight/loxilight/datapath/policy"
)

// Isolator replaces policies that cannot be in force as desired. It makes each value once, as a
// [Builder] does. It is not safe for concurrent use.
type Isolator struct {
	policies map[*policy.Policy]*policy.Policy
	tiers    map[*policy.Tier]*policy.Tier
}

// IsolatingTier returns the name of the tier with the replacements of the policies of a tier. No object
// has such a name.
func IsolatingTier(tier string) string { return "isolation instead of " + tier }

// Isolate returns a state in which each of the named policies denies all traffic of its subjects, in
// the directions that it isolates or has rules for. It does so before all tiers but the built-in ones;
// peers that its tier never shuts out pass on to the other tiers. Staged policies are left out.
func (i *Isolator) Isolate(s *policy.State, names iter.Seq[string]) *policy.State {
	next := *s
	next.Policies = maps.Clone(s.Policies)
	used, tiers, policies := map[string]bool{}, map[*policy.Tier]*policy.Tier{}, map[*policy.Policy]*policy.Policy{}
	for name := range names {
		p := s.Policies[name]
		if p == nil {
			continue
		}
		if p.Staged {
			delete(next.Policies, name)
			continue
		}
		isolating := i.policies[p]
		if isolating == nil {
			isolating = &policy.Policy{
				Name: p.Name, Tier: IsolatingTier(p.Tier), AppliedTo: p.AppliedTo, Here: p.Here, Rejects: p.Rejects, LogsDeny: p.LogsDeny,
				Isolates: named(p),
			}
		}
		next.Policies[name], policies[p], used[p.Tier] = isolating, isolating, true
	}
	first := 0
	for first < len(s.Tiers) && isBuiltIn(s.Tiers[first].Name) {
		first++
	}
	var added []*policy.Tier
	for _, tier := range s.Tiers {
		if !used[tier.Name] {
			continue
		}
		if tiers[tier] = i.tiers[tier]; tiers[tier] == nil {
			tiers[tier] = &policy.Tier{Name: IsolatingTier(tier.Name), Always: tier.Always}
		}
		added = append(added, tiers[tier])
	}
	next.Tiers = slices.Insert(slices.Clone(s.Tiers), first, added...)
	i.policies, i.tiers = policies, tiers
	return &next
}

// named returns the directions that a policy isolates or has rules for.
func named(p *policy.Policy) (is [2]bool) {
	for d := range is {
		is[d] = p.Isolates[d] || len(p.Rules[d]) > 0
	}
	return is
}

// isBuiltIn reports whether a tier, or a policy, is not made from an object.
func isBuiltIn(name string) bool { return name == policy.Unknown || name == policy.Failsafe }

// mostUnfit limits how many policies are searched for; if more do not fit, policies that would fit may
// be isolated too.
const mostUnfit = 8

// unfitIn returns the policies that must be isolated for a state to fit. Policies that differ from those
// of the state before are isolated rather than others. s itself does not fit. It returns the error
// of fits if not even isolation of all policies fits.
func unfitIn(s, before *policy.State, fits func(*policy.State) error) (unfit map[string]bool, err error) {
	var changed, all []string
	for name, p := range s.Policies {
		if isBuiltIn(name) {
			continue
		}
		if all = append(all, name); before == nil || before.Policies[name] != p {
			changed = append(changed, name)
		}
	}
	for _, suspects := range [][]string{changed, all} {
		slices.Sort(suspects)
		if unfit, err = unfitOf(s, suspects, fits); err == nil {
			break
		}
	}
	return unfit, err
}

// unfitOf is unfitIn for certain policies.
func unfitOf(s *policy.State, suspects []string, fits func(*policy.State) error) (map[string]bool, error) {
	unfit := map[string]bool{}
	without := func(rest []string) error {
		isolated := maps.Clone(unfit)
		for _, name := range rest {
			isolated[name] = true
		}
		return fits(new(Isolator).Isolate(s, maps.Keys(isolated)))
	}
	if err := without(suspects); err != nil {
		return nil, err
	}
	for fit := false; len(suspects) > 0 && !fit; fit = without(nil) == nil {
		// The first suspect that does not fit beside the suspects before it.
		at := sort.Search(len(suspects)-1, func(i int) bool { return without(suspects[i+1:]) != nil })
		unfit[suspects[at]] = true
		suspects = suspects[at+1:]
		if len(unfit) == mostUnfit {
			for _, name := range suspects {
				unfit[name] = true
			}
			break
		}
	}
	return unfit, nil
}
