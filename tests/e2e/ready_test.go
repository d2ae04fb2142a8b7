// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// wantPending waits until an object is Pending, with all words in its message.
func wantPending(t *testing.T, s *site, kind, name string, words ...string) {
	t.Helper()
	wantState(t, s, kind, name, "Pending", words...)
}

// wantState waits until an object is in a state, with all words in its message.
func wantState(t *testing.T, s *site, kind, name, state string, words ...string) {
	t.Helper()
	last := ""
	wanted := fmt.Sprintf("%s/%s is %s with %q", kind, name, state, words)
	defer func() {
		if t.Failed() {
			t.Logf("%s, last:\n%s", wanted, last)
		}
	}()
	testnet.Eventually(t, 20*time.Second, wanted, func() bool {
		last, _, _ = s.TryLLCLI("get", kind, name, "-o", "json")
		if !strings.Contains(last, `"state": "`+state+`"`) && !strings.Contains(last, `"state":"`+state+`"`) {
			return false
		}
		for _, w := range words {
			if !strings.Contains(last, w) {
				return false
			}
		}
		return true
	})
}

// TestRulesOnDevicesWithoutPrograms: a rule or NAT on a device without our programs has no effect,
// and reports that, as does --wait with its exit code.
func TestRulesOnDevicesWithoutPrograms(t *testing.T) {
	s := newSite(t)
	s.Start()
	for _, x := range []struct {
		kind, name, device string
		args               []string
	}{
		{"firewall", "any", "", []string{"--protocol", "icmp", "--action", "deny"}},
		{"firewall", "typo", "typo0", []string{"--in", "typo0", "--action", "deny"}},
		{"nat", "out", "nosuch0", []string{"--masquerade", "--out", "nosuch0"}},
	} {
		out, code, err := s.TryLLCLI(append([]string{x.kind, "add", x.name, "--wait", "1s"}, x.args...)...)
		if code != 4 {
			t.Errorf("%s add %s: exit code %d, want 4: %s%v", x.kind, x.name, code, out, err)
		}
		wantPending(t, s, x.kind, x.name, "llcli interface add "+x.device)
	}
	if out, code, err := s.TryLLCLI("service", "add", "web", "--frontend", vip4+":80/tcp", "--backend", "10.0.1.2:9000", "--wait", "1s"); code != 4 {
		t.Errorf("service add: exit code %d, want 4: %s%v", code, out, err)
	}
	wantPending(t, s, "service", "web", "llcli interface add DEVICE")
	if out, code, _ := s.TryLLCLI("health"); code != 1 {
		t.Errorf("health: exit code %d, want 1: %s", code, out)
	}
	s.Apply(interfaces)
	wantState(t, s, "service", "web", "Ready")
	wantState(t, s, "firewall", "any", "Ready")
	wantPending(t, s, "firewall", "typo", "llcli interface add typo0")

	// Packets are handled accordingly.
	s.LLCLI("firewall", "add", "deny8080", "--in", "in0", "--protocol", "tcp", "--port", "8080", "--action", "deny", "--wait", "10s")
	s.node.ServeTCP(t, "192.0.2.1:8080", "node")
	if got := try(s.client, "tcp4", "192.0.2.1:8080", silence); got != silent {
		t.Errorf("port 8080 of the node with a rule against it: %s", got)
	}
	if out := s.LLCLI("counters", "firewall", "deny8080"); !regexp.MustCompile(`(?m)^firewall\s+[1-9]`).MatchString(out) {
		t.Errorf("drops of the rule are not among its counters:\n%s", out)
	}
	s.rename("in0", "wan7")
	wantState(t, s, "firewall", "deny8080", "Ready", "wan7", "ip link set wan7 name in0")
	if got := try(s.client, "tcp4", "192.0.2.1:8080", silence); got != silent {
		t.Errorf("port 8080 of the node with a rule against it, after its device was renamed: %s", got)
	}
	s.rename("wan7", "in0")
	wantState(t, s, "Interface", "in0", "Ready")
	out, code, err := s.TryLLCLI("interface", "delete", "in0")
	if code == 0 || !strings.Contains(err.Error()+out, "FirewallRule/deny8080") {
		t.Errorf("an Interface that a rule names was deleted: exit code %d, %s %v", code, out, err)
	}
	s.LLCLI("interface", "delete", "in0", "--force")
	wantPending(t, s, "firewall", "deny8080", "llcli interface add in0")
}

// TestRulesOnABridgeOfAnotherProgram: packets match rules by the attached port of the bridge, not
// by the bridge. Without an Interface for the port, they match by the bridge.
func TestRulesOnABridgeOfAnotherProgram(t *testing.T) {
	s := newSite(t)
	s.enslave(t)
	s.Start()
	s.node.ServeTCP(t, "192.0.2.1:8080", "node")
	s.LLCLI("interface", "add", "in0")
	s.LLCLI("firewall", "add", "deny8080", "--in", "br0", "--protocol", "tcp", "--port", "8080", "--action", "deny")
	wantPending(t, s, "firewall", "deny8080", "br0", "name in0 in spec.match.in")
	s.LLCLI("interface", "add", "br0")
	wantPending(t, s, "firewall", "deny8080", "br0", "name in0 in spec.match.in")
	if got := try(s.client, "tcp4", "192.0.2.1:8080", patience); got != let {
		t.Errorf("port 8080 of the node with a rule that names the bridge: %s", got)
	}
	s.LLCLI("firewall", "set", "deny8080", "--in", "in0")
	wantState(t, s, "firewall", "deny8080", "Ready")
	if got := try(s.client, "tcp4", "192.0.2.1:8080", silence); got != silent {
		t.Errorf("port 8080 of the node with a rule that names the port: %s", got)
	}
	s.LLCLI("interface", "delete", "in0", "--force")
	s.LLCLI("firewall", "set", "deny8080", "--in", "br0")
	wantState(t, s, "firewall", "deny8080", "Ready")
	testnet.Eventually(t, patience, "a rule that names the bridge denies without Interfaces of ports", func() bool {
		return try(s.client, "tcp4", "192.0.2.1:8080", silence) == silent
	})
}
