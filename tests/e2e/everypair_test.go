// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// everyPair connects each station with every other one, which must see the station's own address,
// and with the outside, which must see the node's.
func (c *cluster) everyPair() {
	c.t.Helper()
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	pairs, seen := 0, map[*testnet.Server]map[netip.Addr]bool{}
	for _, from := range c.stations() {
		for _, to := range append(c.stations(), c.outside) {
			if from == to {
				continue
			}
			for family, server := range to.servers {
				pairs++
				if seen[server] == nil {
					seen[server] = map[netip.Addr]bool{}
				}
				if to == c.outside || c.tunnel == "" && from.isNode && from.node != to.node { // with its underlay address
					seen[server][from.seen[family]] = true
				} else {
					seen[server][from.addrs[family]] = true
				}
				wg.Go(func() {
					turns <- struct{}{}
					defer func() { <-turns }()
					c.pair(from, to, family)
				})
			}
		}
	}
	wg.Wait()
	for _, to := range append(c.stations(), c.outside) {
		for _, server := range to.servers {
			got := map[netip.Addr]bool{}
			for _, a := range server.Clients() {
				got[a] = true
			}
			if !maps.Equal(got, seen[server]) {
				c.t.Errorf("%s saw %v, want %v", to.name, got, seen[server])
			}
		}
	}
	c.t.Logf("%d pairs by UDP and TCP", pairs)
}

// pair connects a station with another one in one family.
func (c *cluster) pair(from, to *clusterStation, family int) {
	data := bytes.Repeat([]byte("sixteen bytes ok"), 60)
	target := netip.AddrPortFrom(to.addrs[family], 4660).String()
	if name, err := testtraffic.TalkUDP(from.ns, "", target, data); err != nil || name != to.name {
		c.t.Errorf("%s to %s by UDP: %q, %v", from.name, target, name, err)
	}
	large := bytes.Repeat(data, 5)
	name, err := testtraffic.TalkUDP(from.ns, "", target, large)
	if err != nil && to == c.outside && family == 1 { // it makes the path MTU known
		name, err = testtraffic.TalkUDP(from.ns, "", target, large)
	}
	if err != nil || name != to.name {
		c.t.Errorf("%s to %s by UDP in fragments: %q, %v", from.name, target, name, err)
	}
	if name, err := testtraffic.TalkTCP(from.ns, "", target, bytes.Repeat(data, 60)); err != nil || name != to.name {
		c.t.Errorf("%s to %s by TCP: %q, %v", from.name, target, name, err)
	}
}

// TestCluster connects pods, nodes and the outside, in all combinations.
func TestCluster(t *testing.T) {
	testnet.RequireRoot(t)
	for _, k := range []struct {
		split   bool
		tunnels []string // by decreasing path MTU: the kernels remember path MTUs
	}{{true, []string{"", "gre", "vxlan"}}, {false, []string{"geneve"}}} {
		nodes := newClusterNodes(t, 3, k.split)
		for i, tunnel := range k.tunnels {
			if i > 0 {
				nodes.clear()
			}
			t.Run(fmt.Sprintf("split=%t/%s", k.split, tunnel), func(t *testing.T) {
				c := nodes.cluster(t, 2, tunnel)
				c.everyPair()
				n := c.nodes[0]
				n.Kill()
				n.Start()
				c.everyPair()
			})
		}
	}
}
