// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/containernetworking/cni/libcni"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

// cluster is three nodes with pods, each with a daemon of its own, and a machine outside that has
// routes to the pods.
//
//	pods 10.76.1.3 … ── [switch 1] ══ loxi_test 10.76.1.2 [node 1] eth0 192.0.2.1 ─┐
//	pods 10.76.2.3 … ── [switch 2] ══ loxi_test 10.76.2.2 [node 2] eth0 192.0.2.2 ─┼─ lan ── 192.0.2.77 outside
//	pods 10.76.3.3 … ── [switch 3] ══ loxi_test 10.76.3.2 [node 3] eth0 192.0.2.3 ─┘
//
// IPv6 likewise: fd76:1::3 and 2001:db8:2::1.
type cluster struct {
	clusterKind
	t        *testing.T
	nodes    []*site
	stations []*station
}

// clusterKind contains the common settings of all nodes.
type clusterKind struct {
	tunnel string // type; empty: routed
	over6  bool   // the underlay is IPv6
	merged bool   // the switch is the host
	pods   int    // of each node
}

func (k clusterKind) String() string {
	name := k.tunnel
	if name == "" {
		name = "routed"
	}
	if k.over6 {
		name += " over IPv6"
	}
	if k.merged {
		name += ", no switch of its own"
	}
	return name
}

// kindOf is the kind of a station.
type kindOf int

const (
	aPod    kindOf = iota
	aNode          // by its address in the underlay
	ofPods         // a node by its address in its pod network
	outside        // a machine that is not a node
)

// station is a client and server with an address of each family.
type station struct {
	*testnet.NS
	name string
	kind kindOf
	node int           // number; 0: outside
	addr [2]netip.Addr // IPv4, IPv6
}

func newCluster(t *testing.T, kind clusterKind) *cluster {
	t.Helper()
	testnet.RequireRoot(t)
	c := &cluster{clusterKind: kind, t: t}
	lan, out := testnet.New(t, "lan"), testnet.New(t, "outside")
	testnet.Veth(t, testnet.Port{NS: lan, Name: "outside"},
		testnet.Port{NS: out, Name: "eth0", Addrs: []string{"192.0.2.77/24", "2001:db8:2::77/64"}})
	ports := []string{"outside"}
	for i := 1; i <= 3; i++ {
		c.nodes = append(c.nodes, c.newNode(i, lan))
		ports = append(ports, fmt.Sprintf("n%d", i))
		out.Route(t, fmt.Sprintf("10.76.%d.0/24", i), fmt.Sprintf("192.0.2.%d", i))
		out.Route(t, fmt.Sprintf("fd76:%d::/64", i), fmt.Sprintf("2001:db8:2::%d", i))
	}
	lan.Bridge(t, "br0", ports...)
	c.stations = append(c.stations, newStation(out, "outside", outside, 0, "192.0.2.77", "2001:db8:2::77"))
	for i, n := range c.nodes {
		n.Start()
		n.LLCLI("apply", "--wait", "30s", "-f", n.File(c.objects(i+1)))
		c.stations = append(c.stations, newStation(n.node, fmt.Sprintf("node %d", i+1), aNode, i+1,
			fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("2001:db8:2::%d", i+1)))
		second := 2
		if kind.merged {
			second = 1
		}
		c.stations = append(c.stations, newStation(n.node, fmt.Sprintf("node %d among its pods", i+1), ofPods, i+1,
			fmt.Sprintf("10.76.%d.%d", i+1, second), fmt.Sprintf("fd76:%d::%d", i+1, second)))
	}
	c.addPods()
	return c
}

func newStation(ns *testnet.NS, name string, kind kindOf, node int, addr4, addr6 string) *station {
	return &station{NS: ns, name: name, kind: kind, node: node, addr: [2]netip.Addr{netip.MustParseAddr(addr4), netip.MustParseAddr(addr6)}}
}

