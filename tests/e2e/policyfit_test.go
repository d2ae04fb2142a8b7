// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// largePolicies allow b to be reached, with more different rows of tables than the data plane has room
// for: each of the prefixes has a port of its own beside the ports of all.
func largePolicies() string {
	const policies, prefixes, ports = 8, 1000, 1000
	var b strings.Builder
	for i := range policies {
		fmt.Fprintf(&b, "---\nkind: Policy\nname: large-%d\nspec:\n  tier: main\n  appliedTo: [{entities: {matchLabels: {app: b}}}]\n  ingress:\n", i)
		fmt.Fprint(&b, "    - action: allow\n      ports: [{protocol: tcp, port: 4660}")
		for port := range ports / policies {
			fmt.Fprintf(&b, ", {protocol: tcp, port: %d}", 10000+2*(port*policies+i))
		}
		fmt.Fprint(&b, "]\n")
		for prefix := range prefixes {
			fmt.Fprintf(&b, "    - {action: deny, from: [{prefixes: [100.%d.%d.0/24]}], ports: [{protocol: udp, port: %d}]}\n",
				64+4*i+prefix/250, prefix%250, 20000+2*(prefix+prefixes*i))
		}
	}
	return b.String()
}

// TestPolicyDoesNotFit: subjects of a Policy for which the data plane has no room are isolated. Other
// Policies are in force, and Endpoints can be attached.
func TestPolicyDoesNotFit(t *testing.T) {
	if os.Getenv("LOXILIGHT_POLICIES") == "" {
		t.Skip("make policy-full runs this; it takes minutes")
	}
	s := newPolicies(t)
	s.change("apply", "-f", s.File(strings.ReplaceAll(policyObjects, "app: b}", "app: x}")))
	s.may("with a policy", map[string]bool{"a x tcp": true, "b x tcp": false, "a b tcp": true})
	s.LLCLI("apply", "-f", s.File(largePolicies()))
	large := func(state, text string) {
		t.Helper()
		begin := time.Now()
		testnet.Eventually(t, 5*time.Minute, "a large Policy is "+state, func() bool {
			return strings.Contains(s.LLCLI("get", "policies", "-o", "wide"), text)
		})
		t.Logf("a large Policy is %s after %s:\n%s", state, time.Since(begin).Round(time.Second), s.LLCLI("get", "policies", "-o", "wide"))
	}
	large("not in force", "all ingress of its subjects is denied, because it does not fit")
	s.wantState("shop/a", api.StateReady)
	only := map[string]bool{"a x tcp": true, "b x tcp": false, "a b tcp": false, "b a tcp": true}
	s.may("a policy does not fit", only)
	s.LLCLI("delete", "endpoint", "shop/a")
	s.LLCLI("apply", "-f", s.File(s.objects()))
	s.wantState("shop/a", api.StateReady)
	s.may("with another Endpoint", only)
	s.Kill()
	s.may("with the daemon killed", only)
	s.Start()
	large("not in force after a restart", "because it does not fit")
	s.may("after a restart", only)
	for i := range 8 {
		s.LLCLI("delete", "policy", fmt.Sprintf("large-%d", i))
	}
	s.LLCLI("wait", "policy", "db")
	s.may("without the large policies", map[string]bool{"a x tcp": true, "b x tcp": false, "a b tcp": true})
}
