// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestNetfilter: rules of nftables and of both iptables apply to connections that we
// forward, including a connection that had taken the fast path, and llcli status reports their
// cost. When they are removed, the fast path is used again.
func TestNetfilter(t *testing.T) {
	for tool, change := range map[string]struct{ add, remove, why string }{
		"nft": {"add table ip x; add chain ip x c { type filter hook forward priority 0; }; add rule ip x c tcp dport 8001 drop",
			"delete table ip x", "nftables: chain ip x c (forward) has 1 rule"},
		"iptables-legacy": {"-A FORWARD -p tcp --dport 8001 -j DROP", "-D FORWARD -p tcp --dport 8001 -j DROP",
			"iptables: chain FORWARD of table filter has rules"},
		"iptables-nft": {"-A FORWARD -p tcp --dport 8001 -j DROP", "-D FORWARD -p tcp --dport 8001 -j DROP",
			"nftables: chain ip filter FORWARD (forward) has 1 rule"},
	} {
		t.Run(tool, func(t *testing.T) {
			if _, err := exec.LookPath(tool); err != nil {
				t.Skipf("no %s (.ci/setup test installs it)", tool)
			}
			s := newSite(t).start()
			if out, err := s.node.TryRun(tool, strings.Fields(change.add)...); err != nil {
				t.Skipf("%s: %v: %s", tool, err, out)
			}
			s.node.Run(t, tool, strings.Fields(change.remove)...)
			s.backends[0].ServeTCP(t, "10.0.1.2:8001", "far")
			c, err := s.client.Dial("tcp", "", "10.0.1.2:8001", 3*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := expectText(c, "far\n", 3*time.Second); err != nil {
				t.Fatal(err)
			}
			for range 20 { // until it takes the fast path
				if err := answers(c, 3*time.Second); err != nil {
					t.Fatal(err)
				}
			}
			s.node.Run(t, tool, strings.Fields(change.add)...)
			testnet.Eventually(t, 2*time.Second, "llcli status names the rule", func() bool {
				return strings.Contains(s.LLCLI("status"), change.why)
			})
			if err := answers(c, silence); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("past a rule that drops: %v", err)
			}
			s.node.Run(t, tool, strings.Fields(change.remove)...)
			if err := expectText(c, word, 5*time.Second); err != nil {
				t.Errorf("when the rule is gone: %v", err)
			}
			testnet.Eventually(t, 2*time.Second, "llcli status names no rule", func() bool {
				return !strings.Contains(s.LLCLI("status"), "netfilter host")
			})
		})
	}
}

const word = "word\n"

// answers sends a word, and waits for its echo.
func answers(c net.Conn, wait time.Duration) error {
	if _, err := c.Write([]byte(word)); err != nil {
		return err
	}
	return expectText(c, word, wait)
}

// expectText waits for a text, and reads no byte more.
func expectText(c net.Conn, text string, wait time.Duration) error {
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		return fmt.Errorf("heard %q: %w", got, err)
	}
	return nil
}
