// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// sized returns a state of policies with numbers of rules.
func sized(rules map[string]int) *policy.State {
	s := &policy.State{Tiers: []*policy.Tier{{Name: policy.Failsafe}, {Name: "t", Always: policy.Always{Node: true}}}, Policies: map[string]*policy.Policy{}}
	for name, n := range rules {
		p := &policy.Policy{Name: name, Tier: "t"}
		p.Rules[policy.Ingress] = make([]policy.Rule, n)
		s.Policies[name] = p
	}
	return s
}

// TestUnfit: few policies are isolated, and those that were in force before are not, if others suffice.
func TestUnfit(t *testing.T) {
	old := sized(map[string]int{"a": 5, "b": 5, "z": 5})
	for _, tt := range []struct {
		rules  map[string]int
		before *policy.State
		most   int
		want   string
	}{
		{map[string]int{"a": 1, "b": 30, "c": 1, "d": 40, "e": 1}, nil, 20, "[b d]"},
		{map[string]int{"a": 30}, nil, 20, "[a]"},
		{map[string]int{"a": 9, "b": 9, "c": 9}, nil, 20, "[c]"},
		{map[string]int{"m": 10}, old, 20, "[m]"},
		{map[string]int{"m": 3, "n": 10}, old, 20, "[n]"},
		{map[string]int{}, old, 12, "[z]"}, // all in force before: other objects take more room now
		{map[string]int{}, old, -1, "none"},
	} {
		s := sized(tt.rules)
		if tt.before != nil {
			maps.Copy(s.Policies, tt.before.Policies)
		}
		calls := 0
		unfit, err := unfitIn(s, tt.before, func(s *policy.State) error {
			n := 0
			calls++
			for _, p := range s.Policies {
				n += len(p.Rules[policy.Ingress])
			}
			if n > tt.most {
				return datapath.ErrCapacity
			}
			return nil
		})
		got := fmt.Sprint(slices.Sorted(maps.Keys(unfit)))
		if err != nil {
			got = "none"
		}
		if got != tt.want || calls > 12 {
			t.Errorf("%v, at most %d: %s after %d attempts, want %s", tt.rules, tt.most, got, calls, tt.want)
		}
	}
}

// TestIsolate: isolation comes before all tiers of objects, for the directions that a policy names, and
// never shuts out the peers that its tier never shuts out.
func TestIsolate(t *testing.T) {
	s := sized(map[string]int{"a": 1, "b": 1})
	i := new(Isolator)
	is := i.Isolate(s, slices.Values([]string{"a", "absent"}))
	a := is.Policies["a"]
	if a.Isolates != [2]bool{true, false} || len(a.Rules[policy.Ingress]) != 0 || is.Policies["b"] != s.Policies["b"] || len(s.Tiers) != 2 {
		t.Errorf("%+v", is)
	}
	if len(is.Tiers) != 3 || is.Tiers[0].Name != policy.Failsafe || is.Tiers[1].Name != a.Tier || !is.Tiers[1].Always.Node || is.Tiers[2] != s.Tiers[1] {
		t.Errorf("tiers %+v", is.Tiers)
	}
	again := i.Isolate(s, slices.Values([]string{"a"}))
	if again.Policies["a"] != a || again.Tiers[1] != is.Tiers[1] {
		t.Error("an unchanged policy, or its tier, has another value")
	}
}
