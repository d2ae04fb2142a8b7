// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// switchSite is a node whose switch has a namespace of its own, which the daemon creates, with two
// hosts on it.
//
//	node: loxi_test 10.71.0.9 ══ hs_host ┐
//	              a 10.71.0.2 ── p1      ├ br0 10.71.0.1 [switch]
//	              b 10.71.0.3 ── p2      ┘
type switchSite struct {
	*testdaemon.Daemon
	t    *testing.T
	node *testnet.NS
	name string // of the switch's namespace
	a, b *testnet.NS
}

func newSwitchSite(t *testing.T) *switchSite {
	t.Helper()
	s := &switchSite{t: t, node: testnet.New(t, "node"), name: testnet.UniqueName("switch")}
	s.Daemon = testdaemon.New(t, s.node, programs, "switch: {namespace: "+s.name+"}")
	t.Cleanup(func() {
		if s.there() {
			testnet.DeleteNamed(t, s.name)
		}
	})
	return s
}

// there reports whether the namespace is mounted at its name, which is an empty file before that.
func (s *switchSite) there() bool { return namespaceThere(s.name) }

func namespaceThere(name string) bool {
	const nsfs = 0x6e736673
	var at unix.Statfs_t
	return unix.Statfs(filepath.Join("/run/netns", name), &at) == nil && at.Type == nsfs
}

// plugIn connects new hosts to the current switch.
func (s *switchSite) plugIn() {
	s.t.Helper()
	s.a, s.b = testnet.New(s.t, "a"), testnet.New(s.t, "b")
	s.t.Run("plug in", func(t *testing.T) { // closes the namespace at the end
		sw := testnet.Named(t, s.name)
		testnet.Veth(t, testnet.Port{NS: s.b, Name: "eth0", Addrs: []string{"10.71.0.3/24", "fd71::3/64"}}, testnet.Port{NS: sw, Name: "p2"})
		testnet.Veth(t, testnet.Port{NS: s.a, Name: "eth0", Addrs: []string{"10.71.0.2/24", "fd71::2/64"}}, testnet.Port{NS: sw, Name: "p1"})
	})
	for _, ns := range []*testnet.NS{s.a, s.b} {
		ns.Route(s.t, "default", "10.71.0.1")
	}
	s.b.ServeUDP(s.t, "10.71.0.3:4660", "b")
	s.b.ServeUDP(s.t, "[fd71::3]:4660", "b")
	s.b.ServeTCP(s.t, "10.71.0.3:4660", "b")
}

const switchObjects = `
kind: Bridge
name: lan
spec: {device: br0, addresses: [10.71.0.1/24, "fd71::1/64"], ports: [{device: hs_host}, {device: p1}, {device: p2}]}
---
kind: Route
name: far
spec: {prefix: 203.0.113.0/24, netns: switch, via: 10.71.0.3}
---
kind: Interface
name: p1
spec: {device: p1, netns: switch, role: port}
---
kind: Interface
name: p2
spec: {device: p2, netns: switch, role: port}
`

// ready waits until the whole configuration is in force.
func (s *switchSite) ready(timeout time.Duration, what string) {
	s.t.Helper()
	begin := time.Now()
	testnet.Eventually(s.t, timeout, what, func() bool {
		out, code, _ := s.TryLLCLI("status", "-o", "json")
		return code == 0 && strings.Contains(out, `"notReady": []`) || code == 0 && !strings.Contains(out, `"notReady"`)
	})
	s.t.Logf("%s: after %s", what, time.Since(begin).Round(time.Millisecond))
}

func (s *switchSite) reach(from *testnet.NS, target string) {
	s.t.Helper()
	testnet.Eventually(s.t, patience, target+" answers", func() bool {
		_, err := testtraffic.TalkUDP(from, "", target, []byte("a datagram"))
		return err == nil
	})
}

