// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
)

// readyCase is an object, one of its requirements, and a packet that shows whether the node meets
// the requirement.
type readyCase struct {
	name         string
	kind, object string
	lose, mend   func()
	words        []string // in the message while the requirement is missing
	network, to  string   // the packet
	from         *testnet.NS
	ready, lost  string // the result of the packet
	// state of the object while the requirement is missing; empty: Pending
	state string
}

// readyObjects contains an object of each kind on the site.
const readyObjects = interfaces + `---
kind: AddressGroup
name: clients
spec: {members: [192.0.2.0/24]}
---
kind: FirewallRule
name: deny
spec: {action: deny, match: {source: ["group:clients"], in: [in0], protocol: tcp, ports: 8080}}
---
kind: NAT
name: out
spec: {type: masquerade, match: {source: 192.0.2.0/24, out: [p1]}}
---
kind: Route
name: far
spec: {prefix: 203.0.113.0/24, via: 10.0.2.2}
---
kind: FirewallRule
name: deny6
spec: {action: deny, match: {source: ["2001:db8:0:2::/64"], in: [in0], protocol: tcp, ports: 8080}}
---
kind: NAT
name: out6
spec: {type: masquerade, match: {source: "2001:db8:0:2::/64", out: [p1]}}
---
kind: Route
name: far6
spec: {prefix: "2001:db8:f::/64", via: "2001:db8:2::2"}
---
kind: Bridge
name: lan
spec: {device: br7, ports: [{device: x1}, {device: x2}]}
---
kind: FirewallRule
name: bridged
spec: {action: deny, match: {in: [x1], protocol: tcp, ports: 8081}}
---
kind: PodNetwork
name: default
spec: {subnets: [10.9.0.0/24]}
---
kind: Tunnel
name: overlay
spec: {device: lltun0, type: vxlan, vni: 7}
---
kind: Peer
name: near
spec: {underlay: 192.0.2.77, prefixes: 10.99.0.0/24, tunnel: overlay}
---
kind: NAT
name: in
spec: {type: dnat, match: {destination: 192.0.2.1, protocol: tcp, ports: 8088}, to: {addresses: 203.0.113.1, ports: "9000"}}
---
kind: NAT
name: in6
spec: {type: dnat, match: {destination: "2001:db8:0:2::1", protocol: tcp, ports: 8088}, to: {addresses: "2001:db8:f::1", ports: "9000"}}
---
kind: NAT
name: anyway
spec: {type: snat, match: {source: 192.0.2.0/24, destination: 10.0.3.3}, to: {addresses: 10.0.3.9}}
---
kind: NAT
name: anyway6
spec: {type: snat, match: {source: "2001:db8:0:2::/64", destination: "2001:db8:3::3"}, to: {addresses: "2001:db8:3::9"}}
---
kind: FirewallRule
name: through
spec: {action: deny, hooks: [forward], match: {in: [in0], out: [p1], protocol: tcp, ports: 9002}}
---
kind: FirewallRule
name: anywhere
spec: {action: deny, match: {destination: local, protocol: tcp, ports: 8083}}
---
kind: Service
name: near
spec: {frontends: ["192.0.2.200:80/tcp"], backends: [{address: "10.0.1.2:9000"}], announce: true}
---
kind: Service
name: near6
spec: {frontends: ["[2001:db8:0:2::200]:80/tcp"], backends: [{address: "[2001:db8:1::2]:9000"}], announce: true}
---
kind: Service
name: web
spec:
  frontends: ["198.51.100.10:80/tcp"]
  backends: [{address: "10.0.3.2:9000"}]
  health: {type: tcp, interval: 1s, timeout: 500ms, healthy: 1, unhealthy: 1}
---
kind: Service
name: web6
spec:
  frontends: ["[2001:db8:c633:6400::10]:80/tcp"]
  backends: [{address: "[2001:db8:3::2]:9000"}]
  health: {type: tcp, interval: 1s, timeout: 500ms, healthy: 1, unhealthy: 1}
`

// readySite is a site with servers, two machines behind a bridge of the node, and an object
// of each kind.
type readySite struct {
	*site
	x1, x2  *testnet.NS
	servers [2]*testnet.Server // of the Services, IPv4 first
	muted   int                // how often mute was called
}

