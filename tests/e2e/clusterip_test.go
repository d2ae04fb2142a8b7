// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// outsideFrontends are the frontends of the service of TestClusterFromOutside, by family.
var outsideFrontends = [2]string{"10.96.7.8:4660", "[fd96::7]:4660"}

// TestClusterFromOutside: an external machine that reaches a service via a node can also be served
// by endpoints on other nodes, which send their replies back to that node. All other clients keep
// their address.
func TestClusterFromOutside(t *testing.T) {
	testnet.RequireRoot(t)
	for _, k := range []struct {
		split  bool
		tunnel string
	}{{true, "vxlan"}, {false, "geneve"}, {true, ""}} {
		t.Run(fmt.Sprintf("split=%t/%s", k.split, k.tunnel), func(t *testing.T) {
			c := newCluster(t, 2, 2, k.split, k.tunnel)
			near, far := c.nodes[0], c.nodes[1]
			backends := []string{}
			for _, a := range far.pods[0].addrs {
				backends = append(backends, netip.AddrPortFrom(a, 4660).String())
			}
			frontends := []string{}
			for _, f := range outsideFrontends {
				frontends = append(frontends, f+"/tcp", f+"/udp")
			}
			for _, n := range c.nodes {
				n.LLCLI("apply", "--wait", "10s", "-f", n.File(serviceYAML("cluster", frontends, backends)))
			}
			c.outside.ns.Route(t, "10.96.0.0/16", "192.0.2.1")
			c.outside.ns.Route(t, "fd96::/16", "2001:db8:76::1")
			node := near.host.addrs
			if k.tunnel == "" {
				node = near.host.seen
			}
			c.fromOutside(near, far.pods[0])
			near.Kill()
			near.Start()
			c.fromOutside(near, far.pods[0])
			for family, server := range far.pods[0].servers {
				want := []netip.Addr{node[family], near.pods[0].addrs[family]}
				if seen := server.Clients(); len(seen) != 2 || !slices.Contains(seen, want[0]) || !slices.Contains(seen, want[1]) {
					t.Errorf("the backend saw %v, want %v", seen, want)
				}
			}
		})
	}
}

// fromOutside connects the outside, and a pod of near, with the service, whose backend is on
// another node.
func (c *cluster) fromOutside(near *clusterNode, backend *clusterStation) {
	c.t.Helper()
	for _, target := range outsideFrontends {
		for _, from := range []*clusterStation{c.outside, near.pods[0]} {
			for range 3 {
				if name, err := testtraffic.TalkTCP(from.ns, "", target, []byte("hello")); err != nil || name != backend.name {
					c.t.Errorf("%s to %s by TCP: %q, %v", from.name, target, name, err)
				}
				if name, err := testtraffic.TalkUDP(from.ns, "", target, []byte("hello")); err != nil || name != backend.name {
					c.t.Errorf("%s to %s by UDP: %q, %v", from.name, target, name, err)
				}
			}
		}
	}
}
