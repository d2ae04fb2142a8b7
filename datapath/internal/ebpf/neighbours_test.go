// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestNeighbourBehindBridge: the kernel knows a neighbour on the bridge, or on a VLAN device above
// it, and packets to the neighbour leave through a bridge port. When its MAC changes, its
// connections learn the next hop again at once, not only at the next confirmation.
//
//	client 192.0.2.10 ── in0 [node] br0 (10.5.0.1, fd05::1) ── p0 ── host 10.5.0.11, fd05::11
func TestNeighbourBehindBridge(t *testing.T) {
	for _, tt := range []struct{ name, device, addr, server string }{
		{"bridge, IPv4", "br0", "10.5.0.11", "10.5.0.11:8080"}, {"bridge, IPv6", "br0", "fd05::11", "[fd05::11]:8080"},
		{"VLAN of a bridge", "br0.10", "10.5.0.11", "10.5.0.11:8080"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNetwork(t)
			station := testnet.New(t, "station")
			testnet.Veth(t, testnet.Port{NS: n.node, Name: "p0"},
				testnet.Port{NS: station, Name: "eth0", Addrs: []string{"10.5.0.11/24", "fd05::11/64"}})
			if tt.device == "br0" {
				n.node.Bridge(t, "br0", "p0")
			} else {
				requireVLANs(t)
				n.node.Do(t, func() error { return separate("br0", []string{"p0"}) })
				n.node.Run(t, "bridge", "vlan", "add", "vid", "10", "dev", "br0", "self")
				n.node.Run(t, "ip", "link", "add", "link", "br0", "name", tt.device, "type", "vlan", "id", "10")
				n.node.Up(t, tt.device)
			}
			n.node.Addr(t, tt.device, "10.5.0.1/24", "fd05::1/64")
			for _, via := range []string{"10.5.0.1", "fd05::1"} {
				station.Route(t, "default", via)
			}
			n.attach()
			n.ok(n.d.Ports().Update(context.Background(), "p0", datapath.Port{Device: "p0"}))
			station.ServeTCP(t, tt.server, "server")
			c := n.dial(tt.server)
			n.wantShortCut("before", c)

			old, moved := station.MAC(t, "eth0"), [6]byte{2, 0, 0x5e, 0x10, 7, 9}
			n.settled(c, old)
			n.wantWays(datapath.Way{Tracked: true, Device: "p0"}, datapath.Way{Tracked: true, Device: "in0"})
			station.Do(t, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.LinkSetHardwareAddr(l, moved[:])
			})
			n.node.Neighbour(t, tt.device, tt.addr, moved)
			testnet.Eventually(t, time.Second, "the next hop that it was is gone", func() bool { return n.nexthopTo(old) == 0 })
			n.wantShortCut("after", c)
			if n.nexthopTo(moved) == 0 {
				t.Error("the fast path has no next hop to the new address")
			}
		})
	}
}

// settled waits until the next hop to a MAC has not changed for a second, so that it no longer
// changes by itself.
func (n *network) settled(c *conversation, mac [6]byte) {
	n.t.Helper()
	var last uint32
	since := time.Now()
	testnet.Eventually(n.t, 20*time.Second, "the next hop stays", func() bool {
		c.echo(n.t, "settling")
		if now := n.nexthopTo(mac); now == 0 || now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > time.Second
	})
}

// nexthopTo returns the index of the next hop to a MAC; 0: not found.
func (n *network) nexthopTo(mac [6]byte) uint32 {
	n.t.Helper()
	var key kernel.NexthopKey
	var index uint32
	it := n.d.maps[kernel.MapLlNexthopId].Iterate()
	for it.Next(&key, &index) {
		if key.Dmac == mac {
			return index
		}
	}
	n.ok(it.Err())
	return 0
}
