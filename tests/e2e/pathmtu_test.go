// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestPathBetweenNodes: the path between two nodes changes: behind a router, its MTU is smaller
// than the MTU of the nodes' devices. Pods are notified, as without a tunnel: also those whose
// packets fit the devices but not the new path, and whose address family was not used when the node
// learnt the path.
//
//	node1 ─ lan ─ router (then no more than 1400) ─ lan ─ node2
func TestPathBetweenNodes(t *testing.T) {
	testnet.RequireRoot(t)
	for _, kind := range []meshKind{
		{tunnel: "vxlan", split: true}, {tunnel: "geneve", over6: true}, {tunnel: "gre", over6: true, split: true}, {tunnel: "gre"},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			m := newMesh(t, 2, kind)
			m.allPairs()
			one, two := m.nodes[0], m.nodes[1]
			one.ns.Addr(t, "eth0", "192.0.2.101/24")
			testnet.Eventually(t, patience, "the tunnel is known by another address, too", func() bool {
				return strings.Contains(one.Process().Output(), "msg=recreated kind=Tunnel object=mesh cause=\"the host's addresses have changed")
			})
			if n := one.Repairs(); n != 0 {
				t.Errorf("the other address counts as %d external changes", n)
			}
			data := bytes.Repeat([]byte("sixteen bytes ok"), 1<<14)
			talk := func(addr string) {
				t.Helper()
				if _, err := testtraffic.TalkTCP(one.pod, "", addr+":4660", data); err != nil {
					t.Errorf("%s: %v", addr, err)
				}
			}
			addr4, addr6 := two.pod4(), "["+two.pod6()+"]"
			talk(addr4) // both families learn the MTU of the tunnel
			talk(addr6)
			m.router(1400)
			mtu := 1400 - map[string]int{"vxlan": 50, "geneve": 50, "gre": 28}[kind.tunnel]
			if kind.over6 {
				mtu -= 20
			}
			testnet.Eventually(t, patience, "node 1 knows the path", func() bool {
				talk(addr6) // the first ones may still take the old path
				return strings.Contains(one.LLCLI("get", "peer", "node2", "-o", "json"), `"pathMTU": 1400`)
			})
			talk(addr4)
			if out := one.LLCLI("get", "peers", "-o", "wide"); !strings.Contains(out, "1400") {
				t.Errorf("llcli does not show the path MTU:\n%s", out)
			}
			// The pod has learnt the MTU by ICMP.
			for addr, want := range map[string]int{two.pod4(): mtu, two.pod6(): max(mtu, 1280)} {
				if out := one.pod.Run(t, "ip", "route", "get", addr); !strings.Contains(out, fmt.Sprintf("mtu %d", want)) {
					t.Errorf("to %s the pod knows no MTU of %d:\n%s", addr, want, out)
				}
			}
			m.allPairs()
			if out := two.LLCLI("get", "peer", "node1", "-o", "json"); strings.Contains(out, "pathMTU") {
				t.Errorf("node 2 has a path MTU:\n%s", out)
			}
		})
	}
}

// TestTunnelMTUTooLarge: a Tunnel has a configured MTU that the underlay does not carry. It
// reports that, and nothing is lost silently: pods are notified, as without a tunnel.
func TestTunnelMTUTooLarge(t *testing.T) {
	testnet.RequireRoot(t)
	m := newMesh(t, 2, meshKind{tunnel: "vxlan", split: true})
	for _, n := range m.nodes {
		n.LLCLI("tunnel", "set", "mesh", "--mtu", "9000", "--wait", "10s")
		const want = "packets of mtu 9000, once encapsulated, exceed the path MTU to its Peers: the device has 1450"
		for _, words := range [][]string{{"get", "tunnel", "mesh", "-o", "yaml"}, {"status"}} {
			if out := n.LLCLI(words...); !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
				t.Errorf("llcli %v does not say it:\n%s", words, out)
			}
		}
	}
	one, two := m.nodes[0], m.nodes[1]
	data := bytes.Repeat([]byte("sixteen bytes ok"), 1<<14)
	for _, addr := range []string{two.pod4(), "[" + two.pod6() + "]"} {
		if _, err := testtraffic.TalkTCP(one.pod, "", addr+":4660", data); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for _, addr := range []string{two.pod4(), two.pod6()} {
		if out := one.pod.Run(t, "ip", "route", "get", addr); !strings.Contains(out, "mtu 1450") {
			t.Errorf("to %s the pod learnt no MTU:\n%s", addr, out)
		}
	}
	m.allPairs()
}

// router routes the first node's packets to the second through a router that forwards nothing
// larger than mtu.
func (m *mesh) router(mtu int) {
	m.t.Helper()
	router := testnet.New(m.t, "router")
	testnet.Veth(m.t, testnet.Port{NS: m.lan, Name: "r"}, testnet.Port{NS: router, Name: "eth0", Addrs: []string{"192.0.2.77/24", "2001:db8:74::77/64"}})
	m.lan.Run(m.t, "ip", "link", "set", "r", "master", "br0")
	router.Forward(m.t)
	for _, key := range []string{"net.ipv4.conf.all.send_redirects", "net.ipv4.conf.eth0.send_redirects"} {
		router.Sysctl(m.t, key, "0")
	}
	for target, via := range map[string]string{"192.0.2.2/32": "192.0.2.77", "2001:db8:74::2/128": "2001:db8:74::77"} {
		router.Run(m.t, "ip", "route", "add", target, "dev", "eth0", "mtu", "lock", fmt.Sprint(mtu))
		m.nodes[0].ns.Run(m.t, "ip", "route", "add", target, "via", via)
	}
}