func (c *cluster) newNode(i int, lan *testnet.NS) *site {
	c.t.Helper()
	s := &site{t: c.t, node: testnet.New(c.t, fmt.Sprintf("node%d", i)), name: testnet.UniqueName("switch")}
	testnet.Veth(c.t, testnet.Port{NS: lan, Name: fmt.Sprintf("n%d", i)}, testnet.Port{NS: s.node, Name: "eth0",
		Addrs: []string{fmt.Sprintf("192.0.2.%d/24", i), fmt.Sprintf("2001:db8:2::%d/64", i)}})
	s.node.Forward(c.t)
	if c.merged {
		s.name = "host"
	}
	s.Daemon = testdaemon.New(c.t, s.node, programs, "switch: {namespace: "+s.name+"}",
		"tables: {connections: 65536, halfOpen: 16384, services: 512, backends: 256, slots: 4096, affinity: 64, ranges: 64}")
	c.t.Cleanup(func() {
		if !c.merged && s.hasSwitch() {
			testnet.DeleteNamed(c.t, s.name)
		}
	})
	s.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(programs.CNI), debianPlugins}, c.t.TempDir(), nil)
	return s
}

// uplink returns the uplink of node i: by its address if the underlay is IPv6, else by its name.
func (c *cluster) uplink(i int) string {
	if c.over6 {
		return fmt.Sprintf("kind: Interface\nname: eth0\nspec: {address: \"2001:db8:2::%d\"}", i)
	}
	return "kind: Interface\nname: eth0\nspec: {device: eth0}"
}

// objects returns the objects of node i.
func (c *cluster) objects(i int) string {
	docs := []string{
		c.uplink(i),
		fmt.Sprintf("kind: PodNetwork\nname: default\nspec: {subnets: [10.76.%d.0/24, \"fd76:%d::/64\"], masquerade: {enabled: true}}", i, i),
	}
	tunnel := ""
	if c.tunnel != "" {
		tunnel = ", tunnel: mesh"
		docs = append(docs, "kind: Tunnel\nname: mesh\nspec: {device: hstunnel, type: "+c.tunnel+", vni: 4660}")
	}
	for peer := 1; peer <= len(c.nodes); peer++ {
		underlay := fmt.Sprintf(`192.0.2.%d, "2001:db8:2::%d"`, peer, peer)
		if c.tunnel != "" {
			underlay = strings.Split(underlay, ", ")[map[bool]int{true: 1}[c.over6]]
		}
		if peer != i {
			docs = append(docs, fmt.Sprintf("kind: Peer\nname: node%d\nspec: {underlay: [%s], prefixes: [10.76.%d.0/24, \"fd76:%d::/64\"]%s}",
				peer, underlay, peer, peer, tunnel))
		}
	}
	return strings.Join(docs, "\n---\n")
}

// addPods attaches the pods of all nodes at once.
func (c *cluster) addPods() {
	c.t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, n := range c.nodes {
		list := n.list("1.0.0", nil)
		for k := 1; k <= c.pods; k++ {
			p := n.newPod(fmt.Sprintf("pod-%d-%d", i+1, k))
			wg.Go(func() {
				err := n.tryAdd(list, p)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					c.t.Errorf("ADD %s: %v", p.rt.ContainerID, err)
					return
				}
				c.stations = append(c.stations, &station{NS: p.NS, name: p.rt.ContainerID, kind: aPod, node: i + 1,
					addr: [2]netip.Addr{p.address(true), p.address(false)}})
			})
		}
	}
	wg.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// relation describes the relative location of two stations, as a row of the matrix.
func relation(from, to *station) string {
	names := map[kindOf]string{aPod: "pod", aNode: "node", ofPods: "node among pods", outside: "outside"}
	row := names[from.kind] + " → " + names[to.kind]
	switch {
	case from.node == 0 || to.node == 0:
	case from.node == to.node:
		row += ", here"
	default:
		row += ", there"
	}
	return row
}

