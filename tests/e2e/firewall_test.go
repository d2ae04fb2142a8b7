// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// silence is how long the test waits for an answer that must not arrive.
const silence = 300 * time.Millisecond

// The results of an attempted connection.
const (
	let     = "let through"
	refused = "refused"
	silent  = "not answered"
)

// try opens a connection, and for UDP sends a datagram.
func try(from *testnet.NS, network, to string, wait time.Duration) string {
	c, err := from.Dial(network, "", to, wait)
	if err == nil {
		defer c.Close()
		if _, err = c.Write([]byte("hello")); err == nil {
			_ = c.SetReadDeadline(time.Now().Add(wait)) // if this fails, the read fails, too
			_, err = c.Read(make([]byte, 100))
		}
	}
	switch {
	case err == nil:
		return let
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EHOSTUNREACH):
		return refused
	}
	return silent
}

// rule is a FirewallRule as YAML.
func rule(name string, priority int, action, hooks, match string) string {
	return fmt.Sprintf("---\nkind: FirewallRule\nname: %s\nspec: {priority: %d, action: %s, hooks: [%s], match: {%s}}\n", name, priority, action, hooks, match)
}

// way is an attempted connection, and its results without rules and with them.
type way struct {
	what         string
	from         *testnet.NS
	network, to  string
	before, with string
}

// firewallWays starts servers on the node and behind it, and returns attempted connections to them.
func firewallWays(s *site) (ways []way) {
	for _, f := range []struct{ name, node, far string }{
		{"IPv4", "192.0.2.1", "10.0.1.2"}, {"IPv6", "[2001:db8:0:2::1]", "[2001:db8:1::2]"},
	} {
		for _, port := range []string{"8001", "8002", "8003"} {
			s.serve(s.backends[0], f.far+":"+port, "far")
			s.serve(s.node, f.node+":"+port, "node")
		}
		for _, network := range []string{"tcp", "udp"} {
			ways = append(ways,
				way{f.name + " forwarded, no rule", s.client, network, f.far + ":8001", let, let},
				way{f.name + " forwarded, denied", s.client, network, f.far + ":8002", let, silent},
				way{f.name + " forwarded, rejected", s.client, network, f.far + ":8003", let, refused},
				way{f.name + " forwarded, allowed before it is rejected", s.near, network, f.far + ":8003", let, let},
				way{f.name + " to the node, no rule", s.client, network, f.node + ":8001", let, let},
				way{f.name + " to the node, denied", s.client, network, f.node + ":8002", let, silent},
				way{f.name + " to the node, rejected", s.client, network, f.node + ":8003", let, refused},
				way{f.name + " of the node, no rule", s.node, network, f.far + ":8002", let, let},
				way{f.name + " of the node, denied", s.node, network, f.far + ":8001", let, silent},
				way{f.name + " of the node, rejected", s.node, network, f.far + ":8003", let, refused},
			)
		}
	}
	return ways
}

// firewallRules are the rules for these attempts, and their names.
func firewallRules() (yaml string, names []string) {
	for _, network := range []string{"tcp", "udp"} {
		for _, r := range []struct {
			name                 string
			priority             int
			action, hooks, match string
		}{
			{"far-2-", 10, "deny", "forward", `destination: ["10.0.1.0/24", "2001:db8:1::/64"], ports: 8002`},
			{"far-3-", 10, "reject", "forward", `destination: ["10.0.1.2", "2001:db8:1::2"], ports: "8003-8100", in: in0`},
			{"node-2-", 20, "deny", "input", `ports: 8002`},
			{"node-3-", 20, "reject", "input", `ports: 8003`},
			{"of-node-1-", 20, "deny", "output", `ports: 8001, out: p1`},
			{"of-node-3-", 20, "reject", "output", `ports: 8003`},
		} {
			yaml += rule(r.name+network, r.priority, r.action, r.hooks, r.match+", protocol: "+network)
			names = append(names, r.name+network)
		}
	}
	yaml += "---\nkind: AddressGroup\nname: friends\nspec: {members: [192.0.2.77, \"2001:db8:0:2::77\"]}\n"
	return yaml + rule("friends", 5, "allow", "forward", `source: "group:friends"`), append(names, "friends")
}

