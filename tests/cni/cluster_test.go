// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	drops    map[string]uint64 // by node and reason, of earlier clusters of the same nodes
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

// machines is the part of a cluster that clusters of several kinds can share: the underlay and the
// nodes, whose daemons run without objects.
type machines struct {
	t      *testing.T
	lan    *testnet.NS
	merged bool
	nodes  []*site
}

func newMachines(t *testing.T, merged bool) *machines {
	t.Helper()
	testnet.RequireRoot(t)
	m := &machines{t: t, lan: testnet.New(t, "lan"), merged: merged}
	var ports []string
	var daemons []*testdaemon.Daemon
	for i := 1; i <= 3; i++ {
		n := m.newNode(i)
		m.nodes, daemons = append(m.nodes, n), append(daemons, n.Daemon)
		ports = append(ports, fmt.Sprintf("n%d", i))
	}
	m.lan.Bridge(t, "br0", ports...)
	testdaemon.StartAll(daemons...)
	return m
}

func (m *machines) newNode(i int) *site {
	m.t.Helper()
	s := &site{t: m.t, node: testnet.New(m.t, fmt.Sprintf("node%d", i)), name: testnet.UniqueName("switch")}
	testnet.Veth(m.t, testnet.Port{NS: m.lan, Name: fmt.Sprintf("n%d", i)}, testnet.Port{NS: s.node, Name: "eth0",
		Addrs: []string{fmt.Sprintf("192.0.2.%d/24", i), fmt.Sprintf("2001:db8:2::%d/64", i)}})
	s.node.Forward(m.t)
	if m.merged {
		s.name = "host"
	}
	s.Daemon = testdaemon.New(m.t, s.node, programs, "switch: {namespace: "+s.name+"}",
		"tables: {connections: 65536, services: 512, backends: 256, affinity: 64, ranges: 64}")
	m.t.Cleanup(func() {
		if !m.merged && s.hasSwitch() {
			testnet.DeleteNamed(m.t, s.name)
		}
	})
	s.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(programs.CNI), debianPlugins}, m.t.TempDir(), nil)
	return s
}

// eachKind runs a test for each kind of cluster. Kinds with the same switch share their nodes: a
// cluster of the next kind begins when all pods and objects of the previous kind have been deleted.
// A kind must not have a larger path MTU than the previous one: the kernels remember path MTUs.
func eachKind(t *testing.T, kinds []clusterKind, test func(t *testing.T, c *cluster)) {
	t.Helper()
	for _, merged := range []bool{false, true} {
		var m *machines
		for _, kind := range kinds {
			if kind.merged != merged {
				continue
			}
			if m == nil {
				m = newMachines(t, merged)
			} else {
				m.clear()
			}
			t.Run(kind.String(), func(t *testing.T) { test(t, m.cluster(t, kind)) })
		}
	}
}

// clear removes everything that a cluster has left on its nodes, except the daemons.
func (m *machines) clear() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	for i, n := range m.nodes {
		if err := n.cni.GCNetworkList(ctx, n.list("1.1.0", nil), &libcni.GCArgs{}); err != nil {
			m.t.Fatalf("GC on node %d: %v", i+1, err)
		}
		n.Clear()
		n.isClear(i + 1)
	}
}

// isClear waits until no device and no route of a cluster is left on node i, except the link between
// host and switch.
func (s *site) isClear(i int) {
	s.t.Helper()
	var out string
	clear := false
	defer func() {
		if !clear {
			s.t.Log(out)
		}
	}()
	testnet.Eventually(s.t, 20*time.Second, fmt.Sprintf("node %d has no state of a cluster", i), func() bool {
		out = s.node.Run(s.t, "ip", "-o", "link", "show")
		for _, family := range []string{"-4", "-6"} {
			out += s.node.Run(s.t, "ip", family, "route", "show", "table", "all")
		}
		clear = !slices.ContainsFunc([]string{"hstunnel", "hsvlan110", "10.76.", "fd76:"}, func(left string) bool { return strings.Contains(out, left) })
		return clear
	})
}

func newCluster(t *testing.T, kind clusterKind) *cluster {
	t.Helper()
	return newMachines(t, kind.merged).cluster(t, kind)
}

// cluster makes the nodes, which must be clear, a cluster of the given kind, with a machine outside.
func (m *machines) cluster(t *testing.T, kind clusterKind) *cluster {
	t.Helper()
	c := &cluster{clusterKind: kind, t: t, drops: map[string]uint64{}}
	out := testnet.New(t, "outside")
	// It has the same MAC in all clusters, since the nodes know it.
	testnet.Veth(t, testnet.Port{NS: m.lan, Name: "outside"},
		testnet.Port{NS: out, Name: "eth0", MAC: "02:00:5e:02:00:77", Addrs: []string{"192.0.2.77/24", "2001:db8:2::77/64"}})
	m.lan.Run(t, "ip", "link", "set", "outside", "master", "br0")
	c.stations = append(c.stations, newStation(out, "outside", outside, 0, "192.0.2.77", "2001:db8:2::77"))
	for i, n := range m.nodes {
		c.nodes = append(c.nodes, &site{Daemon: n.For(t), t: t, node: n.node, name: n.name, cni: n.cni})
		out.Route(t, fmt.Sprintf("10.76.%d.0/24", i+1), fmt.Sprintf("192.0.2.%d", i+1))
		out.Route(t, fmt.Sprintf("fd76:%d::/64", i+1), fmt.Sprintf("2001:db8:2::%d", i+1))
	}
	for i, n := range c.nodes {
		for reason, count := range n.Counters("", "").Drops {
			c.drops[fmt.Sprintf("%d %s", i+1, reason)] = count
		}
	}
	c.applyAll()
	for i, n := range c.nodes {
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

// applyAll applies the objects of all nodes at once.
func (c *cluster) applyAll() {
	c.t.Helper()
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		file := n.File(c.objects(i + 1))
		wg.Go(func() {
			if out, code, err := n.TryLLCLI("apply", "--wait", "30s", "-f", file); code != 0 {
				c.t.Errorf("objects of node %d: exit code %d: %v\n%s", i+1, code, err, out)
			}
		})
	}
	wg.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// dropped returns the drops of node i in this cluster, by reason.
func (c *cluster) dropped(i int) map[string]uint64 {
	c.t.Helper()
	drops := map[string]uint64{}
	for reason, count := range c.nodes[i-1].Counters("", "").Drops {
		if count -= c.drops[fmt.Sprintf("%d %s", i, reason)]; count > 0 {
			drops[reason] = count
		}
	}
	return drops
}

func newStation(ns *testnet.NS, name string, kind kindOf, node int, addr4, addr6 string) *station {
	return &station{NS: ns, name: name, kind: kind, node: node, addr: [2]netip.Addr{netip.MustParseAddr(addr4), netip.MustParseAddr(addr6)}}
}

// stationOf returns the station with a name.
func (c *cluster) stationOf(name string) *station {
	c.t.Helper()
	for _, s := range c.stations {
		if s.name == name {
			return s
		}
	}
	c.t.Fatalf("no station %s", name)
	return nil
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
