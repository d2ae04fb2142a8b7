// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestStatelessRule: replies to packets that a stateless rule allows are evaluated. Exceptions are
// replies on translated connections and on connections older than the rule: their entries decide.
func TestStatelessRule(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	before := n.dial("10.0.1.11:8080")
	before.echo(t, "before")
	n.putRules(datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{
		"asking":    {Priority: 1, Hooks: datapath.HookForward, Stateless: true, Match: datapath.Match{In: []string{"in0"}}},
		"answering": {Priority: 2, Hooks: datapath.HookForward, Action: datapath.ActionDeny, Match: datapath.Match{In: []string{"out0"}}},
	}})
	before.echo(t, "after")
	hears := func(what, addr string, want bool) {
		t.Helper()
		if _, err := n.ask(addr); (err == nil) != want {
			t.Errorf("%s: %v, want an answer: %v", what, err, want)
		}
	}
	hears("plain", "10.0.1.11:8080", false)
	hears("a service", "198.51.100.10:80", true)
	n.translate(map[datapath.NATName]datapath.NAT{"in": {
		Type: datapath.DNAT, Match: datapath.Match{Destination: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/32")}},
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.11/32")},
	}})
	hears("dnat", "203.0.113.7:8080", true)
	hears("plain beside dnat", "10.0.1.11:8080", false)
	n.translate(map[datapath.NATName]datapath.NAT{"away": masquerade("out0")})
	hears("masquerade", "10.0.1.11:8080", true)
}
