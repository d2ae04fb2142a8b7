// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// countedObjects: %s stands for further ingress rules of db, before the others.
const countedObjects = `
kind: Tier
name: main
spec: {order: 200, always: [self, node]}
---
kind: Policy
name: db
spec:
  tier: main
  isolate: [ingress]
  log: [allow, deny]
  appliedTo: [{entities: {matchLabels: {app: b}}}]
  ingress:%s
    - action: allow
      from: [{entities: {matchLabels: {app: a}}}]
      ports: [{protocol: tcp, port: 4660}]
    - {name: never, action: deny, ports: [{protocol: sctp}]}
---
kind: Policy
name: out
spec:
  tier: main
  appliedTo: [{entities: {matchLabels: {app: a}}}]
  egress:
    - {name: tcp, action: allow, ports: [{protocol: tcp}]}
---
kind: Policy
name: trial
spec:
  tier: main
  priority: 1
  stage: staged
  appliedTo: [{entities: {matchLabels: {app: b}}}]
  ingress:
    - {name: no-tcp, action: deny, ports: [{protocol: tcp}]}
`

// decisions returns the counters of the rules of a policy as "DIRECTION RULE: CONNECTIONS PACKETS".
func (s *policySite) decisions(policy string) (list []string) {
	s.t.Helper()
	var c api.CountersResult
	if err := json.Unmarshal([]byte(s.LLCLI("counters", "policy", policy, "-o", "json")), &c); err != nil {
		s.t.Fatal(err)
	}
	for _, r := range c.Rules {
		list = append(list, fmt.Sprintf("%s %s: %d %d", r.Direction, r.Rule, r.Connections, r.Packets))
	}
	return list
}

// counted compares the counters of all policies.
func (s *policySite) counted(when string, want map[string][]string) {
	s.t.Helper()
	for policy, counters := range want {
		if got := s.decisions(policy); !slices.Equal(got, counters) {
			s.t.Errorf("%s: policy %s: %q, want %q", when, policy, got, counters)
		}
	}
}

// traffic opens 7 connections from a to b, and sends 5 datagrams from x to b.
func (s *policySite) traffic() {
	s.t.Helper()
	for range 7 {
		c, err := s.pods["a"].ns.Dial("tcp", "", "10.72.0.3:4660", patience)
		if err != nil {
			s.t.Fatal(err)
		}
		echoes(s.t, c, true)
		c.Close()
	}
	c, err := s.pods["x"].ns.Dial("udp", "", "[fd72::3]:4661", patience)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	for range 5 {
		if _, err := c.Write([]byte("x")); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestPolicyCounters: each rule counts the connections that it allows, and the packets that it denies,
// exactly; across restarts and changes of its policy. A staged policy counts the decisions that it would make.
func TestPolicyCounters(t *testing.T) {
	s := newPolicies(t)
	s.change("apply", "-f", s.File(fmt.Sprintf(countedObjects, "")))
	s.counted("before", map[string][]string{"db": {"ingress 1: 0 0", "ingress never: 0 0", "ingress : 0 0"}})
	s.traffic()
	s.counted("after traffic", map[string][]string{
		"db": {"ingress 1: 7 7", "ingress never: 0 0", "ingress : 0 5"}, "out": {"egress tcp: 7 7"}, "trial": {"ingress no-tcp: 7 7"},
	})
	s.Kill()
	s.traffic()
	s.Start()
	s.ready(endpointPatience, "pods are ready again")
	s.counted("after a restart", map[string][]string{
		"db": {"ingress 1: 14 14", "ingress never: 0 0", "ingress : 0 10"}, "out": {"egress tcp: 14 14"}, "trial": {"ingress no-tcp: 14 14"},
	})
	s.change("apply", "-f", s.File(fmt.Sprintf(countedObjects, "\n    - {action: deny, ports: [{protocol: udp}]}")))
	s.traffic()
	s.counted("with another rule in front", map[string][]string{
		"db": {"ingress 1: 0 5", "ingress 2: 21 21", "ingress never: 0 0", "ingress : 0 10"}, "out": {"egress tcp: 21 21"}, "trial": {"ingress no-tcp: 21 21"},
	})
	if out := s.LLCLI("policy", "unused", "--since", "1h"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "never") {
		t.Errorf("llcli policy unused:\n%s", out)
	}
	out := s.LLCLI("policy", "check", "--all", "-f", s.File(strings.Replace(fmt.Sprintf(countedObjects, ""), "port: 4660", "port: 4670", 1)))
	for _, want := range []string{"Endpoint/shop/a (fd72::2)  Endpoint/shop/b (fd72::3)  tcp/4660  allow   deny", "Endpoint/shop/a (10.72.0.2)  Endpoint/shop/b (10.72.0.3)  tcp/4670  deny    allow"} {
		if !strings.Contains(strings.ReplaceAll(out, "  ", ""), strings.ReplaceAll(want, "  ", "")) {
			t.Errorf("llcli policy check --all lacks %q:\n%s", want, out)
		}
	}
	var items []api.Connection
	if err := json.Unmarshal([]byte(s.LLCLI("connections", "--endpoint", "shop/b", "--protocol", "tcp", "-o", "json")), &items); err != nil || len(items) < 21 {
		t.Errorf("%d connections: %v", len(items), err)
	}
	for i := range items {
		var deciders []string
		for _, p := range items[i].Policies {
			deciders = append(deciders, p.Endpoint+" "+p.Direction+" "+p.Policy+" "+p.Rule)
		}
		if want := []string{"shop/a egress out tcp", "shop/b ingress db 2"}; !slices.Equal(deciders, want) {
			t.Errorf("%s: %q, want %q", items[i].Original.Source, deciders, want)
			break
		}
	}
	events := s.node.Start(t, programs.CLI, "--socket", s.Socket, "events", "policy")
	testnet.Eventually(t, patience, "events report allowed and denied packets, with their number", func() bool {
		s.traffic()
		out := events.Output()
		return strings.Contains(out, "allow: tcp 10.72.0.2:") && strings.Contains(out, "ingress of endpoint shop/b by policy db rule 2, tier main") &&
			strings.Contains(out, "deny: udp") && strings.Contains(out, "rule 1, tier main, ") && strings.Contains(out, " such packets")
	})
	if t.Failed() {
		t.Log(events.Output())
	}
}

// TestPolicyCountsUntracked: rules count a packet that the ingress hook does not track, since a stateless
// FirewallRule allows it. The egress hook of the receiver then opens its connection.
func TestPolicyCountsUntracked(t *testing.T) {
	s := newPolicies(t)
	s.change("apply", "-f", s.File(`
kind: Tier
name: main
spec: {order: 200, always: [self, node]}
---
kind: Policy
name: p
spec:
  tier: main
  appliedTo: [{}]
  ingress: [{name: udp, action: allow, ports: [{protocol: udp, port: 4662}]}]
  egress: [{name: udp, action: allow, ports: [{protocol: udp, port: 4662}]}]
---
kind: FirewallRule
name: stateless
spec: {priority: 1, action: allow, hooks: [forward], stateful: false, match: {protocol: udp, ports: [4662]}}
`))
	c, err := s.pods["a"].ns.Dial("udp", "", "10.72.0.3:4662", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 5 {
		_, _ = c.Write([]byte("x")) // b answers that nothing listens
	}
	s.counted("stateless", map[string][]string{"p": {"ingress udp: 1 1", "egress udp: 0 1"}})
}
