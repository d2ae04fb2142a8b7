// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

// cluster is nodes with pod networks and pods, tunnels between them, and a machine outside without
// routes to pods.
//
//	pods 10.76.1.3, .4 ── [switch 1] ══ [node1 10.76.1.2] eth0 192.0.2.1 ─┐
//	pods 10.76.2.3, .4 ── [switch 2] ══ [node2 10.76.2.2] eth0 192.0.2.2 ─┼─ lan ── outside 192.0.2.99
//	pods 10.76.3.3, .4 ── [switch 3] ══ [node3 10.76.3.2] eth0 192.0.2.3 ─┘
//
// IPv6 likewise: fd76:1::3, 2001:db8:76::1. If the switch is the host, the node has the address of
// the gateway: 10.76.1.1.
type cluster struct {
	t       *testing.T
	lan     *testnet.NS
	outside *clusterStation
	nodes   []*clusterNode
	split   bool
	tunnel  string // type; empty: the underlay routes pods
}

type clusterNode struct {
	*testdaemon.Daemon
	id   int
	ns   *testnet.NS
	sw   string // the switch's namespace; empty: the host's
	host *clusterStation
	pods []*clusterStation
}

// clusterStation is a client and server.
type clusterStation struct {
	name    string
	node    int  // its node; 0: outside
	isNode  bool // not a pod
	ns      *testnet.NS
	addrs   [2]netip.Addr // by family
	seen    [2]netip.Addr // as seen from outside
	servers [2]*testnet.Server
}

func (s *clusterStation) serve(t *testing.T) {
	for i, a := range s.addrs {
		at := netip.AddrPortFrom(a, 4660).String()
		s.servers[i] = s.ns.ServeTCP(t, at, s.name)
		s.ns.ServeUDP(t, at, s.name)
	}
}

