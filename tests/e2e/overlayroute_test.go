// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestOverlayRoute: a Route that leads to a Peer carries packets to the networks behind it, with
// and without a tunnel, until it is deleted; and reports the reason if it leads nowhere.
func TestOverlayRoute(t *testing.T) {
	testnet.RequireRoot(t)
	for _, kind := range []meshKind{{tunnel: "vxlan", split: true}, {tunnel: "gre"}, {}} {
		t.Run(kind.String(), func(t *testing.T) { routeToPeer(newMesh(t, 2, kind)) })
	}
}

func routeToPeer(m *mesh) {
	t := m.t
	near, far := m.nodes[0], m.nodes[1]
	netns := map[bool]string{true: "switch", false: "host"}[m.split]
	// Behind the pod on the other node there is one more network, in both families.
	behind := []string{"10.99.2.7", "fd99:2::7"}
	for i, via := range []string{far.pod4(), far.pod6()} {
		host := []string{"/32", "/128"}[i]
		far.pod.Addr(t, "eth0", behind[i]+host)
		far.Apply(fmt.Sprintf("kind: Route\nname: behind%d\nspec: {prefix: \"%s%s\", netns: %s, via: \"%s\"}", i, behind[i], host, netns, via))
	}
	far.pod.ServeUDP(t, behind[0]+":4661", "behind")
	far.pod.ServeUDP(t, "["+behind[1]+"]:4661", "behind")
	ask := func(addr string) string { return near.whoAnswers(addr + ":4661") }
	targets := []string{behind[0], "[" + behind[1] + "]"}
	for _, target := range targets {
		if got := ask(target); got == "behind" {
			t.Fatalf("%s is reached without a route", target)
		}
	}
	routes := "kind: Route\nname: far4\nspec: {prefix: 10.99.2.0/24, peer: node2}\n---\nkind: Route\nname: far6\nspec: {prefix: \"fd99:2::/64\", peer: node2}"
	near.LLCLI("apply", "--wait", "10s", "-f", near.File(routes))
	for _, target := range targets {
		testnet.Eventually(t, patience, target+" is reached", func() bool { return ask(target) == "behind" })
	}
	if out := near.LLCLI("route", "list"); !strings.Contains(out, "peer node2") {
		t.Errorf("the Peer of the routes is not shown:\n%s", out)
	}
	// A prefix is behind one Peer only.
	for _, doc := range []string{
		"kind: Peer\nname: other\nspec: {underlay: 192.0.2.77, prefixes: [10.99.2.0/24]}",
		"kind: Route\nname: other\nspec: {prefix: 10.99.2.0/24, peer: other}",
		"kind: Route\nname: other\nspec: {prefix: 10.74.2.0/24, peer: other}",
	} {
		if _, code, errs := near.TryLLCLI("apply", "-f", near.File(doc)); code != 1 || !strings.Contains(fmt.Sprint(errs), "already") {
			t.Errorf("%s: exit code %d: %s", doc, code, errs)
		}
	}
	near.Kill()
	near.Start()
	m.ready(near)
	for _, target := range targets {
		testnet.Eventually(t, patience, target+" is reached after a restart", func() bool { return ask(target) == "behind" })
	}
	near.LLCLI("route", "add", "10.98.0.0/16", "--peer", "nobody")
	testnet.Eventually(t, patience, "a Route to no Peer is Pending", func() bool {
		out := near.LLCLI("get", "route", "10.98.0.0/16", "-o", "json")
		return strings.Contains(out, `"Pending"`) && strings.Contains(out, "Peer nobody: does not exist")
	})
	near.LLCLI("delete", "route", "far4", "far6", "10.98.0.0/16")
	for _, target := range targets {
		testnet.Eventually(t, patience, target+" is not reached any more", func() bool { return ask(target) != "behind" })
	}
	m.allPairs()
}

// TestOverlayLocal: a Tunnel from an address that no device has reports that, works as soon as a
// device has the address, and reports it again when the address is removed.
func TestOverlayLocal(t *testing.T) {
	testnet.RequireRoot(t)
	m := newMesh(t, 2, meshKind{tunnel: "geneve"})
	first, second := m.nodes[0], m.nodes[1]
	first.LLCLI("apply", "-f", first.File("kind: Tunnel\nname: mesh\nspec: {device: hstunnel, type: geneve, vni: 4660, local: 192.0.2.91}"))
	state := func(want ...string) {
		t.Helper()
		var got string
		testnet.Eventually(t, patience, "the Tunnel is "+want[0], func() bool {
			got = first.LLCLI("get", "tunnel", "mesh", "-o", "json")
			return !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(got, w) })
		})
	}
	state(`"state": "Pending"`, "address 192.0.2.91 of the host (spec.local): does not exist")
	second.LLCLI("apply", "-f", second.File("kind: Peer\nname: node1\nspec: {underlay: 192.0.2.91, prefixes: [10.74.1.0/24, \"fd74:1::/64\"], tunnel: mesh}"))
	first.ns.Addr(t, "lo", "192.0.2.91/32")
	state(`"state": "Ready"`)
	second.ns.Route(t, "192.0.2.91/32", "192.0.2.1")
	m.allPairs()
	first.ns.Run(t, "ip", "addr", "del", "192.0.2.91/32", "dev", "lo")
	state(`"state": "Pending"`, "address 192.0.2.91 of the host (spec.local): does not exist")
}

// TestOverlayDeviceTaken: a Tunnel whose device already exists, and belongs to no Tunnel, reports
// that, and does no harm.
func TestOverlayDeviceTaken(t *testing.T) {
	testnet.RequireRoot(t)
	m := newMesh(t, 2, meshKind{tunnel: "vxlan"})
	n := m.nodes[0]
	n.LLCLI("apply", "-f", n.File("kind: Tunnel\nname: taken\nspec: {device: p1, vni: 99}"))
	testnet.Eventually(t, patience, "the Tunnel reports why it has no device", func() bool {
		return strings.Contains(n.LLCLI("get", "tunnel", "taken", "-o", "json"), "already exists and does not belong to a Tunnel")
	})
	m.allPairs()
}
