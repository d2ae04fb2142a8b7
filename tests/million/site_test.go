// SPDX-License-Identifier: Apache-2.0

package million

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

const (
	frontend     = "198.51.100.10:9000"
	backendPort  = 8080
	backendCount = 16
	sourceCount  = 128 // addresses of clients
)

// site is a node with a daemon, clients, and backends.
//
//	clients 192.0.2.17 ── 192.0.2.1 in0 [node] p1 10.0.1.1 ── 10.0.1.2 backends
//	10.61.0.0/24                                                  10.62.0.0/24
//
// The clients and the backends have their addresses behind one gateway each, so that the node has
// two neighbours only.
type site struct {
	clientNS, node, backendNS *testnet.NS
	*testdaemon.Daemon
}

// newSite creates the namespaces and starts the daemon. Its connection table has room for between
// least and most connections.
func newSite(t *testing.T, least, most int) *site {
	t.Helper()
	s := &site{clientNS: testnet.New(t, "clients"), node: testnet.New(t, "node"), backendNS: testnet.New(t, "backends")}
	testnet.Veth(t, testnet.Port{NS: s.clientNS, Name: "eth0", Addrs: []string{"192.0.2.17/24"}},
		testnet.Port{NS: s.node, Name: "in0", Addrs: []string{"192.0.2.1/24"}})
	testnet.Veth(t, testnet.Port{NS: s.backendNS, Name: "eth0", Addrs: []string{"10.0.1.2/24"}},
		testnet.Port{NS: s.node, Name: "p1", Addrs: []string{"10.0.1.1/24"}})
	for _, end := range []struct {
		ns                       *testnet.NS
		prefix, gateway, address string
	}{{s.clientNS, "10.61.0.0/24", "192.0.2.1", "192.0.2.17"}, {s.backendNS, "10.62.0.0/24", "10.0.1.1", "10.0.1.2"}} {
		end.ns.Run(t, "ip", "route", "add", "local", end.prefix, "dev", "lo")
		end.ns.Route(t, "default", end.gateway)
		s.node.Route(t, end.prefix, end.address)
		// Little memory is enough for small requests.
		end.ns.Sysctl(t, "net.ipv4.tcp_rmem", "4096 8192 16384")
		end.ns.Sysctl(t, "net.ipv4.tcp_wmem", "4096 8192 16384")
		end.ns.Sysctl(t, "net.core.somaxconn", strconv.Itoa(backlog))
		end.ns.Sysctl(t, "net.ipv4.tcp_max_syn_backlog", strconv.Itoa(backlog))
	}
	s.node.Forward(t)
	s.Daemon = testdaemon.New(t, s.node, programs,
		fmt.Sprintf("tables: {connections: {min: %d, max: %d}, services: 64, backends: 64, affinity: 64, ranges: 64}", least, most))
	s.Start()
	s.Apply(objects())
	return s
}

// objects returns the node's configuration: both ports, and the Service. The backend of a connection
// that the table has forgotten is random, so that such a connection is reset.
func objects() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
kind: Interface
name: in0
spec: {device: in0}
---
kind: Interface
name: p1
spec: {device: p1, role: port}
---
kind: Service
name: web
spec:
  frontends: ["%s/tcp"]
  algorithm: random
  source: keep
  backends:
`, frontend)
	for i := range backendCount {
		fmt.Fprintf(&b, "  - {address: %q}\n", backend(i))
	}
	return b.String()
}

// backend returns the address and port of backend i.
func backend(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 62, 0, byte(10 + i)}), backendPort)
}

// source returns client address i.
func source(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 61, 0, byte(10 + i)}) }

// tcpCounters returns the kernel's TCP counters of a namespace.
func tcpCounters(t *testing.T, ns *testnet.NS) map[string]int {
	t.Helper()
	var text []byte
	ns.Do(t, func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	})
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == "Tcp:" {
			rows = append(rows, fields)
		}
	}
	if len(rows) != 2 || len(rows[0]) != len(rows[1]) {
		t.Fatalf("TCP counters of the kernel: %q", rows)
	}
	counters := make(map[string]int)
	for i, name := range rows[0] {
		counters[name], _ = strconv.Atoi(rows[1][i]) // the first field is no number
	}
	return counters
}
