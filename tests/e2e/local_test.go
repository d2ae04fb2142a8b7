// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// greeting returns the name of the server that answers a connection from the client; empty: none
// does.
func (s *site) greeting(to string) string {
	c, err := s.client.Dial("tcp", "", to, silence)
	if err != nil {
		return ""
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return ""
	}
	name, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(name)
}

// TestLocalDestination: a port forward and a rule with destination local apply to the addresses of
// the node, including later ones, and not to traffic through the node.
func TestLocalDestination(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, _ string) {
		s := newSite(t).start()
		node, later, inner := "192.0.2.1", "192.0.2.9", "10.0.1.2"
		length, singleLength := "/24", "/32"
		if family == "IPv6" {
			node, later, inner = "[2001:db8:0:2::1]", "[2001:db8:0:2::9]", "2001:db8:1::2"
			length, singleLength = "/64", "/128"
		}
		s.serve(s.backends[0], backendAddr(family, 0, 80), "web")
		s.serve(s.backends[1], backendAddr(family, 1, 8080), "other")
		s.serve(s.backends[1], backendAddr(family, 1, 9000), "far")
		s.serve(s.node, node+":9000", "node")
		s.LLCLI("nat", "add", "web", "--dnat", "--in", "in0", "--destination", "local", "--protocol", "tcp",
			"--port", "8080", "--to", inner, "--to-port", "80", "--wait", "10s")
		for at, want := range map[string]string{
			node + ":8080":               "web",
			later + ":8080":              "",
			backendAddr(family, 1, 8080): "other",
			node + ":9000":               "node",
		} {
			if got := s.greeting(at); got != want {
				t.Errorf("%s with the port forward: %q answers, want %q", at, got, want)
			}
		}

		s.LLCLI("firewall", "add", "closed", "--destination", "local", "--protocol", "tcp", "--port", "9000",
			"--action", "deny", "--wait", "10s")
		for at, want := range map[string]string{node + ":9000": "", backendAddr(family, 1, 9000): "far", node + ":8080": "web"} {
			if got := s.greeting(at); got != want {
				t.Errorf("%s with the rule: %q answers, want %q", at, got, want)
			}
		}

		// Addresses are added and removed.
		address := strings.Trim(later, "[]") + length
		s.node.Addr(t, "in0", address)
		l := s.node.ServeTCP(t, later+":9000", "node")
		testnet.Eventually(t, 10*time.Second, "the new address is forwarded", func() bool { return s.greeting(later+":8080") == "web" })
		testnet.Eventually(t, 10*time.Second, "the new address is closed", func() bool { return s.greeting(later+":9000") == "" })
		l.Close()
		s.node.Run(t, "ip", "addr", "del", address, "dev", "in0")
		single := strings.Trim(later, "[]") + singleLength
		s.backends[2].Addr(t, "eth0", single) // another machine has it now
		s.node.Route(t, single, nodeAddr(family, 2).Next().String())
		s.client.Route(t, single, strings.Trim(node, "[]"))
		s.serve(s.backends[2], later+":9000", "moved")
		testnet.Eventually(t, 10*time.Second, "the removed address is reachable on the other machine", func() bool { return s.greeting(later+":9000") == "moved" })
	})
}
