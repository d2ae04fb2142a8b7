// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// readyHops are Routes with one and with two next hops, of each family.
const readyHops = interfaces + `---
kind: Route
name: one4
spec: {prefix: 203.0.113.0/25, via: 10.0.2.2}
---
kind: Route
name: one6
spec: {prefix: "2001:db8:f::/64", via: "2001:db8:2::2"}
---
kind: Route
name: two4
spec: {prefix: 203.0.113.128/25, nexthops: [{via: 10.0.1.2}, {via: 10.0.2.2, device: p2}]}
---
kind: Route
name: two6
spec: {prefix: "2001:db8:e::/64", nexthops: [{via: "2001:db8:1::2"}, {via: "2001:db8:2::2", device: p2}]}
`

// TestReadyAndNextHops: a next hop that stops answering is detected although the kernel still has
// its link-layer address, and a Route with several next hops names the unreachable ones.
func TestReadyAndNextHops(t *testing.T) {
	testnet.RequireRoot(t)
	s := newSite(t)
	s.Start()
	s.Apply(readyHops)
	routes := []string{"one4", "one6", "two4", "two6"}
	for _, name := range routes {
		wantState(t, s, "Route", name, "Ready")
	}
	testnet.Eventually(t, patience, "health is ok", func() bool { _, code, _ := s.TryLLCLI("health"); return code == 0 })

	arp := func(to string) { s.backends[1].Run(t, "ip", "link", "set", "eth0", "arp", to) }
	arp("off") // it no longer answers requests; the node's neighbour entries stay
	for hop, names := range map[string][]string{"10.0.2.2": {"one4", "two4"}, "2001:db8:2::2": {"one6", "two6"}} {
		wantPending(t, s, "Route", names[0], hop, "does not answer", "p2")
		wantState(t, s, "Route", names[1], "Ready", "1 of 2 next hops", hop, "does not answer")
	}
	out, code, _ := s.TryLLCLI("status")
	if text := strings.Join(strings.Fields(out), " "); code != 0 || !strings.Contains(text, "Route/two4: 1 of 2 next hops") {
		t.Errorf("status does not name the Route with an unreachable next hop: exit code %d\n%s", code, out)
	}
	s.LLCLI("route", "delete", "one4")
	s.LLCLI("route", "delete", "one6")
	if out, code, _ := s.TryLLCLI("health"); code != 1 {
		t.Errorf("health with an unreachable next hop: exit code %d\n%s", code, out)
	}
	arp("on")
	for _, name := range routes[2:] {
		wantState(t, s, "Route", name, "Ready")
		testnet.Eventually(t, patience, "the message of Route "+name+" ends", func() bool {
			out, _, _ := s.TryLLCLI("get", "route", name, "-o", "json")
			return !strings.Contains(out, "next hops are")
		})
	}

	// A device that is down is named with the command that sets it up.
	s.Apply(readyHops)
	s.node.Run(t, "ip", "link", "set", "p2", "down")
	for _, name := range routes {
		wantPending(t, s, "Route", name, "ip link set p2 up")
	}
}

// TestStaticNeighbours: an operator's static neighbour entries are not probed, and stay unchanged.
func TestStaticNeighbours(t *testing.T) {
	testnet.RequireRoot(t)
	s := newSite(t)
	s.Start()
	s.backends[1].Run(t, "ip", "link", "set", "eth0", "arp", "off") // it answers no request
	static := map[string]string{"10.0.2.2": "02:00:00:00:00:01", "2001:db8:2::2": "02:00:00:00:00:02"}
	for hop, mac := range static {
		s.node.Run(t, "ip", "neigh", "replace", hop, "lladdr", mac, "dev", "p2", "nud", "permanent")
	}
	s.Apply(readyHops)
	s.node.Run(t, "ip", "neigh", "replace", "10.0.1.2", "lladdr", "02:00:00:00:00:03", "dev", "p1", "nud", "permanent") // was dynamic
	static["10.0.1.2"] = "02:00:00:00:00:03"
	<-time.After(5 * time.Second) // neighbours are probed every 2 s
	for hop, mac := range static {
		if out := s.node.Run(t, "ip", "neigh", "show", hop); !strings.Contains(out, mac) || !strings.Contains(out, "PERMANENT") {
			t.Errorf("static neighbour %s became %q", hop, out)
		}
	}
	for _, name := range []string{"one4", "one6", "two4", "two6"} {
		wantState(t, s, "Route", name, "Ready")
	}
}

// TestNewRouteWithoutItsNextHop: a Route whose next hop has never answered was never Ready.
func TestNewRouteWithoutItsNextHop(t *testing.T) {
	testnet.RequireRoot(t)
	s := newSite(t)
	s.Start()
	s.Apply(interfaces)
	for name, words := range map[string][]string{
		"dead4": {"--prefix", "203.0.113.0/24", "--via", "10.0.1.77"},
		"dead6": {"--prefix", "2001:db8:d::/64", "--via", "2001:db8:1::77"},
	} {
		out, code, err := s.TryLLCLI(append([]string{"route", "add", name, "--wait", "1s"}, words...)...)
		if code != 4 {
			t.Errorf("route add %s --wait: exit code %d, want 4: %s%v", name, code, out, err)
		}
	}
}

// TestPodNetworkOverlaps: the subnet of a PodNetwork must not contain a different device's network,
// through which packets to pods would leave.
func TestPodNetworkOverlaps(t *testing.T) {
	testnet.RequireRoot(t)
	s := newSite(t)
	s.Start()
	s.Apply(interfaces)
	for _, c := range []struct{ subnets, state, network string }{
		{`[10.0.1.0/24]`, "Pending", "10.0.1.0/24"},
		{`[10.0.0.0/22]`, "Pending", "10.0.1.0/24"},
		{`["2001:db8:1::/64"]`, "Pending", "2001:db8:1::/64"},
		{`[10.0.1.128/25]`, "Ready", "10.0.1.0/24"},
	} {
		s.LLCLI("apply", "-f", s.File("kind: PodNetwork\nname: default\nspec: {subnets: "+c.subnets+"}\n"))
		wantState(t, s, "PodNetwork", "default", c.state, c.network, "p1")
		s.LLCLI("podnetwork", "delete", "default")
	}
	s.Apply("kind: PodNetwork\nname: default\nspec: {subnets: [10.9.0.0/24]}\n")
	wantState(t, s, "PodNetwork", "default", "Ready")
}
