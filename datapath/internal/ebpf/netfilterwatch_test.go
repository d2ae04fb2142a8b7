// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// nft changes the nftables rules of the node; the test is skipped if nft is not installed.
func (n *network) nft(lines ...string) {
	n.t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		n.t.Skip("no nft")
	}
	for _, line := range lines {
		n.node.Run(n.t, "nft", line)
	}
}

// bridgesAlone exempts bridged frames of the node from iptables rules.
func (n *network) bridgesAlone() {
	n.t.Helper()
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err == nil {
		n.node.Sysctl(n.t, "net.bridge.bridge-nf-call-iptables", "0")
		n.node.Sysctl(n.t, "net.bridge.bridge-nf-call-ip6tables", "0")
	}
}

// told waits until the data plane reports why as the reason for which connections of the host do
// not take the fast path; "": no reason.
func (n *network) told(why string) {
	n.t.Helper()
	testnet.Eventually(n.t, 2*time.Second, "the fallback says "+why, func() bool {
		f, err := n.d.Telemetry().Features(context.Background())
		n.ok(err)
		got, found := f.Fallbacks["netfilter host"]
		return found == (why != "") && strings.Contains(got, why)
	})
}

// TestRulesOfNetfilterHold: iptables and nftables rules for forwarded packets also apply to
// connections that took the fast path before, from the moment the rules are set until they are
// deleted. Connections of a service are handled by our programs, and continue.
func TestRulesOfNetfilterHold(t *testing.T) {
	n := newNetwork(t)
	n.bridgesAlone()
	n.attach()
	n.backends.ServeTCP(t, "10.0.1.11:8080", "server")
	n.ok(n.d.Services().Update(context.Background(), "web", datapath.Service{
		Frontends: []datapath.Frontend{frontend("198.51.100.10:80", datapath.TCP)}, Backends: backendAddrs(8080, "10.0.1.11"),
		IdleTimeout: datapath.DefaultIdleTimeout(),
	}))
	plain, served := n.dial("10.0.1.11:8080"), n.dial("198.51.100.10:80")
	n.wantShortCut("plain", plain)
	n.wantShortCut("served", served)
	n.told("")

	n.nft("add table inet t", "add chain inet t c { type filter hook forward priority 0; }")
	n.wantShortCut("a chain without rules", plain)
	n.nft("add rule inet t c counter")
	n.told("routed connections without a Service take the slow path: nftables: chain inet t c (forward) has 1 rule")
	n.wantSlow("a rule", plain)
	n.wantShortCut("a rule, and a service", served)
	if counted := n.node.Run(t, "nft", "list chain inet t c"); strings.Contains(counted, "packets 0 ") {
		t.Errorf("the rule has seen nothing: %s", counted)
	}

	n.restart("tcx")
	n.attach()
	n.wantSlow("after a restart", plain)

	n.nft("flush chain inet t c")
	n.told("")
	n.wantShortCut("without the rule", plain)

	n.nft("add rule inet t c ip daddr 10.0.1.11 tcp dport 8080 drop")
	n.told("has 1 rule")
	if err := plain.SetDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Write([]byte("not to get through")); err != nil {
		t.Fatal(err)
	}
	var b [64]byte
	if k, err := plain.Read(b[:]); err == nil {
		t.Errorf("%q came back past a rule that drops", b[:k])
	}
}

// TestTrackingTakesUpAgain: a connection on the fast path, which the kernel tracks as well,
// continues when a rule that drops invalid packets moves it to the slow path: the kernel must not
// treat the packets as invalid because it missed earlier ones. The kernel tracks a connection with
// SNAT by its original tuple.
func TestTrackingTakesUpAgain(t *testing.T) {
	for name, rules := range map[string]map[datapath.NATName]datapath.NAT{
		"plain": nil, "masqueraded": {"away": masquerade("out0")},
	} {
		for _, addr := range []string{"10.0.1.11:8080", "[2001:db8:2::11]:8080"} {
			t.Run(name+" "+addr, func(t *testing.T) { takeUpAgain(t, addr, rules) })
		}
	}
}

func takeUpAgain(t *testing.T, addr string, rules map[datapath.NATName]datapath.NAT) {
	n := newNetwork(t)
	n.bridgesAlone()
	n.attach()
	n.translate(rules)
	server := n.backends.ServeTCP(t, addr, "server")
	n.nft("add table inet t", "add chain inet t i { type filter hook input priority 0; }", "add rule inet t i ct state established accept")
	c := n.dial(addr)
	n.wantShortCut("rules for the node itself", c)
	if err := n.upload(c, 1<<20); err != nil {
		t.Fatal(err)
	}
	n.nft("add chain inet t f { type filter hook forward priority 0; policy drop; }; add rule inet t f ct state invalid counter drop; add rule inet t f ct state established accept")
	n.told("chain inet t f (forward) has 2 rules")
	if err := n.upload(c, 1<<20); err != nil {
		t.Errorf("after the rule: %v; %s", err, n.node.Run(t, "nft", "list chain inet t f"))
	}
	n.wantSlow("rules", c)
	if got := server.Clients(); (got[0].String() == clientOf(netip.MustParseAddrPort(addr).Addr().String())) == (rules != nil) {
		t.Errorf("the server saw %v", got)
	}
}

// upload sends size bytes, and reads the echoed bytes.
func (n *network) upload(c *conversation, size int) error {
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	back := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.Discard, c, int64(size))
		back <- err
	}()
	_, err := c.Write(bytes.Repeat([]byte("a line of sixteen"[:15]+"\n"), size/16))
	return errors.Join(err, <-back)
}

// TestBridgedRulesHold: nftables rules for bridges apply to bridged connections, rules for routed
// packets do not.
func TestBridgedRulesHold(t *testing.T) {
	b := newBridged(t, false)
	b.bridgesAlone()
	b.stations[1].ServeTCP(t, "10.9.0.2:7000", "server")
	b.nft("add table ip t", "add chain ip t c { type filter hook forward priority 0; policy drop; }")
	b.told("routed connections")
	c := b.talk(0, "10.9.0.2:7000", "10.9.0.1:40000")
	b.wantShortCut("rules for routers", c)
	b.nft("add table bridge t", "add chain bridge t c { type filter hook forward priority 0; }", "add rule bridge t c counter")
	b.told("routed and bridged connections")
	b.wantSlow("rules for bridges", c)
	b.nft("delete table bridge t")
	b.told("routed connections")
	b.wantShortCut("without rules for bridges", c)
}