func newReadySite(t *testing.T) *readySite {
	t.Helper()
	s := &readySite{site: newSite(t), x1: testnet.New(t, "x1"), x2: testnet.New(t, "x2")}
	s.node.Sysctl(t, "net.ipv6.conf.all.keep_addr_on_down", "1")
	s.Start()
	testnet.Veth(t, testnet.Port{NS: s.node, Name: "x1"}, testnet.Port{NS: s.x1, Name: "eth0", Addrs: []string{"10.88.0.1/24"}})
	testnet.Veth(t, testnet.Port{NS: s.node, Name: "x2"}, testnet.Port{NS: s.x2, Name: "eth0", Addrs: []string{"10.88.0.2/24"}})
	s.x2.ServeTCP(t, "10.88.0.2:8081", "x2")
	s.x2.ServeTCP(t, "10.88.0.2:8082", "x2")
	s.node.ServeTCP(t, "192.0.2.1:8080", "node")
	s.node.ServeTCP(t, "192.0.2.1:8083", "node")
	s.backends[0].ServeTCP(t, "10.0.1.2:9000", "b1")
	s.backends[0].ServeTCP(t, "[2001:db8:1::2]:9000", "b1")
	s.backends[0].ServeTCP(t, "10.0.1.2:9002", "b1")
	s.backends[0].ServeTCP(t, "[2001:db8:1::2]:9002", "b1")
	s.backends[1].Up(t, "lo")
	s.backends[1].Addr(t, "lo", "203.0.113.1/32")
	s.backends[1].Addr(t, "lo", "2001:db8:f::1/128")
	s.backends[1].ServeTCP(t, "[2001:db8:f::1]:9000", "b2")
	s.node.ServeTCP(t, "[2001:db8:0:2::1]:8080", "node")
	s.backends[1].ServeTCP(t, "203.0.113.1:9000", "b2")
	s.serve4()
	s.serve6()
	s.serveTranslated("10.0.3.3", "/24", "192.0.2.0/24")
	s.serveTranslated("2001:db8:3::3", "/64", "2001:db8:0:2::/64")
	s.Apply(readyObjects)
	return s
}

func (s *readySite) serve4() { s.servers[0] = s.backends[2].ServeTCP(s.t, "10.0.3.2:9000", "b3") }
func (s *readySite) serve6() {
	s.servers[1] = s.backends[2].ServeTCP(s.t, "[2001:db8:3::2]:9000", "b3")
}

// serveTranslated gives b3 a second address, with a server whose replies to the client's network
// have no route.
func (s *readySite) serveTranslated(address, length, client string) {
	b3, family := s.backends[2], "-4"
	if strings.Contains(address, ":") {
		family = "-6"
	}
	b3.Addr(s.t, "eth0", address+length)
	b3.Run(s.t, "ip", family, "rule", "add", "pref", "50", "from", address, "to", client, "unreachable")
	b3.ServeTCP(s.t, net.JoinHostPort(address, "9001"), "b3")
}

// address6 restores the IPv6 address and route that the kernel of b1 or b2 removes when its device
// goes down.
func (s *readySite) address6(n int) {
	s.backends[n-1].Run(s.t, "ip", "address", "replace", fmt.Sprintf("2001:db8:%d::2/64", n), "dev", "eth0", "nodad")
	s.backends[n-1].Run(s.t, "ip", "-6", "route", "replace", "default", "via", fmt.Sprintf("2001:db8:%d::1", n))
}

// mute gives b1 or b2 a MAC address that the node does not know, and makes it answer neither ARP
// nor neighbour solicitations; unmute makes it answer again.
func (s *readySite) mute(n int) func() {
	return func() {
		s.backends[n-1].Run(s.t, "ip", "link", "set", "eth0", "arp", "off", "address", fmt.Sprintf("02:00:00:00:77:%02x", s.muted))
		s.muted++
		for _, family := range []string{"-4", "-6"} {
			s.node.Run(s.t, "ip", family, "neigh", "flush", "dev", fmt.Sprintf("p%d", n))
		}
	}
}

func (s *readySite) unmute(n int) func() {
	return func() {
		s.backends[n-1].Run(s.t, "ip", "link", "set", "eth0", "arp", "on")
		s.address6(n)
	}
}

// unplug removes the carrier of the link to b1 or b2, and plug restores it.
func (s *readySite) unplug(n int) func() { return s.link(s.backends[n-1], "eth0", "down") }

