// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestPoliciesUnused: rules that decided before the time given, or never, are unused, but not rules
// that pass. The list has parts.
func TestPoliciesUnused(t *testing.T) {
	h := newHarness(t)
	spec := `{"tier":"main","appliedTo":[{}],"isolate":["egress"],"ingress":[{"action":"allow"},{"name":"old","action":"deny"},{"action":"pass"}]}`
	result[api.ChangeResult](h, "apply", `{"objects":[{"kind":"Tier","name":"main","spec":{"order":5}},
		{"kind":"Policy","name":"a","spec":`+spec+`},{"kind":"Policy","name":"b","spec":`+spec+`}]}`)
	now := time.Now()
	used := func(ago time.Duration) datapath.PolicyDecisions {
		return datapath.PolicyDecisions{Packets: 4, Bytes: 400, Connections: 3, Since: now.Add(-100 * time.Hour), Last: now.Add(-ago)}
	}
	o, _ := h.Store.Snapshot().Get(state.Key{Kind: state.KindPolicy, Name: "a"})
	rules := o.Value.(*state.Policy).Rules[policy.Ingress]
	h.plane.policyCounters = map[string]datapath.PolicyCounters{"a": {Rules: [2]map[datapath.PolicyRule]datapath.PolicyDecisions{policy.Ingress: {
		{ID: rules[0].ID, Action: policy.Allow}: used(time.Minute), {ID: rules[1].ID, Action: policy.Deny}: used(2 * time.Hour),
		{ID: rules[1].ID, Action: policy.Allow}: used(0), // before a change that is not in force yet
	}}}}
	unused := func(params string) (list []string, next string) {
		r := result[api.PoliciesUnusedResult](h, "policies.unused", params)
		for _, rule := range r.Rules {
			list = append(list, rule.Policy+" "+rule.Direction+" "+rule.Rule+" "+rule.Action)
		}
		return list, r.Continue
	}
	for params, want := range map[string][]string{
		`{"since":"1h"}`:                  {"a ingress old deny", "a egress  deny", "b ingress 1 allow", "b ingress old deny", "b egress  deny"},
		`{"since":"3h","limit":1}`:        {"a egress  deny"},
		`{"since":"3h","continue":"4 a"}`: {"b ingress 1 allow", "b ingress old deny", "b egress  deny"},
	} {
		if got, _ := unused(params); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", params, got, want)
		}
	}
	if _, next := unused(`{"since":"3h","limit":1}`); next != "4 a" {
		t.Errorf("continues at %q", next)
	}
	c := result[api.CountersResult](h, "counters", `{"kind":"Policy","name":"a"}`)
	if c.Packets != 8 || c.Connections != 6 || c.Drops["policy"] != 4 || len(c.Rules) != 4 || c.Rules[1].Rule != "old" || c.Rules[1].Last == "" || c.Rules[3].Direction != "egress" {
		t.Errorf("counters: %+v", c)
	}
	h.wantError("policies.unused", `{"since":"-1s"}`, 1, "", "since", "is negative")
	h.wantError("policies.unused", `{"since":"1s","continue":"a"}`, 1, "", "continue", "is not a continue value")
	h.wantError("policies.unused", `{"since":"1s","limit":1001}`, 1, "", "limit", "is not from 1 to 1000")
}

// TestPoliciesUnusedPages: a page fits in a reply, however many rules Policies have, and the pages contain
// each rule once.
func TestPoliciesUnusedPages(t *testing.T) {
	h := newHarness(t)
	many := strings.Repeat(`{"action":"deny"},`, 2999) + `{"action":"deny"}`
	for _, p := range []string{"a", "b", "empty", "last"} {
		rules := many
		if p == "empty" {
			rules = ""
		}
		result[api.ChangeResult](h, "apply", `{"objects":[{"kind":"Tier","name":"main","spec":{"order":5}},
			{"kind":"Policy","name":"`+p+`","spec":{"tier":"main","appliedTo":[{}],"ingress":[`+rules+`]}}]}`)
	}
	for _, limit := range []string{"1", "1000"} {
		seen, next := map[string]bool{}, ""
		for pages := 0; ; pages++ {
			r := result[api.PoliciesUnusedResult](h, "policies.unused", `{"since":"1h","limit":`+limit+`,"continue":"`+next+`"}`)
			for _, rule := range r.Rules {
				seen[rule.Policy+" "+rule.Rule] = true
			}
			if next = r.Continue; next == "" || pages > 100 {
				break
			}
		}
		if len(seen) != 9000 || next != "" {
			t.Errorf("limit %s: %d rules, then %q", limit, len(seen), next)
		}
	}
}
