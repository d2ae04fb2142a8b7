// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// mesh is nodes, each with a daemon, a pod behind it, and a tunnel to all others.
//
//	pod1 10.74.1.2 ── p1 [switch 1] ══ [node1] eth0 192.0.2.1 ─┐
//	pod2 10.74.2.2 ── p1 [switch 2] ══ [node2] eth0 192.0.2.2 ─┼─ lan
//	pod3 10.74.3.2 ── p1 [switch 3] ══ [node3] eth0 192.0.2.3 ─┘
//
// IPv6 likewise: fd74:1::2 and 2001:db8:74::1. If the switch is the host, the node has the pods'
// ports itself.
type mesh struct {
	t     *testing.T
	lan   *testnet.NS
	nodes []*meshNode
	meshKind
}

// meshKind contains the common settings of all nodes of a mesh.
type meshKind struct {
	split  bool   // the switch has a namespace of its own
	tunnel string // type; empty: routed
	over6  bool   // the underlay is IPv6
	// The uplink is a bridge with eth0 as its port: packets leave through a queue, as with a NIC,
	// and not directly into the namespace of a veth's other end.
	queued bool
	// The namespace of the switch exists before the daemon starts, so it is not the daemon's.
	foreign bool
}

func (k meshKind) String() string {
	how := map[bool]string{false: "host", true: "split"}[k.split]
	family := map[bool]string{false: "IPv4", true: "IPv6"}[k.over6]
	if k.tunnel == "" {
		return how + "/routed"
	}
	return how + "/" + k.tunnel + "/" + family
}

type meshNode struct {
	*testdaemon.Daemon
	id      int
	ns, pod *testnet.NS
	sw      string              // the switch's namespace; empty: the host's
	before  *api.CountersResult // of the node, from earlier meshes
}

func newMesh(t *testing.T, count int, kind meshKind) *mesh {
	t.Helper()
	return newMachines(t, count, kind).mesh(t, kind)
}

// eachMesh runs a test for each kind of mesh with two nodes. Consecutive kinds that differ only in their
// tunnels share the nodes: the next mesh begins when all objects of the previous one have been deleted. A
// kind must not have a larger path MTU than the previous one: the kernels remember path MTUs.
func eachMesh(t *testing.T, kinds []meshKind, test func(t *testing.T, m *mesh)) {
	t.Helper()
	var nodes *mesh
	for i, kind := range kinds {
		was, is := kinds[max(0, i-1)], kind
		was.tunnel, was.over6, is.tunnel, is.over6 = "", false, "", false
		if nodes == nil || was != is {
			nodes = newMachines(t, 2, kind)
		} else {
			nodes.clear()
		}
		t.Run(kind.String(), func(t *testing.T) { test(t, nodes.mesh(t, kind)) })
	}
}

// clear deletes the objects of all nodes.
func (m *mesh) clear() {
	m.t.Helper()
	for _, n := range m.nodes {
		n.Clear()
		testnet.Eventually(m.t, 4*patience, fmt.Sprintf("node %d has no tunnel and no routes to peers", n.id), func() bool {
			out := n.ns.Run(m.t, "ip", "-o", "link", "show")
			for _, family := range []string{"-4", "-6"} {
				out += n.ns.Run(m.t, "ip", family, "route", "show", "table", "all")
			}
			return !strings.Contains(out, "hstunnel") && !strings.Contains(out, "10.74.") && !strings.Contains(out, "fd74:")
		})
	}
}