// TestSwitch: the daemon creates the switch when it is first needed, keeps traffic up when it is
// killed and started again, restores everything when the namespace is deleted externally, and
// leaves nothing when it is detached.
func TestSwitch(t *testing.T) {
	s := newSwitchSite(t)
	s.Start()
	if s.there() {
		t.Error("a namespace was created although no object needs it")
	}
	s.LLCLI("apply", "-f", s.File(switchObjects))
	testnet.Eventually(t, patience, "the namespace is there", s.there)
	s.plugIn()
	s.ready(patience, "ports that came are in the bridge")
	s.node.Addr(t, "loxi_test", "10.71.0.9/24")
	if status, err := s.Client.Status(t.Context()); err != nil || status.Repairs != 0 {
		t.Errorf("repairs without external changes: %+v, %v", status, err)
	}
	s.reach(s.a, "10.71.0.3:4660")
	s.reach(s.a, "[fd71::3]:4660")
	s.reach(s.node, "10.71.0.3:4660")

	// The kernel's entries in both namespaces are listed, with their owners.
	for words, want := range map[string][]string{
		"bridges":   {"br0", "switch", "loxilight", "Bridge/lan", "hs_host,p1,p2"},
		"routes":    {"203.0.113.0/24", "10.71.0.3 dev br0", "Route/far", "10.71.0.0/24", "kernel", "host"},
		"fdb":       {"br0", "p1", "learned"},
		"neighbors": {"10.71.0.3", "loxi_test", "host"},
	} {
		out := s.LLCLI("kernel", words)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("llcli kernel %s has no %q:\n%s", words, w, out)
			}
		}
	}

	traffic := testtraffic.Start(t, s.a, "10.71.0.3:4660", testtraffic.Load{Flows: 8, Packets: 2000, Connections: 20, Lasting: 4})
	for range 2 {
		s.Kill()
		s.Start()
		s.ready(patience, "taken over")
	}
	s.Stop()
	s.Start()
	s.ready(patience, "taken over")
	traffic.ExpectUnharmed(t)

	for range 2 {
		testnet.DeleteNamed(t, s.name)
		testnet.Eventually(t, 5*time.Second, "the namespace is made again", s.there)
		s.plugIn()
		s.ready(5*time.Second, "everything is there again")
		s.reach(s.a, "10.71.0.3:4660")
		out, err := exec.Command("ip", "-n", s.name, "route", "show", "203.0.113.0/24").Output()
		if err != nil || !strings.Contains(string(out), "via 10.71.0.3 dev br0 proto 76") {
			t.Errorf("route of the switch: %v %s", err, out)
		}
	}
	status, err := s.Client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status.Repairs == 0 {
		t.Error("repairs are not counted")
	}

	s.Stop()
	s.Detach()
	if s.there() {
		t.Error("the namespace that we made is left")
	}
	if out := s.node.Run(t, "ip", "link"); strings.Contains(out, "loxi_test") {
		t.Errorf("the link to the switch is left: %s", out)
	}
}

// TestBridgeUnderTraffic changes a bridge and its routes in the daemon's own namespace while its
// hosts communicate. The bridge was created by another program, and is adopted without
// interruption.
func TestBridgeUnderTraffic(t *testing.T) {
	node := testnet.New(t, "node")
	d := testdaemon.New(t, node, programs)
	var stations [3]*testnet.NS
	for i := range stations {
		stations[i] = testnet.New(t, fmt.Sprint("station", i))
		testnet.Veth(t, testnet.Port{NS: stations[i], Name: "eth0", Addrs: []string{fmt.Sprintf("10.71.0.%d/24", 2+i)}},
			testnet.Port{NS: node, Name: fmt.Sprint("p", i)})
	}
	node.Bridge(t, "br0", "p0", "p1")
	for i := range 10 {
		stations[1].Addr(t, "eth0", fmt.Sprintf("10.72.%d.7/24", i)) // the next hops of the Route
	}
	stations[1].ServeUDP(t, "10.71.0.3:4660", "b")
	stations[1].ServeTCP(t, "10.71.0.3:4660", "b")
	d.Start()
	traffic := testtraffic.Start(t, stations[0], "10.71.0.3:4660", testtraffic.Load{Flows: 8, Packets: 2000, Connections: 20, Lasting: 4})
	for i := range 10 {
		d.Apply(fmt.Sprintf(`
kind: Bridge
name: lan
spec: {device: br0, addresses: [10.71.0.1/24, 10.72.%d.1/24], ageing: %ds, ports: [{device: p0}, {device: p1}, {device: p2, isolated: %t}]}
---
kind: Interface
name: p0
spec: {device: p0}
---
kind: Interface
name: p1
spec: {device: p1}
---
kind: Route
name: far
spec: {prefix: 203.0.113.0/24, via: 10.72.%d.7}
`, i, 100+i, i%2 == 0, i))
	}
	d.LLCLI("delete", "Bridge", "lan")
	d.LLCLI("delete", "Route", "far")
	testnet.Eventually(t, patience, "our port and address are gone", func() bool {
		out := node.Run(t, "ip", "addr")
		return !strings.Contains(out, "10.71.0.1") && strings.Count(out, "master br0") == 2
	})
	traffic.ExpectUnharmed(t)
}
