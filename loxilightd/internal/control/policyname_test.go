// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestPolicyCheckByName: the verdict on traffic to a DNS name is about its learnt addresses, or about one
// that a response will contain.
func TestPolicyCheckByName(t *testing.T) {
	h := newHarness(t)
	result[api.ChangeResult](h, "apply", `{"objects":[{"kind":"Endpoint","name":"x","spec":{"device":"hs9","mac":"02:00:00:00:00:09","addresses":["10.1.0.9"]}}]}`)
	s := &policy.State{
		Entities: map[string]*policy.Entity{"Endpoint/x": {Name: "Endpoint/x", Set: "pods", Endpoint: "x", Network: "net", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.9")}}},
		Tiers:    []*policy.Tier{{Name: "main"}},
		Policies: map[string]*policy.Policy{"p": {Name: "p", Tier: "main", AppliedTo: []policy.Selector{{Set: "pods"}}, Rules: [2][]policy.Rule{policy.Egress: {
			{Action: policy.Deny, Peers: []policy.Peer{{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.66/32")}}}},
			{Action: policy.Allow, Peers: []policy.Peer{{Names: []string{"db.example.org", "*.wild.example.org"}}}},
			{Action: policy.Deny, Peers: []policy.Peer{{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}}},
		}}}},
	}
	h.progress.policies = func() (*policy.State, *state.Snapshot, string) { return s, h.Store.Snapshot(), "" }
	check := func(to string) string {
		r := result[api.PoliciesCheckResult](h, "policies.check", `{"from":"x","to":"`+to+`","protocol":"tcp","port":443}`)
		var all []string
		for _, p := range r.Paths {
			all = append(all, fmt.Sprintf("%s %s %s", p.Destination, p.Name, p.Verdict))
		}
		return strings.Join(all, ", ")
	}
	for to, want := range map[string]string{
		"DB.example.org.":      " db.example.org allow",
		"a.b.wild.example.org": " a.b.wild.example.org allow",
		"*.wild.example.org":   " *.wild.example.org allow",
		"wild.example.org":     " wild.example.org deny",
		"*.example.org":        " *.example.org deny",
	} {
		if got := check(to); got != want {
			t.Errorf("%s: %q, want %q", to, got, want)
		}
	}
	h.plane.usableNames = []string{"db.example.org"}
	h.plane.addrsOf = map[string][]netip.Addr{"db.example.org": {netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.66"), netip.MustParseAddr("2001:db8::7")}}
	if got, want := check("db.example.org"), "192.0.2.7 db.example.org allow, 192.0.2.66 db.example.org deny"; got != want {
		t.Errorf("learnt: %q, want %q", got, want)
	}
	s.Entities["Endpoint/x"].Network = "" // without resolvers
	h.plane.addrsOf = nil
	if got := check("db.example.org"); got != " db.example.org deny" {
		t.Errorf("without resolvers: %q", got)
	}
	h.wantError("policies.check", `{"from":"192.0.2.9","to":"db.example.org","protocol":"tcp","port":443}`, 1, "", "from",
		"is no Endpoint of this node, and names are learnt for Endpoints only")
}