func (s *readySite) plug(n int) func() {
	return func() {
		s.link(s.backends[n-1], "eth0", "up")()
		s.backends[n-1].Route(s.t, "default", fmt.Sprintf("10.0.%d.1", n))
		s.address6(n)
	}
}

func (s *readySite) link(ns *testnet.NS, device, to string) func() {
	return func() { ns.Run(s.t, "ip", "link", "set", device, to) }
}

func (s *readySite) sysctl(key, value string) func() {
	return func() { s.node.Sysctl(s.t, key, value) }
}

// route changes a route of the node.
func (s *readySite) route(verb string, args ...string) func() {
	return func() { s.node.Run(s.t, "ip", append([]string{"route", verb}, args...)...) }
}

// unaddressed returns functions that remove the addresses of a family from device pN, which still
// leads to its backend, and restore them.
func (s *readySite) unaddressed(n int) (ip4, ip6 [2]func()) {
	device := fmt.Sprintf("p%d", n)
	both := func(address, backend string) (list [2]func()) {
		for i, verbs := range [][2]string{{"del", "replace"}, {"add", "del"}} {
			list[i] = func() {
				// The kernel deletes the routes of a device with its last IPv4 address.
				s.node.Run(s.t, "ip", "address", verbs[0], address, "dev", device, "nodad")
				s.node.Run(s.t, "ip", "route", verbs[1], backend, "dev", device)
			}
		}
		return list
	}
	return both(fmt.Sprintf("10.0.%d.1/24", n), fmt.Sprintf("10.0.%d.2", n)), both(fmt.Sprintf("2001:db8:%d::1/64", n), fmt.Sprintf("2001:db8:%d::2", n))
}

// blackholed returns functions that add and delete a routing rule that makes packets to a prefix
// take a blackhole route; more selects packets.
func (s *readySite) blackholed(family, prefix string, more ...string) (lose, mend func()) {
	lose = func() {
		s.node.Run(s.t, "ip", family, "route", "add", "blackhole", "default", "table", "100")
		s.node.Run(s.t, "ip", append([]string{family, "rule", "add", "pref", "100", "to", prefix, "lookup", "100"}, more...)...)
	}
	mend = func() {
		s.node.Run(s.t, "ip", family, "rule", "del", "pref", "100")
		s.node.Run(s.t, "ip", family, "route", "flush", "table", "100")
	}
	return lose, mend
}

// prefixLength replaces an address of in0 with the same address in a different network.
func (s *readySite) prefixLength(address, from, to string) func() {
	add := func() { s.node.Run(s.t, "ip", "address", "add", address+to, "dev", "in0", "nodad") }
	del := func() { s.node.Run(s.t, "ip", "address", "del", address+from, "dev", "in0") }
	if strings.Contains(address, ":") { // a device cannot have an IPv6 address twice
		return func() { del(); add() }
	}
	return func() { add(); del() } // the kernel deletes routes with the last IPv4 address

}

