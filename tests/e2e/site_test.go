// SPDX-License-Identifier: Apache-2.0

// Package e2e contains the end-to-end tests: the real loxilightd and llcli, real sockets and
// packets, namespaces as machines. They need root, and use nothing from the machine but its kernel.
package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

var programs testdaemon.Programs

func TestMain(m *testing.M) { os.Exit(testdaemon.Main(m, "e2e", &programs)) }

// site is a node with a daemon, a client, and backends of three kinds.
//
//	client 192.0.2.17 ─┐                          ┌─ p1 10.0.1.1 ── 10.0.1.2 b1
//	                  lan ── 192.0.2.1 in0 [node] ├─ p2 10.0.2.1 ── 10.0.2.2 b2
//	near   192.0.2.77 ─┘                          └─ p3 10.0.3.1 ── 10.0.3.2 b3
//
// IPv6 likewise: 2001:db8:0:2::17, ::1 and ::77; 2001:db8:1::1 and ::2, and so on. Frontends are on
// 198.51.100.10 and 2001:db8:c633:6400::10, which no machine has. near is a backend on the client's
// side, for the one-armed node.
type site struct {
	t                       *testing.T
	client, lan, near, node *testnet.NS
	backends                [3]*testnet.NS
	*testdaemon.Daemon
}

const (
	vip4 = "198.51.100.10"
	vip6 = "[2001:db8:c633:6400::10]"
)

// vips are the frontends' addresses, by family, as written before a port.
var vips = map[string]string{"IPv4": vip4, "IPv6": vip6}

// newSite creates the machines. The daemon is configured, with the additional lines in more, but
// not started.
func newSite(t *testing.T, more ...string) *site {
	t.Helper()
	s := &site{t: t, client: testnet.New(t, "client"), lan: testnet.New(t, "lan"), near: testnet.New(t, "near"), node: testnet.New(t, "node")}
	for _, p := range []struct {
		ns      *testnet.NS
		name    string
		lanPort string
		last    string
	}{{s.client, "eth0", "client", "17"}, {s.near, "eth0", "near", "77"}, {s.node, "in0", "node", "1"}} {
		testnet.Veth(t, testnet.Port{NS: s.lan, Name: p.lanPort},
			testnet.Port{NS: p.ns, Name: p.name, Addrs: []string{"192.0.2." + p.last + "/24", "2001:db8:0:2::" + p.last + "/64"}})
	}
	s.lan.Bridge(t, "br0", "client", "near", "node")
	for i := range s.backends {
		b := testnet.New(t, fmt.Sprintf("b%d", i+1))
		s.backends[i] = b
		net4, net6 := fmt.Sprintf("10.0.%d.", i+1), fmt.Sprintf("2001:db8:%d::", i+1)
		testnet.Veth(t, testnet.Port{NS: s.node, Name: fmt.Sprintf("p%d", i+1), Addrs: []string{net4 + "1/24", net6 + "1/64"}},
			testnet.Port{NS: b, Name: "eth0", Addrs: []string{net4 + "2/24", net6 + "2/64"}})
		b.Route(t, "default", net4+"1")
		b.Route(t, "default", net6+"1")
	}
	for _, ns := range []*testnet.NS{s.client, s.near} {
		ns.Route(t, "default", "192.0.2.1")
		ns.Route(t, "default", "2001:db8:0:2::1")
	}
	// The node's own packets to a frontend leave through the lan unless the data plane takes them.
	s.node.Route(t, "default", "192.0.2.17")
	s.node.Route(t, "default", "2001:db8:0:2::17")
	s.node.Forward(t)
	if !slices.ContainsFunc(more, func(line string) bool { return strings.HasPrefix(line, "tables:") }) {
		more = append(more, siteTables)
	}
	s.Daemon = testdaemon.New(t, s.node, programs, more...)
	return s
}

const siteTables = "tables: {connections: 65536, services: 4096, backends: 65536, affinity: 1024, ranges: 1024}"

// start starts the daemon with all devices of the node as ports.
func (s *site) start() *site {
	s.t.Helper()
	s.Start()
	s.Apply(interfaces)
	return s
}

const interfaces = `
kind: Interface
name: in0
spec: {device: in0}
---
kind: Interface
name: p1
spec: {device: p1, role: port}
---
kind: Interface
name: p2
spec: {device: p2, role: port}
---
kind: Interface
name: p3
spec: {device: p3, role: port}
`

// backendAddr returns the address and port at which backend i (0 to 2) listens.
func backendAddr(family string, i, port int) string {
	if family == "IPv6" {
		return fmt.Sprintf("[2001:db8:%d::2]:%d", i+1, port)
	}
	return fmt.Sprintf("10.0.%d.2:%d", i+1, port)
}

// nodeAddr returns the node's address on the device that leads to backend i.
func nodeAddr(family string, i int) netip.Addr {
	if family == "IPv6" {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::1", i+1))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.0.%d.1", i+1))
}

// serviceYAML writes a Service; more are further lines of its spec.
func serviceYAML(name string, frontends, backends []string, more ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\nkind: Service\nname: %s\nspec:\n  frontends:\n", name)
	for _, f := range frontends {
		fmt.Fprintf(&b, "  - %q\n", f)
	}
	if len(backends) > 0 {
		b.WriteString("  backends:\n")
	}
	for _, backend := range backends {
		address, rest, _ := strings.Cut(backend, ",")
		fmt.Fprintf(&b, "  - {address: %q%s}\n", address, strings.ReplaceAll(","+rest, ",", ", "))
	}
	for _, line := range more {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	return b.String()
}

// eachFamily runs a test for IPv4 and IPv6.
func eachFamily(t *testing.T, test func(t *testing.T, family, vip string)) {
	for _, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) { test(t, family, vips[family]) })
	}
}
