// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// denyAll blocks everything, with stateful and with stateless rules.
const denyAll = `
kind: FirewallRule
name: shut
spec: {priority: -1000, action: deny, hooks: [input, output, forward]}
---
kind: FirewallRule
name: shut-each-packet
spec: {priority: -2000, action: deny, hooks: [input, output, forward], stateful: false}
`

// TestNeverLockedOut blocks all access to a node: clients exempted in the configuration are
// unaffected, and all others have access again if the change is not confirmed.
func TestNeverLockedOut(t *testing.T) {
	s := newSite(t, `firewall: {exempt: [{source: [192.0.2.17, "2001:db8:0:2::17"], protocol: tcp, ports: 8022}]}`).start()
	nodes := []string{"192.0.2.1", "[2001:db8:0:2::1]"}
	for _, node := range nodes {
		s.node.ServeTCP(t, node+":8022", "management")
		s.node.ServeTCP(t, node+":8023", "other")
	}
	session, err := s.client.Dial("tcp", "", nodes[0]+":8022", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	all := func(when, exempt, others string) {
		t.Helper()
		for _, node := range nodes {
			for _, w := range []struct {
				from *testnet.NS
				port string
				want string
			}{{s.client, ":8022", exempt}, {s.client, ":8023", others}, {s.near, ":8022", others}} {
				wait := patience
				if w.want == silent {
					wait = silence
				}
				if got := try(w.from, "tcp", node+w.port, wait); got != w.want {
					t.Errorf("%s: %s to %s%s: %s, want %s", when, w.from.Name(), node, w.port, got, w.want)
				}
			}
		}
		_ = session.SetDeadline(time.Now().Add(patience)) // if this fails, the write fails, too
		if _, err := session.Write([]byte("ping\n")); err != nil {
			t.Fatalf("%s: the session: %v", when, err)
		}
		if _, err := io.ReadFull(session, make([]byte, 5)); err != nil {
			t.Fatalf("%s: the session: %v", when, err)
		}
	}
	all("before", let, let)
	s.LLCLI("apply", "--wait", "5s", "--confirm", "1h", "-f", s.File(denyAll))
	for _, ns := range []*testnet.NS{s.client, s.node} { // the neighbour must be resolved again
		ns.Run(t, "ip", "neigh", "flush", "all")
	}
	all("shut", let, silent)
	s.LLCLI("rollback", "--last", "--wait", "5s")
	all("taken back", let, let)
	s.LLCLI("apply", "--wait", "5s", "--confirm", "8s", "-f", s.File(denyAll))
	all("shut again", let, silent)
	s.Kill()
	s.Start()
	testnet.Eventually(t, startPatience, "near is let in again", func() bool { return try(s.near, "tcp", nodes[0]+":8022", silence) == let })
	all("not confirmed", let, let)
}

// startPatience is the maximum time that an unconfirmed change may stay in force.
const startPatience = 30 * time.Second