// TestFirewall: rules apply to traffic through the node, to it and from it, in both families, with
// real sockets, even without a daemon, and with the next one.
func TestFirewall(t *testing.T) {
	s := newSite(t).start()
	ways := firewallWays(s)
	all := func(when string, want func(w *way) string) {
		t.Helper()
		for i := range ways {
			w := &ways[i]
			wait := patience
			if want(w) == silent {
				wait = silence
			}
			if got := try(w.from, w.network, w.to, wait); got != want(w) {
				t.Errorf("%s: %s %s to %s: %s, want %s", when, w.what, w.network, w.to, got, want(w))
			}
		}
	}
	before, with := func(w *way) string { return w.before }, func(w *way) string { return w.with }
	all("without rules", before)
	yaml, names := firewallRules()
	s.Apply(yaml)
	all("with rules", with)
	c := s.Counters(api.KindFirewallRule, "far-2-tcp")
	if c.Packets < 2 || c.Bytes < 2*66 {
		t.Errorf("the rule has counted %+v, want the SYNs of two connections at least", c)
	}
	if drops := s.Counters("", "").Drops["firewall"]; drops < 12 {
		t.Errorf("%d packets were dropped by rules, want more", drops)
	}
	s.Kill()
	all("without a daemon", with)
	s.Start()
	all("with the next daemon", with)
	if again := s.Counters(api.KindFirewallRule, "far-2-tcp"); again.Packets <= c.Packets {
		t.Errorf("the rule has counted %d packets, before it was %d", again.Packets, c.Packets)
	}
	s.LLCLI(append(append([]string{"delete", "FirewallRule"}, names...), "--wait", "5s")...)
	all("without rules again", before)
}

// TestFirewallChangesUnderConnections changes rules while connections run: a connection that is no
// longer allowed ends; others are unaffected. Answers need no rule, unless the rule that allows the
// connection is stateless.
func TestFirewallChangesUnderConnections(t *testing.T) {
	s := newSite(t).start()
	for _, addr := range []string{"10.0.1.2", "[2001:db8:1::2]"} {
		for _, port := range []string{"8001", "8002"} {
			s.backends[0].ServeTCP(t, addr+":"+port, "far")
		}
		s.Apply(rule("only-asked", 100, "deny", "forward", `in: p1`) + rule("asking", 90, "allow", "forward", `in: in0`))
		open := func(port string) net.Conn {
			t.Helper()
			c, err := s.client.Dial("tcp", "", addr+":"+port, patience)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			echoes(t, c, true)
			return c
		}
		stays, ends := open("8001"), open("8002")
		for range 5 {
			echoes(t, stays, true)
		}
		s.Apply(rule("not-8002", 10, "deny", "forward", `protocol: tcp, ports: 8002`))
		echoes(t, stays, true)
		echoes(t, ends, false)
		echoes(t, stays, true)
		if got := try(s.client, "tcp", addr+":8002", silence); got != silent {
			t.Errorf("a new connection is %s", got)
		}
		s.LLCLI("delete", "FirewallRule", "not-8002", "--wait", "5s")
		if got := try(s.client, "tcp", addr+":8002", patience); got != let {
			t.Errorf("a new connection is %s", got)
		}
		s.Apply(strings.Replace(rule("asking", 90, "allow", "forward", `in: in0`), "spec: {", "spec: {stateful: false, ", 1))
		if got := try(s.client, "tcp", addr+":8002", silence); got != silent {
			t.Errorf("the answer to what a stateless rule allowed is %s", got)
		}
		s.LLCLI("delete", "FirewallRule", "only-asked", "--wait", "5s")
		if got := try(s.client, "tcp", addr+":8002", patience); got != let {
			t.Errorf("with no rule for the answers the connection is %s", got)
		}
	}
}

var said int

// echoes sends a unique line and waits for its echo.
func echoes(t *testing.T, c net.Conn, answered bool) {
	t.Helper()
	wait := patience
	if !answered {
		wait = silence
	}
	said++
	line := fmt.Sprintf("line %d\n", said)
	if _, err := c.Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(wait)) // if this fails, the read fails, too
	heard, more := "", make([]byte, 100)
	for !strings.Contains(heard, line) {
		n, err := c.Read(more)
		heard += string(more[:n])
		if err != nil {
			break
		}
	}
	if strings.Contains(heard, line) != answered {
		t.Errorf("%s: heard %q, want an answer: %v", c.RemoteAddr(), heard, answered)
	}
}