func addr(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

func newCluster(t *testing.T, count, pods int, split bool, tunnel string) *cluster {
	t.Helper()
	return newClusterNodes(t, count, split).cluster(t, pods, tunnel)
}

// newClusterNodes returns a cluster that is not configured yet: the nodes with their daemons.
func newClusterNodes(t *testing.T, count int, split bool) *cluster {
	t.Helper()
	c := &cluster{t: t, lan: testnet.New(t, "lan"), split: split}
	var ports []string
	var daemons []*testdaemon.Daemon
	for i := 1; i <= count; i++ {
		n := &clusterNode{id: i, ns: testnet.New(t, fmt.Sprintf("node%d", i))}
		port := fmt.Sprintf("n%d", i)
		ports = append(ports, port)
		testnet.Veth(t, testnet.Port{NS: c.lan, Name: port},
			testnet.Port{NS: n.ns, Name: "eth0", Addrs: []string{fmt.Sprintf("192.0.2.%d/24", i), fmt.Sprintf("2001:db8:76::%d/64", i)}})
		n.ns.Forward(t)
		namespace := "host"
		if split {
			n.sw = testnet.UniqueName("switch")
			namespace = n.sw
			t.Cleanup(func() { testnet.DeleteNamed(t, n.sw) })
		}
		n.Daemon = testdaemon.New(t, n.ns, programs, "switch: {namespace: "+namespace+"}",
			"tables: {connections: 16384, services: 64, backends: 64, affinity: 64, ranges: 64}")
		c.nodes, daemons = append(c.nodes, n), append(daemons, n.Daemon)
	}
	c.lan.Bridge(t, "br0", ports...)
	testdaemon.StartAll(daemons...)
	return c
}

// cluster configures the nodes, which have no objects, as a cluster with a tunnel of the given type.
func (c *cluster) cluster(t *testing.T, pods int, tunnel string) *cluster {
	t.Helper()
	other := &cluster{t: t, lan: c.lan, split: c.split, tunnel: tunnel}
	outside := testnet.New(t, "outside")
	// It has the same MAC in all clusters, since the nodes know it.
	testnet.Veth(t, testnet.Port{NS: c.lan, Name: "out"},
		testnet.Port{NS: outside, Name: "eth0", MAC: "02:00:5e:76:00:99", Addrs: []string{"192.0.2.99/24", "2001:db8:76::99/64"}})
	c.lan.Run(t, "ip", "link", "set", "out", "master", "br0")
	other.outside = &clusterStation{name: "outside", ns: outside, addrs: [2]netip.Addr{addr("192.0.2.99"), addr("2001:db8:76::99")}}
	last := 1
	if c.split {
		last = 2
	}
	for _, node := range c.nodes {
		i := node.id
		n := &clusterNode{Daemon: node.For(t), id: i, ns: node.ns, sw: node.sw}
		seen := [2]netip.Addr{addr("192.0.2.%d", i), addr("2001:db8:76::%d", i)}
		n.host = &clusterStation{name: fmt.Sprintf("node%d", i), node: i, isNode: true, ns: n.ns, seen: seen, addrs: [2]netip.Addr{addr("10.76.%d.%d", i, last), addr("fd76:%d::%d", i, last)}}
		for p := range pods {
			n.pods = append(n.pods, &clusterStation{
				name: fmt.Sprintf("pod%d-%d", i, p), node: i, seen: seen, addrs: [2]netip.Addr{addr("10.76.%d.%d", i, 3+p), addr("fd76:%d::%x", i, 3+p)},
			})
		}
		other.nodes = append(other.nodes, n)
	}
	for _, n := range other.nodes {
		n.LLCLI("apply", "-f", n.File(other.objects(n)))
		other.plugIn(n)
	}
	other.outside.serve(t)
	return other
}

// clear deletes the objects of all nodes.
func (c *cluster) clear() {
	c.t.Helper()
	for _, n := range c.nodes {
		n.Clear()
		testnet.Eventually(c.t, 4*patience, fmt.Sprintf("node %d has no tunnel and no routes to peers", n.id), func() bool {
			out := n.ns.Run(c.t, "ip", "-o", "link", "show")
			for _, family := range []string{"-4", "-6"} {
				out += n.ns.Run(c.t, "ip", family, "route", "show", "table", "all")
			}
			return !strings.Contains(out, "hstunnel") && !strings.Contains(out, "10.76.") && !strings.Contains(out, "fd76:")
		})
	}
}

// objects returns the objects of a node.
func (c *cluster) objects(n *clusterNode) string {
	docs := []string{
		"kind: Interface\nname: eth0\nspec: {device: eth0}",
		fmt.Sprintf("kind: PodNetwork\nname: default\nspec: {subnets: [10.76.%d.0/24, \"fd76:%d::/64\"], masquerade: {enabled: true}}", n.id, n.id),
	}
	tunnel := ""
	if c.tunnel != "" {
		tunnel = ", tunnel: mesh"
		docs = append(docs, "kind: Tunnel\nname: mesh\nspec: {device: hstunnel, type: "+c.tunnel+", vni: 4660}")
	}
	for _, peer := range c.nodes {
		if peer != n {
			docs = append(docs, fmt.Sprintf("kind: Peer\nname: node%d\nspec: {underlay: [192.0.2.%d, \"2001:db8:76::%d\"], prefixes: [10.76.%d.0/24, \"fd76:%d::/64\"]%s}",
				peer.id, peer.id, peer.id, peer.id, peer.id, tunnel))
		}
	}
	for i, p := range n.pods {
		docs = append(docs, fmt.Sprintf("kind: Endpoint\nname: pods/%s\nspec: {device: hs%d, addresses: [%s, \"%s\"], mac: \"%s\", pod: %s, network: default}",
			p.name, i+1, p.addrs[0], p.addrs[1], c.mac(n, i), p.name))
	}
	return strings.Join(docs, "\n---\n")
}

func (c *cluster) mac(n *clusterNode, pod int) string {
	return fmt.Sprintf("02:00:5e:76:%02x:%02x", n.id, 3+pod)
}

// plugIn connects the pods of a node, and waits until its configuration is in force.
func (c *cluster) plugIn(n *clusterNode) {
	c.t.Helper()
	for _, p := range n.pods {
		p.ns = testnet.New(c.t, p.name)
	}
	c.t.Run(fmt.Sprintf("plug in %d", n.id), func(t *testing.T) { // closes the namespace at the end
		ns := n.ns
		if n.sw != "" {
			testnet.Eventually(t, patience, "the switch is there", func() bool { return namespaceThere(n.sw) })
			ns = testnet.Named(t, n.sw)
		}
		for i, p := range n.pods {
			testnet.Veth(t, testnet.Port{NS: p.ns, Name: "eth0", MAC: c.mac(n, i), Addrs: []string{p.addrs[0].String() + "/24", p.addrs[1].String() + "/64"}},
				testnet.Port{NS: ns, Name: fmt.Sprintf("hs%d", i+1)})
		}
	})
	testnet.Eventually(c.t, 4*patience, fmt.Sprintf("node %d is as configured", n.id), func() bool {
		status, err := n.Client.Status(c.t.Context())
		return err == nil && len(status.NotReady) == 0
	})
	// Pods are configured with the MTU, as a runtime would do.
	var network api.PodNetworkStatus
	o, err := n.Client.Get(c.t.Context(), "PodNetwork", "default")
	if err == nil {
		err = json.Unmarshal(o.Status, &network)
	}
	if err != nil || network.MTU < 1400 || c.tunnel != "" && network.MTU == 1500 {
		c.t.Fatalf("PodNetwork of node %d: %v, %+v", n.id, err, network)
	}
	for _, p := range n.pods {
		p.ns.MTU(c.t, "eth0", network.MTU)
		p.ns.Route(c.t, "default", fmt.Sprintf("10.76.%d.1", n.id))
		p.ns.Route(c.t, "default", fmt.Sprintf("fd76:%d::1", n.id))
		p.serve(c.t)
	}
	n.host.serve(c.t)
}

// stations returns all stations with pod-network addresses.
func (c *cluster) stations() (all []*clusterStation) {
	for _, n := range c.nodes {
		all = append(append(all, n.host), n.pods...)
	}
	return all
}
