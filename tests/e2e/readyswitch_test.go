// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
)

// readySwitch is a node whose switch has a namespace that an operator created, with a Bridge, an
// Endpoint, and a Tunnel to another node.
//
//	a 10.72.0.2 ── hs1 ┐
//	x 10.72.0.9 ── x1  ┴ br0 10.72.0.1 [switch 1] ══ [node1] eth0 192.0.2.1 ── lan ── node2 ── pod2
//	pod1 10.74.1.2 ── p1 ────────────────┘
//
// IPv6 likewise: fd72::2 and fd74:1::2. Behind x are 203.0.113.1 and 2001:db8:f::1.
type readySwitch struct {
	*mesh
	*site
	sw, a, x *testnet.NS
}

const readyEndpoint = `
---
kind: Endpoint
name: shop/a
spec: {device: hs1, addresses: [10.72.0.2, "fd72::2"], mac: "02:00:5e:72:00:02", labels: {app: web}}
`

const readySwitchObjects = `
kind: Bridge
name: lan
spec: {device: br0, addresses: [10.72.0.1/24, "fd72::1/64"], ports: [{device: x1}]}
` + readyEndpoint + `---
kind: Route
name: far
spec: {prefix: 203.0.113.0/24, netns: switch, via: 10.72.0.9}
---
kind: Route
name: far6
spec: {prefix: "2001:db8:f::/64", netns: switch, via: "fd72::9"}
---
kind: AddressGroup
name: web
spec: {members: [{labels: {app: web}}]}
---
kind: FirewallRule
name: deny
spec: {action: deny, match: {source: ["group:web"], protocol: tcp, ports: 8081}}
`

func newReadySwitch(t *testing.T, over6 bool) *readySwitch {
	t.Helper()
	m := newMesh(t, 2, meshKind{split: true, foreign: true, tunnel: "vxlan", over6: over6})
	n := m.nodes[0]
	s := &readySwitch{mesh: m, site: &site{t: t, node: n.ns, Daemon: n.Daemon}, sw: testnet.Named(t, n.sw), a: testnet.New(t, "a"), x: testnet.New(t, "x")}
	for _, ns := range []*testnet.NS{s.a, s.x, n.ns} {
		ns.Sysctl(t, "net.ipv6.conf.all.keep_addr_on_down", "1")
	}
	testnet.Veth(t, testnet.Port{NS: s.a, Name: "eth0", Addrs: []string{"10.72.0.2/24", "fd72::2/64"}, MAC: "02:00:5e:72:00:02"},
		testnet.Port{NS: s.sw, Name: "hs1"})
	testnet.Veth(t, testnet.Port{NS: s.x, Name: "eth0", Addrs: []string{"10.72.0.9/24", "fd72::9/64"}}, testnet.Port{NS: s.sw, Name: "x1"})
	s.x.Up(t, "lo")
	s.x.Addr(t, "lo", "203.0.113.1/32", "2001:db8:f::1/128")
	s.gateways()
	for _, address := range []string{"10.72.0.2", "[fd72::2]"} {
		s.a.ServeTCP(t, address+":4660", "a")
	}
	for _, address := range []string{"10.72.0.9", "[fd72::9]", "203.0.113.1", "[2001:db8:f::1]"} {
		s.x.ServeTCP(t, address+":8081", "x")
		s.x.ServeTCP(t, address+":8082", "x")
	}
	s.Apply(readySwitchObjects)
	return s
}

// gateways gives a and x their routes, which are lost with their links.
func (s *readySwitch) gateways() {
	for _, ns := range []*testnet.NS{s.a, s.x} {
		ns.Run(s.site.t, "ip", "route", "replace", "default", "via", "10.72.0.1")
		ns.Run(s.site.t, "ip", "-6", "route", "replace", "default", "via", "fd72::1")
	}
}

func (s *readySwitch) link(ns *testnet.NS, device, to string) func() {
	return func() {
		ns.Run(s.site.t, "ip", "link", "set", device, to)
		if to == "up" {
			s.gateways()
		}
	}
}

func (s *readySwitch) llcli(args ...string) func() { return func() { s.LLCLI(args...) } }

func (s *readySwitch) do(ns *testnet.NS, name string, args ...string) func() {
	return func() { ns.Run(s.site.t, name, args...) }
}

