// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// policyObjects allow pods with label app=a to reach b by TCP on port 4660.
const policyObjects = `
kind: Tier
name: main
spec: {order: 200, always: [self, node]}
---
kind: Policy
name: db
spec:
  tier: main
  isolate: [ingress]
  appliedTo: [{entities: {matchLabels: {app: b}}}]
  ingress:
    - action: allow
      from: [{entities: {matchLabels: {app: a}}}]
      ports: [{protocol: tcp, port: 4660}]
`

// policySite is an endpointSite in which every pod serves every protocol.
type policySite struct{ *endpointSite }

func newPolicies(t *testing.T) *policySite {
	s := &policySite{newEndpoints(t)}
	for _, name := range []string{"a", "x"} {
		p := s.pods[name]
		p.ns.ServeTCP(t, p.addr.String()+":4660", name)
		p.ns.ServeUDP(t, p.addr.String()+":4660", name)
	}
	s.pods["b"].ns.ServeTCP(t, "["+s.pods["b"].addr6.String()+"]:4660", "b")
	return s
}

// may compares which pods reach which, by "from to protocol".
func (s *policySite) may(when string, want map[string]bool) {
	s.t.Helper()
	for way, allowed := range want {
		f := strings.Fields(way)
		to := s.pods[f[1]]
		for _, addr := range []string{to.addr.String(), "[" + to.addr6.String() + "]"} {
			if f[1] != "b" && addr[0] == '[' {
				continue // served by b alone
			}
			outcome, wait := let, patience
			if !allowed {
				outcome, wait = silent, silence
			}
			if got := try(s.pods[f[0]].ns, f[2], addr+":4660", wait); got != outcome {
				s.t.Errorf("%s: %s, %s: %s, want %s", when, way, addr, got, outcome)
			}
		}
	}
}

// hasEvent sends until an event about a drop contains all the texts.
func (s *policySite) hasEvent(from, network, to string, texts ...string) {
	s.t.Helper()
	events := s.node.Start(s.t, programs.CLI, "--socket", s.Socket, "events", "drops")
	testnet.Eventually(s.t, patience, "an event says why", func() bool {
		try(s.pods[from].ns, network, to, silence)
		for line := range strings.SplitSeq(events.Output(), "\n") {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return true
			}
		}
		return false
	})
	if s.t.Failed() {
		s.t.Logf("want %q in\n%s", texts, events.Output())
	}
}

// change applies objects and waits until they are Ready.
func (s *policySite) change(args ...string) {
	s.t.Helper()
	s.LLCLI(append(args, "--wait", "5s")...)
}

// TestPolicies: a policy decides about new and running connections between pods, from the moment at
// which it is Ready; with the daemon killed, and after a restart; by the labels that pods have.
func TestPolicies(t *testing.T) {
	s := newPolicies(t)
	every := map[string]bool{"a b tcp": true, "x b tcp": true, "a b udp": true, "x b udp": true, "b a tcp": true, "b x udp": true, "a x tcp": true}
	s.may("without policies", every)
	held := map[string]net.Conn{}
	for _, from := range []string{"a", "x"} {
		for _, addr := range []string{"10.72.0.3:4660", "[fd72::3]:4660"} {
			c, err := s.pods[from].ns.Dial("tcp", "", addr, patience)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			held[from+" "+addr] = c
		}
	}
	running := func(when string, x bool) {
		t.Helper()
		for name, c := range held {
			t.Run(fmt.Sprint(when, ", ", name), func(t *testing.T) { echoes(t, c, x || name[0] == 'a') })
		}
	}
	running("at first", true)
	only := map[string]bool{"a b tcp": true, "x b tcp": false, "a b udp": false, "x b udp": false, "b a tcp": true, "b x udp": true, "a x tcp": true}
	s.change("apply", "-f", s.File(policyObjects))
	running("with a policy", false)
	s.may("with a policy", only)
	if out := s.LLCLI("get", "policies"); !strings.Contains(out, "Ready") {
		t.Errorf("llcli get policies:\n%s", out)
	}
	if drops := s.Counters("Endpoint", "shop/x").Drops["policy"]; drops == 0 {
		t.Error("no drop is counted at the port of x")
	}
	s.hasEvent("x", "tcp", "10.72.0.3:4660", "policy:", "ingress of endpoint shop/b by policy db, tier main")
	pins := filepath.Join(s.PinDir, "layout-1+policies")
	if _, err := os.Stat(pins); err != nil {
		t.Errorf("an older version may take over: %v", err)
	}
	s.Kill()
	running("with the daemon killed", false)
	s.may("with the daemon killed", only)
	s.Start()
	s.ready(endpointPatience, "pods are ready again")
	running("after a restart", false)
	s.may("after a restart", only)

	s.change("endpoint", "set", "shop/x", "--label", "app=a")
	fresh, err := s.pods["x"].ns.Dial("tcp", "", "10.72.0.3:4660", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	echoes(t, fresh, true)
	s.may("x is labelled", map[string]bool{"a b tcp": true, "x b tcp": true, "x b udp": false})
	s.change("endpoint", "set", "shop/x", "--label", "app=x")
	echoes(t, fresh, false)
	running("x is labelled as before", false)
	s.may("x is labelled as before", only)
	s.LLCLI("delete", "policy", "db", "--wait", "5s")
	if _, err := os.Stat(pins); err == nil {
		t.Error("an older version may not take over without policies")
	}
	for name, c := range held {
		// TCP sends again after up to twice the time for which it was denied.
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute)) // if this fails, the read fails, too
		if name[0] == 'x' {
			if _, err := c.Read(make([]byte, 100)); err != nil {
				t.Errorf("without the policy, %s: %v", name, err)
			}
			continue
		}
		echoes(t, c, true)
	}
	s.may("without the policy", every)

	// A policy for what a sends.
	s.change("apply", "-f", s.File(`
kind: Policy
name: out
spec:
  tier: main
  isolate: [egress]
  appliedTo: [{entities: {matchLabels: {app: a}}}]
  egress: [{action: pass, ports: [{protocol: udp, port: 9}]}, {name: not-x, action: deny, to: [{entities: {matchLabels: {app: x}}}], ports: [{protocol: udp}]}, {action: reject, to: [{entities: {matchLabels: {app: x}}}]}]
`))
	s.may("a may not send", map[string]bool{"a b tcp": false, "b a tcp": true, "x b tcp": true, "a b udp": false})
	begin := time.Now()
	if got := try(s.pods["a"].ns, "tcp", "10.72.0.4:4660", patience); got == let || time.Since(begin) > patience/2 {
		t.Errorf("a to x, rejected: %s after %s", got, time.Since(begin))
	}
	s.hasEvent("a", "udp", "10.72.0.4:4660", "policy:", "egress of endpoint shop/a by policy out rule not-x, tier main")
	s.hasEvent("a", "udp", "10.72.0.3:4660", "policy:", "egress of endpoint shop/a by policy out, tier main")
	testnet.Eventually(t, patience, "health is ok", func() bool { _, code, _ := s.TryLLCLI("health"); return code == 0 })
}
