// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestCapacityOwners: llcli capacity counts real connections by source and Service, and the source
// ports that they use towards a backend.
func TestCapacityOwners(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s := newSite(t).start()
		s.serve(s.backends[0], backendAddr(family, 0, 8080), "b1")
		front := vip + ":9000"
		s.Apply(serviceYAML("web", []string{front + "/udp"}, []string{backendAddr(family, 0, 8080)}, "source: snat"))
		for _, load := range []struct {
			from  string
			flows int
		}{{"client", 60}, {"near", 25}} {
			ns := s.client
			if load.from == "near" {
				ns = s.near
			}
			testtraffic.Start(t, ns, front, testtraffic.Load{Flows: load.flows, Packets: 500})
		}
		var r api.CapacityResult
		if err := json.Unmarshal([]byte(s.LLCLI("capacity", "connections", "sourceports", "--owners", "5", "-o", "json")), &r); err != nil {
			t.Fatal(err)
		}
		sources := map[string]string{
			"IPv4": "{source 192.0.2.17 60 false} {source 192.0.2.77 25 false}",
			"IPv6": "{source 2001:db8:0:2::/64 85 false}", // they share a prefix
		}
		node := map[string]string{"IPv4": "10.0.1.1", "IPv6": "2001:db8:1::1"}
		found := 0
		for _, table := range r.Tables {
			switch table.Name {
			case "connections " + family:
				found++
				if got, want := fmt.Sprint(table.Owners), "["+sources[family]+" {object Service/web 85 false}]"; got != want {
					t.Errorf("owners %s, want %s", got, want)
				}
				if table.Used != 85 {
					t.Errorf("%d connections of %d, want 85", table.Used, table.Size)
				}
			case "sourcePorts":
				found++
				want := fmt.Sprintf("[{remote %s to %s/udp 85 false}]", node[family], backendAddr(family, 0, 8080))
				if got := fmt.Sprint(table.Owners); got != want || table.Used != 85 || table.Size < 30_000 {
					t.Errorf("%d of %d source ports, owners %s, want %s", table.Used, table.Size, got, want)
				}
			}
		}
		if found != 2 {
			t.Errorf("tables %+v", r.Tables)
		}
	})
}

// TestRuleOfConnections: llcli connections names the rule that allows each connection, directly and
// through a Service; after a change of rules, their next packet updates it. It outlives the daemon.
func TestRuleOfConnections(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s := newSite(t).start()
		direct, front := backendAddr(family, 0, 8080), vip+":9000"
		s.backends[0].ServeTCP(t, direct, "b1")
		s.Apply(rule("asking", 90, "allow", "forward", "in: in0") + rule("rest", 100, "deny", "forward", "") +
			serviceYAML("web", []string{front + "/tcp"}, []string{direct}))
		all := map[string]net.Conn{}
		for _, to := range []string{direct, front} {
			c, err := s.client.Dial("tcp", "", to, patience)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			all[to] = c
		}
		check := func(when, want string, answered bool) {
			t.Helper()
			var list []api.Connection
			if err := json.Unmarshal([]byte(s.LLCLI("connections", "--protocol", "tcp", "-o", "json")), &list); err != nil {
				t.Fatal(err)
			}
			found := 0
			for i := range list {
				c := &list[i]
				if all[c.Original.Destination] == nil {
					continue
				}
				found++
				if denied := strings.Contains(c.Forth.Why, "no longer allow"); c.Rule != want || denied == answered {
					t.Errorf("%s: to %s: rule %q, forth %+v, want rule %q", when, c.Original.Destination, c.Rule, c.Forth, want)
				}
			}
			if found != len(all) {
				t.Errorf("%s: found %d of %d connections in %+v", when, found, len(all), list)
			}
		}
		expect := func(when, want string, answered bool) {
			t.Helper()
			time.Sleep(300 * time.Millisecond) // a packet within 134 ms of a change of rules may be from before it
			for _, c := range all {
				echoes(t, c, answered)
			}
			check(when, want, answered)
		}
		expect("as opened", "asking", true)
		if out := s.LLCLI("capacity", "connections", "--owners", "9", "-o", "json"); !strings.Contains(out, `"FirewallRule/asking"`) {
			t.Errorf("the rule is no owner of connections:\n%s", out)
		}
		s.Apply(rule("first", 10, "allow", "forward", "protocol: tcp"))
		expect("with a rule before it", "first", true)
		s.Kill()
		s.Start()
		expect("with the next daemon", "first", true)
		s.Apply(rule("never", 5, "deny", "forward", "in: in0"))
		expect("denied", "never", false)
		s.LLCLI("delete", "FirewallRule", "never", "--wait", "5s")
		expect("allowed again", "first", true)
		s.LLCLI("delete", "FirewallRule", "first", "--wait", "5s")
		s.Kill()
		s.Start()
		s.Apply(rule("other", 20, "allow", "forward", "protocol: udp")) // the id of the deleted one is free
		check("silent since a rule was deleted", "", true)
		expect("with a rule after it", "asking", true)
		s.LLCLI("delete", "FirewallRule", "asking", "rest", "other", "--wait", "5s")
		expect("without rules", "", true)
	})
}