// expected reports whether seen is an address that the station to may see for the station from.
func (c *cluster) expected(from, to *station, seen netip.Addr) bool {
	family := 0
	if seen.Is6() {
		family = 1
	}
	switch {
	case from.kind == aNode || from.kind == ofPods:
		for _, s := range c.stations { // any address of the node
			if (s.kind == aNode || s.kind == ofPods) && s.node == from.node && s.addr[family] == seen {
				return true
			}
		}
		return false
	case from.kind == aPod && (to.kind == outside || to.kind == aNode && from.node != to.node):
		return seen == c.nodeAddr(from.node, family) // masqueraded
	default:
		return seen == from.addr[family]
	}
}

func (c *cluster) nodeAddr(node, family int) netip.Addr {
	for _, s := range c.stations {
		if s.kind == aNode && s.node == node {
			return s.addr[family]
		}
	}
	return netip.Addr{}
}

// TestMatrix connects every station with every other one, through each kind of tunnel.
// LOXILIGHT_PODS is how many pods each node has.
func TestMatrix(t *testing.T) {
	testnet.RequireRoot(t)
	pods := 2
	if v := os.Getenv("LOXILIGHT_PODS"); v != "" {
		var err error
		if pods, err = strconv.Atoi(v); err != nil {
			t.Fatalf("LOXILIGHT_PODS=%s: %v", v, err)
		}
	}
	if pods > 5 {
		roomForNeighbours(t)
	}
	for _, kind := range []clusterKind{
		{tunnel: "vxlan"}, {tunnel: "vxlan", over6: true}, {tunnel: "geneve"}, {tunnel: "geneve", over6: true}, {tunnel: "gre"},
		{tunnel: "gre", over6: true}, {}, {tunnel: "vxlan", merged: true}, {merged: true},
	} {
		kind.pods = pods
		t.Run(kind.String(), func(t *testing.T) {
			c := newCluster(t, kind)
			m := c.talkAll()
			m.print(t)
			if !t.Failed() {
				c.talkMuch()
			}
			for _, n := range c.nodes {
				drops := n.Counters("", "").Drops
				for reason, count := range drops {
					if count > 0 {
						t.Errorf("drops %s: %d", reason, count)
					}
				}
			}
		})
	}
}

// roomForNeighbours enlarges the kernel's neighbour tables for pods that all resolve each other:
// the limits apply to all namespaces together.
func roomForNeighbours(t *testing.T) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, name := range []string{"gc_thresh1", "gc_thresh2", "gc_thresh3"} {
			path := filepath.Join("/proc/sys/net", family, "neigh/default", name)
			before, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, []byte("32768"), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.WriteFile(path, before, 0o644); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// matrix contains the successes: rows are relations, columns protocols.
type matrix struct {
	mu    sync.Mutex
	cells map[[2]string][2]int // of row and column: successes, attempts
	fails []string
}

func (m *matrix) note(row, column string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cell := m.cells[[2]string{row, column}]
	cell[1]++
	if err == nil {
		cell[0]++
	} else {
		m.fails = append(m.fails, fmt.Sprintf("%s by %s: %v", row, column, err))
	}
	m.cells[[2]string{row, column}] = cell
}

// print writes the matrix to the log, and fails the test if an attempt failed.
func (m *matrix) print(t *testing.T) {
	t.Helper()
	rows, columns := map[string]bool{}, map[string]bool{}
	for k := range m.cells {
		rows[k[0]], columns[k[1]] = true, true
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\t"+strings.Join(sorted(columns), "\t"))
	for _, row := range sorted(rows) {
		fmt.Fprint(w, row)
		for _, column := range sorted(columns) {
			cell := m.cells[[2]string{row, column}]
			fmt.Fprintf(w, "\t%d/%d", cell[0], cell[1])
		}
		fmt.Fprintln(w)
	}
	w.Flush() // into memory
	t.Log("\n" + b.String())
	for i, f := range m.fails {
		if i == 40 {
			t.Errorf("and %d more", len(m.fails)-i)
			break
		}
		t.Error(f)
	}
}
