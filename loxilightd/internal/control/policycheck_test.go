// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestPolicyDropNamesTheRuleInForce: while a changed Policy is not in force, an event gives the number
// of the rule that dropped the packet, not the name of the rule that has this number in the change.
func TestPolicyDropNamesTheRuleInForce(t *testing.T) {
	h := newHarness(t)
	apply := func(rules string) {
		result[api.ChangeResult](h, "apply", `{"objects":[{"kind":"Tier","name":"main","spec":{"order":5}},
			{"kind":"Policy","name":"p","spec":{"tier":"main","appliedTo":[{}],"ingress":[`+rules+`]}}]}`)
	}
	drop := func() string {
		return h.policyDrop(&datapath.PolicyDrop{Endpoint: "pod", Verdict: policy.Verdict{Action: policy.Deny, Tier: "main", Policy: "p", Rule: 0}}).Rule
	}
	old := `{"name":"old","action":"deny"}`
	apply(old)
	pending, of := "", h.Store.Snapshot()
	h.progress.policies = func() (*policy.State, *state.Snapshot, string) { return &policy.State{}, of, pending }
	if got := drop(); got != "old" {
		t.Errorf("in force: rule %q", got)
	}
	apply(`{"name":"new","action":"allow"},` + old)
	if got := drop(); got != "1" {
		t.Errorf("not received yet: rule %q", got)
	}
	of, pending = h.Store.Snapshot(), "too many rows"
	if got := drop(); got != "1" {
		t.Errorf("not in force: rule %q", got)
	}
}
