// SPDX-License-Identifier: Apache-2.0

package llcli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// watched returns the last state that a watch printed for each object.
func watched(output string) map[string]string {
	last := map[string]string{}
	dec := json.NewDecoder(strings.NewReader(output))
	for {
		var o api.Object
		if dec.Decode(&o) != nil {
			return last
		}
		var status api.Status
		_ = json.Unmarshal(o.Status, &status) // a deleted object has a state, too
		last[o.Name] = status.State
	}
}

// TestWatchEndsAtTheStateOfGet flips specs and health quickly while watches run: each ends
// at the state that get shows.
func TestWatchEndsAtTheStateOfGet(t *testing.T) {
	s := newSite(t)
	s.expect("interface add in0 --wait 10s", "created")
	kinds := []string{"service", "firewall", "nat", "addressgroup", "interface"}
	watches := map[string]*testnet.Process{}
	for _, kind := range kinds {
		watches[kind] = s.node.Start(t, programs.CLI, "--socket", s.Socket, "get", kind, "--watch", "-o", "json")
	}
	flip := func(i int) string {
		// The backend does not exist and is checked often, so that its health changes, too.
		health, port := "", 9000+i%7
		if i%2 == 0 {
			health = fmt.Sprintf(", health: {type: tcp, interval: 100ms, timeout: 100ms, unhealthy: 1, port: %d}", port)
		}
		return fmt.Sprintf(`{kind: Service, name: web, spec: {frontends: ["198.51.100.10:80/tcp"], backends: [{address: "10.0.1.2:%d"}]%s}}
---
{kind: AddressGroup, name: admins, spec: {members: ["203.0.113.%d"]}}
---
{kind: FirewallRule, name: ssh, spec: {action: allow, match: {source: "group:admins", protocol: tcp, ports: %d}}}
---
{kind: NAT, name: out, spec: {type: masquerade, match: {source: 10.0.0.0/8, out: in0, ports: %d, protocol: tcp}}}
---
{kind: Interface, name: p1, spec: {device: p1, role: %s}}
`, port, health, i%250+1, port, port, []string{"port", "uplink"}[i%2])
	}
	for i := range 60 {
		s.LLCLI("apply", "-f", s.File(flip(i)))
		if i%20 == 19 { // after the pause that follows a burst, a watch used to stop
			s.settleWatches(kinds, watches)
		}
	}
	for _, w := range watches {
		w.Kill()
	}
}

// settleWatches waits until each watch shows the states that get shows.
func (s *site) settleWatches(kinds []string, watches map[string]*testnet.Process) {
	s.t.Helper()
	s.LLCLI("wait", "--for", "30s")
	for _, kind := range kinds {
		want := map[string]string{}
		for _, o := range decode[[]api.Object](s, "get "+kind+" -o json") {
			var status api.Status
			if err := json.Unmarshal(o.Status, &status); err != nil {
				s.t.Fatal(err)
			}
			want[o.Name] = status.State
		}
		deadline := time.Now().Add(15 * time.Second)
		for name, state := range want {
			for watched(watches[kind].Output())[name] != state {
				if time.Now().After(deadline) {
					s.t.Fatalf("get shows %s %s as %s, the watch as %s", kind, name, state, watched(watches[kind].Output())[name])
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
}

// TestEventsOf: a dropped packet is an event of its rule and of its device, and a topic that cannot
// name an object is rejected.
func TestEventsOf(t *testing.T) {
	s := newSite(t)
	s.expect("interface add in0 --wait 10s", "created")
	s.expect("firewall add rest --in in0 --protocol tcp --port 8443 --action deny --wait 10s", "created")
	s.expect("firewall add other --in in0 --protocol tcp --port 8444 --action deny --wait 10s", "created")
	for _, of := range []string{"firewall/rest", "interface/in0"} {
		events := s.node.Start(t, programs.CLI, "--socket", s.Socket, "events", "drops", "--of", of, "--count", "1")
		silent := s.node.Start(t, programs.CLI, "--socket", s.Socket, "events", "drops", "--of", "fw/other")
		testnet.Eventually(t, 20*time.Second, "a drop of "+of+" is shown", func() bool {
			if c, err := s.client.Dial("tcp", "", "192.0.2.1:8443", 50*time.Millisecond); err == nil {
				_ = c.Close()
			}
			return strings.Contains(events.Output(), "rule rest")
		})
		if out := silent.Output(); out != "" {
			t.Errorf("another rule's events: %s", out)
		}
		silent.Kill()
	}
	// The same packets are shown later, too, as are earlier changes.
	s.expect("events drops --since 5m --of firewall/rest --follow=false", "firewall: tcp 192.0.2.17:", "rule rest")
	s.expect("events changes --since 5m --count 2", "Interface/in0 created", "FirewallRule/rest created")
	s.refuse(2, "events drops --of route/default", "do not name objects of kind Route")
}