// cases returns the cases of one family of packets.
func (s *readySwitch) cases(over6, is6 bool) []readyCase {
	network, a, x, far, pod2 := "tcp4", "10.72.0.2", "10.72.0.9", "203.0.113.1", s.nodes[1].pod4()
	route, key := "far", "net.ipv4.ip_forward"
	if is6 {
		network, a, x, far, pod2 = "tcp6", "[fd72::2]", "[fd72::9]", "[2001:db8:f::1]", "["+s.nodes[1].pod6()+"]"
		route, key = "far6", "net.ipv6.conf.all.forwarding"
	}
	underlay, address := "192.0.2.2", []string{"192.0.2.1/24", "dev", "eth0"}
	if over6 {
		underlay, address = "2001:db8:74::2", []string{"2001:db8:74::1/64", "dev", "eth0", "nodad"}
	}
	addressed := func(verb string) func() {
		return s.do(s.node, "ip", append([]string{"address", verb}, address...)...)
	}
	pod1, sw := s.nodes[0].pod, s.nodes[0].sw
	off, on := s.do(s.sw, "sysctl", "-qw", key+"=0"), s.do(s.sw, "sysctl", "-qw", key+"=1")
	label := func(app string) func() {
		return func() { s.Apply(strings.Replace(readyEndpoint, "app: web", "app: "+app, 1)) }
	}
	forward := []string{"ip netns exec " + sw + " sysctl -w " + key + "=1"}
	peerUp := s.link(s.mesh.lan, "n2", "up")
	peerDown := func() {
		s.link(s.mesh.lan, "n2", "down")()
		s.node.Run(s.site.t, "ip", "neigh", "flush", "dev", "eth0")
		s.node.Run(s.site.t, "ip", "-6", "neigh", "flush", "dev", "eth0")
	}
	return []readyCase{
		{"Endpoint without carrier", "Endpoint", "shop/a", s.link(s.a, "eth0", "down"), s.link(s.a, "eth0", "up"),
			[]string{"hs1", "no carrier"}, network, a + ":4660", s.x, let, silent, ""},
		{"Bridge with a port that is down", "Bridge", "lan", s.link(s.sw, "x1", "down"), s.link(s.sw, "x1", "up"),
			[]string{"ip -n " + sw + " link set x1 up"}, network, x + ":8082", s.a, let, silent, ""},
		{"Bridge without carrier", "Bridge", "lan", s.link(s.x, "eth0", "down"), s.link(s.x, "eth0", "up"),
			[]string{"x1", "carrier"}, network, x + ":8082", s.a, let, silent, ""},
		{"Route in the switch without forwarding", "Route", route, off, on, forward, network, far + ":8082", pod1, let, silent, ""},
		{"Peer behind a Tunnel without forwarding", "Peer", "node2", off, on, forward, network, pod2 + ":4660", pod1, let, silent, ""},
		{"group without members", "AddressGroup", "web", label("other"), label("web"), []string{"no Endpoint has its labels"},
			network, x + ":8081", s.a, silent, let, "Ready"},
		{"rule of a group without members", "FirewallRule", "deny", label("other"), label("web"), []string{"AddressGroup/web has no members"},
			network, x + ":8081", s.a, silent, let, "Ready"},
		{"Peer that does not answer", "Peer", "node2", peerDown, peerUp, []string{underlay, "does not answer"},
			network, pod2 + ":4660", pod1, let, silent, ""},
		{"Peer without an Interface on its device", "Peer", "node2", s.llcli("interface", "delete", "eth0", "--force"), s.llcli("interface", "add", "eth0"),
			[]string{`no Interface attaches: run llcli interface add eth0`}, network, pod2 + ":4660", pod1, let, silent, ""},
		{"Tunnel whose Peers do not answer", "Tunnel", "mesh", peerDown, peerUp, []string{"Peer/node2", underlay, "does not answer"},
			network, pod2 + ":4660", pod1, let, silent, ""},
		{"Tunnel without an underlay address", "Tunnel", "mesh", addressed("del"), addressed("add"), []string{"Peer/node2", underlay},
			network, pod2 + ":4660", pod1, let, silent, ""},
		{"Tunnel without an underlay device", "Tunnel", "mesh", s.link(s.node, "eth0", "down"), s.link(s.node, "eth0", "up"),
			[]string{"Peer/node2", underlay}, network, pod2 + ":4660", pod1, let, silent, ""},
	}
}

// TestReadyAndPacketsOfSwitch is [TestReadyAndPackets] for objects that need a switch: Endpoints,
// Bridges, Tunnels, Peers behind them, and groups of Endpoints.
func TestReadyAndPacketsOfSwitch(t *testing.T) {
	testnet.RequireRoot(t)
	for underlay, over6 := range map[string]bool{"over IPv4": false, "over IPv6": true} {
		t.Run(underlay, func(t *testing.T) {
			s := newReadySwitch(t, over6)
			for family, is6 := range map[string]bool{"IPv4": false, "IPv6": true} {
				for _, c := range s.cases(over6, is6) {
					// Packets of other kinds do not leave the node: their underlay makes no difference.
					if over6 && c.kind != "Peer" && c.kind != "Tunnel" {
						continue
					}
					t.Run(family+" "+c.name, func(t *testing.T) { c.run(t, s.site) })
				}
			}
			t.Run("status", s.statusWithoutForwarding)
		})
	}
}

// statusWithoutForwarding: health, status and doctor name the parameter and the command.
func (s *readySwitch) statusWithoutForwarding(t *testing.T) {
	s.sw.Sysctl(t, "net.ipv4.ip_forward", "0")
	defer s.sw.Sysctl(t, "net.ipv4.ip_forward", "1")
	wantState(t, s.site, "Peer", "node2", "Pending")
	want := "ip netns exec " + s.nodes[0].sw + " sysctl -w net.ipv4.ip_forward=1"
	for _, command := range []string{"status", "doctor"} {
		last := ""
		testnet.Eventually(t, patience, "llcli "+command+" names the command", func() bool {
			out, _, err := s.TryLLCLI(command)
			last = fmt.Sprint(out, err)
			return strings.Contains(strings.Join(strings.Fields(last), " "), want)
		})
		if t.Failed() {
			t.Log(last)
		}
	}
	if out, code, _ := s.TryLLCLI("health"); code != 1 {
		t.Errorf("health: exit code %d: %s", code, out)
	}
}