// newMachines returns a mesh that is not configured yet: the nodes with their daemons.
func newMachines(t *testing.T, count int, kind meshKind) *mesh {
	t.Helper()
	m := &mesh{t: t, lan: testnet.New(t, "lan"), meshKind: kind}
	var ports []string
	for i := 1; i <= count; i++ {
		n := &meshNode{id: i, ns: testnet.New(t, fmt.Sprintf("node%d", i))}
		port := fmt.Sprintf("n%d", i)
		addrs := []string{fmt.Sprintf("192.0.2.%d/24", i), fmt.Sprintf("2001:db8:74::%d/64", i)}
		uplink := testnet.Port{NS: n.ns, Name: "eth0", Addrs: addrs}
		if kind.queued {
			uplink.Addrs = nil
		}
		testnet.Veth(t, testnet.Port{NS: m.lan, Name: port}, uplink)
		if kind.queued {
			n.ns.Bridge(t, "up0", "eth0")
			n.ns.Addr(t, "up0", addrs...)
		}
		ports = append(ports, port)
		n.ns.Forward(t)
		namespace := "host"
		if kind.split {
			n.sw = testnet.UniqueName("switch")
			namespace = n.sw
			if kind.foreign {
				testnet.MakeNamed(t, n.sw)
				sw := testnet.Named(t, n.sw)
				sw.Up(t, "lo")
				sw.Forward(t)
			}
			t.Cleanup(func() {
				if namespaceThere(n.sw) {
					testnet.DeleteNamed(t, n.sw)
				}
			})
		}
		n.Daemon = testdaemon.New(t, n.ns, programs, "switch: {namespace: "+namespace+"}",
			"tables: {connections: 16384, services: 64, backends: 64, affinity: 64, ranges: 64}")
		m.nodes = append(m.nodes, n)
	}
	m.lan.Bridge(t, "br0", ports...)
	var daemons []*testdaemon.Daemon
	for _, n := range m.nodes {
		daemons = append(daemons, n.Daemon)
	}
	testdaemon.StartAll(daemons...)
	return m
}

// mesh configures the nodes, which have no objects, as a mesh of the given kind.
func (m *mesh) mesh(t *testing.T, kind meshKind) *mesh {
	t.Helper()
	other := &mesh{t: t, lan: m.lan, meshKind: kind}
	for _, n := range m.nodes {
		other.nodes = append(other.nodes, &meshNode{
			Daemon: n.For(t), id: n.id, ns: n.ns, sw: n.sw, pod: testnet.New(t, fmt.Sprintf("pod%d", n.id)), before: n.Counters("", ""),
		})
	}
	for _, n := range other.nodes {
		n.LLCLI("apply", "-f", n.File(other.objects(n)))
		other.plugIn(n)
	}
	for _, n := range other.nodes {
		other.ready(n)
	}
	return other
}

// plugIn connects the pod of a node.
func (m *mesh) plugIn(n *meshNode) {
	m.t.Helper()
	m.t.Run(fmt.Sprintf("plug in pod %d", n.id), func(t *testing.T) { // closes the namespace at the end
		ns := n.ns
		if n.sw != "" {
			testnet.Eventually(t, 4*patience, "the switch is there", func() bool { return namespaceThere(n.sw) })
			ns = testnet.Named(t, n.sw)
			ns.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0") // or the gateway is silent for a second
		}
		testnet.Veth(t, testnet.Port{NS: n.pod, Name: "eth0", Addrs: []string{n.pod4() + "/24", n.pod6() + "/64"}},
			testnet.Port{NS: ns, Name: "p1", Addrs: []string{fmt.Sprintf("10.74.%d.1/24", n.id), fmt.Sprintf("fd74:%d::1/64", n.id)}})
	})
	n.pod.Route(m.t, "default", fmt.Sprintf("10.74.%d.1", n.id))
	n.pod.Route(m.t, "default", fmt.Sprintf("fd74:%d::1", n.id))
	for _, addr := range []string{n.pod4(), "[" + n.pod6() + "]"} {
		n.pod.ServeTCP(m.t, addr+":4660", fmt.Sprintf("pod%d", n.id))
		n.pod.ServeUDP(m.t, addr+":4660", fmt.Sprintf("pod%d", n.id))
	}
}

func (n *meshNode) pod4() string { return fmt.Sprintf("10.74.%d.2", n.id) }
func (n *meshNode) pod6() string { return fmt.Sprintf("fd74:%d::2", n.id) }

// underlay returns the addresses of a node that its Peers have.
func (m *mesh) underlay(n *meshNode) string {
	switch {
	case m.tunnel == "":
		return fmt.Sprintf(`"192.0.2.%d", "2001:db8:74::%d"`, n.id, n.id)
	case m.over6:
		return fmt.Sprintf(`"2001:db8:74::%d"`, n.id)
	default:
		return fmt.Sprintf("192.0.2.%d", n.id)
	}
}