// moreCases are requirements that other programs remove: links, routing rules, bridge ports.
func (s *readySite) moreCases() []readyCase {
	down, up := s.link(s.node, "p1", "down"), s.link(s.node, "p1", "up")
	cut, plugged := s.link(s.backends[0], "eth0", "down"), func() {
		s.link(s.backends[0], "eth0", "up")()
		s.backends[0].Route(s.t, "default", "10.0.1.1")
		s.backends[0].Run(s.t, "ip", "address", "replace", "2001:db8:1::2/64", "dev", "eth0", "nodad")
		s.backends[0].Run(s.t, "ip", "-6", "route", "replace", "default", "via", "2001:db8:1::1")
	}
	const in4, in6 = "192.0.2.1", "2001:db8:0:2::1"
	b1, b16 := "10.0.1.2:9000", "[2001:db8:1::2]:9000"
	far, far6 := "203.0.113.1", "2001:db8:f::1"
	route4, back4 := s.blackholed("-4", "203.0.113.0/24")
	route6, back6 := s.blackholed("-6", "2001:db8:f::/64")
	nat4, natBack4 := s.blackholed("-4", far)
	nat6, natBack6 := s.blackholed("-6", far6)
	some4, all4 := s.blackholed("-4", "10.0.3.2", "iif", "in0")
	some6, all6 := s.blackholed("-6", "2001:db8:3::2", "iif", "in0")
	return []readyCase{
		{"masquerade by a device that is down", "NAT", "out", down, up, []string{"ip link set p1 up"}, "tcp4", b1, s.client, let, silent, ""},
		{"IPv6 masquerade by a device that is down", "NAT", "out6", down, up, []string{"ip link set p1 up"}, "tcp6", b16, s.client, let, silent, ""},
		{"masquerade by a device without carrier", "NAT", "out", cut, plugged, []string{"p1", "no carrier"}, "tcp4", b1, s.client, let, silent, ""},
		{"Route with a blackhole rule", "Route", "far", route4, back4, []string{"blackhole", "ip rule"}, "tcp4", far + ":9000", s.client, let, silent, ""},
		{"IPv6 Route with a blackhole rule", "Route", "far6", route6, back6, []string{"blackhole", "ip rule"}, "tcp6", "[" + far6 + "]:9000", s.client, let, silent, ""},
		{"NAT with a blackhole rule", "NAT", "in", nat4, natBack4, []string{far, "blackhole"}, "tcp4", in4 + ":8088", s.client, let, silent, ""},
		{"IPv6 NAT with a blackhole rule", "NAT", "in6", nat6, natBack6, []string{far6, "blackhole"}, "tcp6", "[" + in6 + "]:8088", s.client, let, silent, ""},
		{"Service with a blackhole rule for some", "Service", "web", some4, all4, []string{"10.0.3.2", "in0", "blackhole"}, "tcp4", vip4 + ":80", s.client, let, silent, "Ready"},
		{"IPv6 Service with a blackhole rule for some", "Service", "web6", some6, all6, []string{"2001:db8:3::2", "in0", "blackhole"},
			"tcp6", vip6 + ":80", s.client, let, silent, "Ready"},
		{"Bridge with a blocked port", "Bridge", "lan", func() { s.node.Run(s.t, "bridge", "link", "set", "dev", "x2", "state", "0") },
			func() { s.node.Run(s.t, "bridge", "link", "set", "dev", "x2", "state", "3") }, []string{"bridge link set dev x2 state 3"},
			"tcp4", "10.88.0.2:8082", s.x1, let, silent, ""},
		// Hosts that have a route to the address on the link reach it anyway.
		{"Service outside of the uplink's network", "Service", "near", s.prefixLength(in4, "/24", "/25"), s.prefixLength(in4, "/25", "/24"),
			[]string{"192.0.2.200 is in no network", "192.0.2.0/25 on in0"}, "tcp4", "192.0.2.200:80", s.client, let, let, "Ready"},
		{"IPv6 Service outside of the uplink's network", "Service", "near6", s.prefixLength(in6, "/64", "/120"), s.prefixLength(in6, "/120", "/64"),
			[]string{"2001:db8:0:2::200 is in no network", "2001:db8:0:2::/120 on in0"}, "tcp6", "[2001:db8:0:2::200]:80", s.client, let, let, "Ready"},
	}
}

// role gives in0 a role, and deletes the client's neighbour entries.
func (s *readySite) role(role string) func() {
	return func() {
		s.LLCLI("interface", "set", "in0", "--role", role, "--force") // it is the only uplink
		s.client.Run(s.t, "ip", "neigh", "flush", "dev", "eth0")
		s.client.Run(s.t, "ip", "-6", "neigh", "flush", "dev", "eth0")
	}
}

// address adds an address to the loopback of the node, or deletes it.
func (s *readySite) address(verb, prefix string) func() {
	return func() { s.node.Run(s.t, "ip", "address", verb, prefix, "dev", "lo") }
}

func (s *readySite) llcli(args ...string) func() { return func() { s.LLCLI(args...) } }

