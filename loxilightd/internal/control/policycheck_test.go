// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/netip"
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
		return h.decidingRule(&datapath.PolicyDecision{Endpoint: "pod", Verdict: policy.Verdict{Action: policy.Deny, Tier: "main", Policy: "p", Rule: 0}}).Rule
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

// TestPolicyCheckByLinkLocalAddress: the link-local address of an Endpoint stands for the Endpoint, whose
// policies apply to packets with this address too.
func TestPolicyCheckByLinkLocalAddress(t *testing.T) {
	h := newHarness(t)
	local := netip.MustParseAddr("fe80::5eff:fe72:4")
	s := &policy.State{
		Entities: map[string]*policy.Entity{"Endpoint/x": {Name: "Endpoint/x", Set: "pods", Endpoint: "x", Addrs: []netip.Addr{local}}},
		Tiers:    []*policy.Tier{{Name: "main"}},
		Policies: map[string]*policy.Policy{"p": {Name: "p", Tier: "main", AppliedTo: []policy.Selector{{Set: "pods"}}, Isolates: [2]bool{true, true}}},
	}
	h.progress.policies = func() (*policy.State, *state.Snapshot, string) { return s, h.Store.Snapshot(), "" }
	for _, from := range []string{"fe80::5eff:fe72:4", "fe80::5eff:fe72:4%hs3"} {
		r := result[api.PoliciesCheckResult](h, "policies.check", `{"from":"`+from+`","to":"fe80::9","protocol":"tcp","port":4660}`)
		if len(r.Paths) != 1 || r.Paths[0].Verdict != "deny" || r.Paths[0].Egress == nil {
			t.Errorf("from %s: %+v", from, r.Paths)
		}
	}
}