// objects returns the objects of a node.
func (m *mesh) objects(n *meshNode) string {
	netns := "host"
	if m.split {
		netns = "switch"
	}
	uplink := "eth0"
	if m.queued {
		uplink = "up0"
	}
	docs := []string{
		"kind: Interface\nname: eth0\nspec: {device: " + uplink + "}",
		"kind: Interface\nname: p1\nspec: {device: p1, role: port, netns: " + netns + "}",
	}
	tunnel := ""
	if m.tunnel != "" {
		tunnel = ", tunnel: mesh"
		docs = append(docs, "kind: Tunnel\nname: mesh\nspec: {device: hstunnel, type: "+m.tunnel+", vni: 4660}")
	}
	for _, peer := range m.nodes {
		if peer != n {
			docs = append(docs, fmt.Sprintf("kind: Peer\nname: node%d\nspec: {underlay: [%s], prefixes: [10.74.%d.0/24, \"fd74:%d::/64\"]%s}",
				peer.id, m.underlay(peer), peer.id, peer.id, tunnel))
		}
	}
	return strings.Join(docs, "\n---\n")
}

func (m *mesh) ready(n *meshNode) {
	m.t.Helper()
	var out string
	defer func() {
		if m.t.Failed() {
			m.t.Logf("node %d: %s", n.id, out)
		}
	}()
	testnet.Eventually(m.t, 4*patience, fmt.Sprintf("node %d is as configured", n.id), func() bool {
		var code int
		out, code, _ = n.TryLLCLI("status", "-o", "json")
		return code == 0 && (strings.Contains(out, `"notReady": []`) || !strings.Contains(out, `"notReady"`))
	})
}

// allPairs connects every pod with every other one, in both families.
func (m *mesh) allPairs() {
	m.t.Helper()
	data := bytes.Repeat([]byte("sixteen bytes ok"), 40)
	for _, from := range m.nodes {
		for _, to := range m.nodes {
			if from == to {
				continue
			}
			for _, addr := range []string{to.pod4(), "[" + to.pod6() + "]"} {
				target, want := addr+":4660", fmt.Sprintf("pod%d", to.id)
				var err error
				ok := func(name string, e error) bool {
					if err = e; err == nil && name != want {
						err = errors.New("answered by " + name)
					}
					return err == nil
				}
				for range 3 {
					if !ok(testtraffic.TalkUDP(from.pod, "", target, data)) {
						m.t.Errorf("%s: pod%d to %s by UDP: %v", m, from.id, target, err)
					}
				}
				if !ok(testtraffic.TalkTCP(from.pod, "", target, bytes.Repeat(data, 40))) {
					m.t.Errorf("%s: pod%d to %s by TCP: %v", m, from.id, target, err)
				}
			}
		}
	}
}

// TestOverlay connects pods on several nodes through each kind of tunnel.
func TestOverlay(t *testing.T) {
	testnet.RequireRoot(t)
	eachMesh(t, []meshKind{
		{}, {tunnel: "gre", over6: true}, {tunnel: "vxlan"}, {tunnel: "geneve", over6: true},
		{tunnel: "gre", split: true}, {tunnel: "vxlan", split: true}, {tunnel: "geneve", split: true}, {tunnel: "vxlan", over6: true, split: true},
	}, func(t *testing.T, m *mesh) {
		begin := time.Now()
		m.allPairs()
		t.Logf("all pairs after %s", time.Since(begin).Round(time.Millisecond))
		m.counted()
	})
}

// counted checks that the counters show the traffic, and that it took the fast path.
func (m *mesh) counted() {
	m.t.Helper()
	for _, n := range m.nodes {
		c := n.Counters("", "")
		maps.DeleteFunc(c.Drops, func(reason string, count uint64) bool { return count == n.before.Drops[reason] })
		if len(c.Drops) != 0 || c.Verdicts["fast"] == n.before.Verdicts["fast"] {
			m.t.Errorf("%s: node %d: drops %v, verdicts %v", m, n.id, c.Drops, c.Verdicts)
		}
		if m.tunnel == "" {
			continue
		}
		// A new neighbour makes all connections look up their paths again, with the next packet of
		// each.
		var out string
		testnet.Eventually(m.t, patience, fmt.Sprintf("%s: connections of node %d tell of the tunnel", m, n.id), func() bool {
			if out = n.LLCLI("connections", "-o", "wide"); strings.Contains(out, "mesh to node") {
				return true
			}
			m.t.Logf("%s: node %d: connections do not tell of the tunnel:\n%s", m, n.id, out)
			m.allPairs()
			return false
		})
		out = n.LLCLI("get", "peers", "-o", "json")
		for _, want := range []string{`"sentPackets"`, `"receivedPackets"`} {
			if !strings.Contains(out, want) || strings.Contains(out, want+": 0,") {
				m.t.Errorf("%s: node %d: no %s in\n%s", m, n.id, want, out)
			}
		}
	}
}