func (s *readySite) cases() []readyCase {
	const forward4, forward6 = "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"
	off, on := s.sysctl(forward4, "0"), s.sysctl(forward4, "1")
	off6, on6 := s.sysctl(forward6, "0"), s.sysctl(forward6, "1")
	alone4, alone6 := s.unaddressed(1)
	b1, far := "10.0.1.2:9000", "203.0.113.1:9000"
	b16, far6 := "[2001:db8:1::2]:9000", "[2001:db8:f::1]:9000"
	return []readyCase{
		{"rule without Interface", "FirewallRule", "deny", s.llcli("interface", "delete", "in0", "--force"), s.llcli("interface", "add", "in0"),
			[]string{"llcli interface add in0"}, "tcp4", "192.0.2.1:8080", s.client, silent, let, ""},
		{"rule on a bridge's port without the port", "FirewallRule", "bridged", s.llcli("bridge", "set", "lan", "--remove-port", "x1"),
			s.llcli("bridge", "set", "lan", "--add-port", "x1"), []string{"llcli interface add x1"}, "tcp4", "10.88.0.2:8081", s.x1, silent, silent, ""},
		{"NAT without forwarding", "NAT", "out", off, on, []string{"sysctl -w " + forward4 + "=1"}, "tcp4", b1, s.client, let, silent, ""},
		{"PodNetwork without forwarding", "PodNetwork", "default", off, on, []string{forward4}, "tcp4", b1, s.client, let, silent, ""},
		{"Route without forwarding", "Route", "far", off, on, []string{forward4}, "tcp4", far, s.client, let, silent, ""},
		{"Route without its next hop", "Route", "far", s.mute(2), s.unmute(2),
			[]string{"10.0.2.2", "does not answer"}, "tcp4", far, s.client, let, silent, ""},
		{"Route without carrier", "Route", "far", s.unplug(2), s.plug(2),
			[]string{"p2", "no carrier"}, "tcp4", far, s.client, let, silent, ""},
		{"Interface that is down", "Interface", "p1", s.link(s.node, "p1", "down"), s.link(s.node, "p1", "up"),
			[]string{"ip link set p1 up"}, "tcp4", b1, s.client, let, silent, ""},
		{"Interface without carrier", "Interface", "p1", s.unplug(1), s.plug(1), []string{"p1", "no carrier"}, "tcp4", b1, s.client, let, silent, ""},
		{"IPv6 Interface that is down", "Interface", "p1", s.link(s.node, "p1", "down"), s.link(s.node, "p1", "up"),
			[]string{"ip link set p1 up"}, "tcp6", b16, s.client, let, silent, ""},
		{"Peer without its address", "Peer", "near", s.link(s.node, "in0", "down"),
			func() { s.link(s.node, "in0", "up")(); s.node.Route(s.t, "default", "192.0.2.17") },
			[]string{"192.0.2.77"}, "tcp4", b1, s.client, let, silent, ""},
		{"Service without a healthy backend", "Service", "web", func() { s.servers[0].Close() }, s.serve4,
			[]string{"1 unhealthy"}, "tcp4", vip4 + ":80", s.client, let, refused, ""},
		{"IPv6 rule without Interface", "FirewallRule", "deny6", s.llcli("interface", "delete", "in0", "--force"),
			s.llcli("interface", "add", "in0"), []string{"llcli interface add in0"}, "tcp6", "[2001:db8:0:2::1]:8080", s.client, silent, let, ""},
		{"IPv6 NAT without forwarding", "NAT", "out6", off6, on6, []string{"sysctl -w " + forward6 + "=1"}, "tcp6", b16, s.client, let, silent, ""},
		{"IPv6 NAT without Interface", "NAT", "out6", s.llcli("interface", "delete", "p1", "--force"), s.llcli("interface", "add", "p1", "--role", "port"),
			[]string{"llcli interface add p1"}, "tcp6", b16, s.client, let, let, ""},
		{"forward rule without the Interface of its out", "FirewallRule", "through", s.llcli("interface", "delete", "p1", "--force"),
			s.llcli("interface", "add", "p1", "--role", "port"), nil, "tcp4", "10.0.1.2:9002", s.client, silent, silent, "Ready"},
		{"IPv6 forward rule without the Interface of its in", "FirewallRule", "through", s.llcli("interface", "delete", "in0", "--force"),
			s.llcli("interface", "add", "in0"), nil, "tcp6", "[2001:db8:1::2]:9002", s.client, silent, silent, "Ready"},
		{"NAT to the node without Interface", "NAT", "in", s.llcli("interface", "delete", "in0", "--force"), s.llcli("interface", "add", "in0"),
			[]string{"packets to 192.0.2.1 arrive on", "llcli interface add in0"}, "tcp4", "192.0.2.1:8088", s.client, let, refused, ""},
		{"IPv6 NAT to the node without Interface", "NAT", "in6", s.llcli("interface", "delete", "in0", "--force"), s.llcli("interface", "add", "in0"),
			[]string{"packets to 2001:db8:0:2::1 arrive on", "llcli interface add in0"}, "tcp6", "[2001:db8:0:2::1]:8088", s.client, let, refused, ""},
		{"NAT without the Interface by which packets leave", "NAT", "anyway", s.llcli("interface", "delete", "p3", "--force"),
			s.llcli("interface", "add", "p3", "--role", "port"), []string{"leave through", "p3", "untranslated", "llcli interface add p3"},
			"tcp4", "10.0.3.3:9001", s.client, let, silent, ""},
		{"IPv6 NAT without the Interface by which packets leave", "NAT", "anyway6", s.llcli("interface", "delete", "p3", "--force"),
			s.llcli("interface", "add", "p3", "--role", "port"), []string{"leave through", "p3", "untranslated", "llcli interface add p3"},
			"tcp6", "[2001:db8:3::3]:9001", s.client, let, silent, ""},
		{"Route by an address that becomes the node's", "Route", "far", s.address("add", "10.0.2.2/32"), s.address("del", "10.0.2.2/32"),
			[]string{"10.0.2.2 is an address of the node itself"}, "tcp4", far, s.client, let, silent, ""},
		{"IPv6 Route by an address that becomes the node's", "Route", "far6", s.address("add", "2001:db8:2::2/128"), s.address("del", "2001:db8:2::2/128"),
			[]string{"2001:db8:2::2 is an address of the node itself"}, "tcp6", far6, s.client, let, silent, ""},
		{"IPv6 Route without forwarding", "Route", "far6", off6, on6, []string{forward6}, "tcp6", far6, s.client, let, silent, ""},
		{"IPv6 Route without its next hop", "Route", "far6", s.mute(2), s.unmute(2),
			[]string{"2001:db8:2::2", "does not answer"}, "tcp6", far6, s.client, let, silent, ""},
		{"NAT without forwarding on the inner device", "NAT", "out", s.sysctl("net.ipv4.conf.in0.forwarding", "0"), s.sysctl("net.ipv4.conf.in0.forwarding", "1"),
			[]string{"sysctl -w net.ipv4.conf.in0.forwarding=1"}, "tcp4", b1, s.client, let, silent, ""},
		{"masquerade by a device without an address", "NAT", "out", alone4[0], alone4[1],
			[]string{"p1", "IPv4 address", "ip address add"}, "tcp4", b1, s.client, let, silent, ""},
		{"IPv6 masquerade by a device without an address", "NAT", "out6", alone6[0], alone6[1],
			[]string{"p1", "IPv6 address", "ip address add"}, "tcp6", b16, s.client, let, silent, ""},
		{"NAT to a target without a route", "NAT", "in", s.route("add", "unreachable", "203.0.113.1"), s.route("del", "unreachable", "203.0.113.1"),
			[]string{"no route leads to 203.0.113.1"}, "tcp4", "192.0.2.1:8088", s.client, let, silent, ""},
		{"IPv6 NAT to a target without a route", "NAT", "in6", s.route("add", "unreachable", "2001:db8:f::1"), s.route("del", "unreachable", "2001:db8:f::1"),
			[]string{"no route leads to 2001:db8:f::1"}, "tcp6", "[2001:db8:0:2::1]:8088", s.client, let, silent, ""},
		{"rule that does not apply to a device", "FirewallRule", "anywhere", s.llcli("interface", "delete", "in0", "--force"), s.llcli("interface", "add", "in0"),
			[]string{"in0", "llcli interface add in0"}, "tcp4", "192.0.2.1:8083", s.client, silent, let, "Ready"},
		{"Service without forwarding", "Service", "web", off, on, []string{"sysctl -w " + forward4 + "=1"}, "tcp4", vip4 + ":80", s.client, let, silent, ""},
		{"IPv6 Service without forwarding", "Service", "web6", off6, on6, []string{"sysctl -w " + forward6 + "=1"},
			"tcp6", "[2001:db8:c633:6400::10]:80", s.client, let, silent, ""},
		{"Service with a broadcast address as backend", "Service", "near", s.route("add", "broadcast", "10.0.1.2", "dev", "p1", "table", "local"),
			s.route("del", "broadcast", "10.0.1.2", "dev", "p1", "table", "local"), []string{"10.0.1.2:9000", "broadcast address", "p1"},
			"tcp4", "192.0.2.200:80", s.client, let, silent, ""},
		{"Service without the neighbour of its backend", "Service", "near", s.mute(1), s.unmute(1),
			[]string{"backend 10.0.1.2:9000", "does not answer", "p1"}, "tcp4", "192.0.2.200:80", s.client, let, silent, ""},
		{"IPv6 Service without the neighbour of its backend", "Service", "near6", s.mute(1), s.unmute(1),
			[]string{"backend " + b16, "does not answer", "p1"}, "tcp6", "[2001:db8:0:2::200]:80", s.client, let, silent, ""},
		{"Service without carrier", "Service", "near", s.unplug(1), s.plug(1),
			[]string{"backend 10.0.1.2:9000", "p1", "no carrier"}, "tcp4", "192.0.2.200:80", s.client, let, silent, ""},
		{"NAT without the neighbour towards its target", "NAT", "in", s.mute(2), s.unmute(2),
			[]string{"10.0.2.2 does not answer", "p2"}, "tcp4", "192.0.2.1:8088", s.client, let, silent, ""},
		{"IPv6 NAT without the neighbour towards its target", "NAT", "in6", s.mute(2), s.unmute(2),
			[]string{"2001:db8:2::2 does not answer", "p2"}, "tcp6", "[2001:db8:0:2::1]:8088", s.client, let, silent, ""},
		{"NAT without carrier", "NAT", "in", s.unplug(2), s.plug(2),
			[]string{"p2", "no carrier"}, "tcp4", "192.0.2.1:8088", s.client, let, silent, ""},
		{"frontend without a backend of its family", "Service", "near6", func() {
			s.LLCLI("service", "backend", "add", "near6", b1)
			s.LLCLI("service", "backend", "remove", "near6", b16)
		}, func() {
			s.LLCLI("service", "backend", "add", "near6", b16)
			s.LLCLI("service", "backend", "remove", "near6", b1)
		}, []string{"no IPv6 backend", "[2001:db8:0:2::200]:80/tcp"}, "tcp6", "[2001:db8:0:2::200]:80", s.client, let, refused, "Ready"},
		{"Service that no uplink announces", "Service", "near", s.role("port"), s.role("uplink"), []string{"192.0.2.200", "llcli interface add"},
			"tcp4", "192.0.2.200:80", s.client, let, silent, ""},
		{"IPv6 Service that no uplink announces", "Service", "near6", s.role("port"), s.role("uplink"), []string{"2001:db8:0:2::200", "llcli interface add"},
			"tcp6", "[2001:db8:0:2::200]:80", s.client, let, silent, ""},
		{"the node's own connection to a Service", "Service", "web", s.llcli("interface", "delete", "p3", "--force"), s.llcli("interface", "add", "p3", "--role", "port"),
			[]string{"llcli interface add p3"}, "tcp4", vip4 + ":80", s.node, let, silent, "Ready"},
		{"IPv6 Service without a healthy backend", "Service", "web6", func() { s.servers[1].Close() }, s.serve6,
			[]string{"1 unhealthy"}, "tcp6", "[2001:db8:c633:6400::10]:80", s.client, let, refused, ""},
	}
}

// run compares the state with the results of packets before, while and after the requirement is
// missing.
func (c *readyCase) run(t *testing.T, s *site) {
	t.Helper()
	packet := func(when, want string) {
		t.Helper()
		testnet.Eventually(t, patience, c.name+", "+when+": "+c.to+" is "+want, func() bool {
			return try(c.from, c.network, c.to, silence) == want
		})
	}
	wantState(t, s, c.kind, c.object, "Ready")
	packet("ready", c.ready)
	lost := true
	defer func() {
		if lost { // the next case needs it
			c.mend()
		}
	}()
	c.lose()
	wantState(t, s, c.kind, c.object, cmp.Or(c.state, "Pending"), c.words...)
	packet("lost", c.lost)
	lost = false
	c.mend()
	wantState(t, s, c.kind, c.object, "Ready")
	packet("mended", c.ready)
}

// TestReadyAndPackets removes from a node, one at a time, each requirement of objects of all kinds,
// and compares the state of the object with the results of packets.
func TestReadyAndPackets(t *testing.T) {
	s := newReadySite(t)
	for _, c := range append(s.cases(), s.moreCases()...) {
		t.Run(c.name, func(t *testing.T) { c.run(t, s.site) })
	}
	t.Run("health", func(t *testing.T) {
		s.servers[0].Close()
		wantState(t, s.site, "Service", "web", "Pending")
		testnet.Eventually(t, patience, "health is degraded", func() bool { _, code, _ := s.TryLLCLI("health"); return code == 1 })
		if out, code, err := s.TryLLCLI("health", "--ignore", "services"); code != 0 {
			t.Errorf("health without services: exit code %d: %s%v", code, out, err)
		}
	})
}
