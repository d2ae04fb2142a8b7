// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// verdicts returns the numbers of packets on the fast path and on the slow path.
func (n *network) verdicts() (tracked, slow uint64) {
	n.t.Helper()
	c, err := n.d.Telemetry().NodeCounters(context.Background())
	n.ok(err)
	return c.Verdicts["fast"], c.Verdicts["slow"]
}

// wantShortCut sends words until one and its reply take only the fast path.
func (n *network) wantShortCut(what string, c *conversation) {
	n.t.Helper()
	for try := range 20 {
		tracked, slow := n.verdicts()
		c.echo(n.t, fmt.Sprint(what, " ", try))
		nowTracked, nowSlow := n.verdicts()
		if nowSlow == slow && nowTracked >= tracked+2 {
			return
		}
	}
	tracked, slow := n.verdicts()
	list, _, err := n.d.Connections().List(context.Background(), datapath.ConnectionFilter{}, "", 10)
	n.t.Errorf("%s: no word took the fast path both ways (%d packets tracked, %d slow); connections %+v, %v", what, tracked, slow, list, err)
}

// wantWays compares the paths of the only established connection.
func (n *network) wantWays(forth, back datapath.Way) {
	n.t.Helper()
	list, _, err := n.d.Connections().List(context.Background(), datapath.ConnectionFilter{State: "established"}, "", 10)
	n.ok(err)
	if len(list) != 1 || list[0].Forth != forth || list[0].Back != back {
		n.t.Errorf("connections %+v, want %+v and %+v", list, forth, back)
	}
}

// wantSlow sends words, none of which may take the fast path.
func (n *network) wantSlow(what string, c *conversation) {
	n.t.Helper()
	tracked, _ := n.verdicts()
	for i := range 5 {
		c.echo(n.t, fmt.Sprint(what, " ", i))
	}
	if now, _ := n.verdicts(); now != tracked {
		n.t.Errorf("%s: %d packets took the fast path", what, now-tracked)
	}
}

// TestRouted: a connection without a service is first forwarded by the kernel, then on the fast
// path with no byte changed, and again by the kernel if the path may have changed.
func TestRouted(t *testing.T) {
	for _, addr := range []string{"10.0.1.11:8080", "[2001:db8:2::11]:8080"} {
		t.Run(addr, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			n.backends.ServeTCP(t, addr, "server")
			earlier := kernel.BackendTotal{ConnectionCount: 5} // as counted by an earlier version
			n.ok(n.d.tables.BackendTotal.Put(0, earlier))
			c := n.dial(addr)
			before, err := n.d.Telemetry().NodeCounters(context.Background())
			n.ok(err)
			n.wantShortCut("routed", c)
			testnet.Eventually(t, 5*time.Second, "the node counts the connection and its packets", func() bool {
				after, err := n.d.Telemetry().NodeCounters(context.Background())
				n.ok(err)
				return after.Connections == 5+1 && after.Packets >= before.Packets+2 && after.Bytes > before.Bytes
			})
			var shared kernel.BackendTotal
			n.ok(n.d.tables.BackendTotal.Lookup(0, &shared))
			if shared != earlier {
				t.Errorf("all CPUs count connections in one place: %+v, want %+v", shared, earlier)
			}
			n.wantWays(datapath.Way{Tracked: true, Device: "out0"}, datapath.Way{Tracked: true, Device: "in0"})

			// netfilter has rules: packets no longer take the fast path.
			n.ok(n.d.maps[kernel.MapLlNetfilter].Put(uint32(netnsHost), uint32(1)))
			n.ok(n.host().Devices.InvalidateAll())
			n.wantSlow("netfilter", c)
			n.wantWays(datapath.Way{Why: "netfilter has rules"}, datapath.Way{Why: "netfilter has rules"})
			n.ok(n.d.maps[kernel.MapLlNetfilter].Put(uint32(netnsHost), uint32(0)))
			n.wantShortCut("without netfilter", c)

			// The neighbour gets another MAC.
			n.backends.Do(t, func() error {
				l, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0x5e, 0x10, 7, 7})
			})
			n.node.Do(t, func() error { return flushNeighbours("out0") })
			n.wantShortCut("after a move", c)

			// A blackhole route is added and deleted: meanwhile packets are dropped, and none takes
			// the fast path.
			to := netip.MustParseAddrPort(addr).Addr()
			n.node.Do(t, func() error { return blackhole(to, netlink.RouteReplace) })
			_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
			testnet.Eventually(t, 2*time.Second, "the blackhole is in force", func() bool {
				tracked, _ := n.verdicts()
				_, _ = c.Write([]byte("lost"))
				now, _ := n.verdicts()
				return now == tracked
			})
			n.node.Do(t, func() error { return blackhole(to, netlink.RouteDel) })
			again := n.dial(addr)
			n.wantShortCut("after the blackhole", again)
		})
	}
}

func flushNeighbours(device string) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	all, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
	for i := range all {
		_ = netlink.NeighDel(&all[i]) // it may already be deleted
	}
	return err
}

func blackhole(to netip.Addr, change func(*netlink.Route) error) error {
	bits := to.BitLen()
	return change(&netlink.Route{
		Dst:  &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(bits, bits)},
		Type: 6, // RTN_BLACKHOLE
	})
}

// bridged is a node with four ports that are bridged in pairs: by one bridge per pair, or by a
// single bridge with two VLANs. The hosts of both pairs have the same addresses.
type bridged struct {
	*network
	stations [4]*testnet.NS
}

func newBridged(t *testing.T, vlans bool) *bridged {
	t.Helper()
	b := &bridged{network: newNetwork(t)}
	ports := []string{"p0", "p1", "p2", "p3"}
	for i, name := range ports {
		b.stations[i] = testnet.New(t, fmt.Sprint("station", i))
		testnet.Veth(t, testnet.Port{NS: b.node, Name: name},
			testnet.Port{NS: b.stations[i], Name: "eth0", Addrs: []string{fmt.Sprintf("10.9.0.%d/24", 1+i%2), fmt.Sprintf("fd09::%d/64", 1+i%2)}})
	}
	if vlans {
		b.node.Do(t, func() error { return separate("br0", ports) })
	} else {
		b.node.Bridge(t, "br0", ports[:2]...)
		b.node.Bridge(t, "br1", ports[2:]...)
	}
	for _, name := range ports {
		b.ok(b.d.Ports().Update(context.Background(), datapath.PortName(name), datapath.Port{Device: name}))
	}
	return b
}

// separate puts the first two ports of a bridge into VLAN 10, and the others into VLAN 20.
func separate(bridge string, ports []string) error {
	if err := addFiltering(bridge, ports...); err != nil {
		return err
	}
	for i, name := range ports {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.BridgeVlanDel(l, 1, true, true, false, false); err != nil {
			return err
		}
		if err := netlink.BridgeVlanAdd(l, uint16(10+10*(i/2)), true, true, false, false); err != nil {
			return err
		}
	}
	return nil
}

// addFiltering creates a bridge with VLAN filtering, and attaches ports to it.
func addFiltering(bridge string, ports ...string) error {
	on := true
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridge
	br := &netlink.Bridge{LinkAttrs: attrs, VlanFiltering: &on}
	if err := netlink.LinkAdd(br); err != nil {
		return err
	}
	for _, name := range ports {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetMaster(l, br)
		}
		if err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(br)
}

// requireVLANs skips the test if the kernel's bridges do not support VLANs.
func requireVLANs(t *testing.T) {
	t.Helper()
	ns := testnet.New(t, "vlans")
	err := ns.Try(func() error { return addFiltering("br0") })
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("bridges of this kernel know no VLANs")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// talk connects the first host of a pair to the second, from the address and port in local.
func (b *bridged) talk(pair int, addr, local string) *conversation {
	b.t.Helper()
	var c net.Conn
	testnet.Eventually(b.t, 5*time.Second, "connected to "+addr, func() (ok bool) {
		var err error
		c, err = b.stations[2*pair].Dial("tcp", local, addr, time.Second)
		return err == nil
	})
	b.t.Cleanup(func() { c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(3 * time.Second)) // the next read reports an error
	var greeting [64]byte
	if _, err := c.Read(greeting[:]); err != nil {
		b.t.Fatal(err)
	}
	return &conversation{c}
}

// TestBridged: frames between two ports of a bridge take the fast path unchanged. Packets with the
// same addresses behind another bridge, or in another VLAN, belong to another connection.
func TestBridged(t *testing.T) {
	for name, vlans := range map[string]bool{"two bridges": false, "two VLANs": true} {
		t.Run(name, func(t *testing.T) {
			if vlans {
				requireVLANs(t)
			}
			b := newBridged(t, vlans)
			for _, f := range []struct{ server, client string }{{"10.9.0.2:7000", "10.9.0.1:40000"}, {"[fd09::2]:7000", "[fd09::1]:40000"}} {
				var pairs [2]*conversation
				for i := range pairs {
					b.stations[2*i+1].ServeTCP(t, f.server, fmt.Sprint("pair ", i))
					pairs[i] = b.talk(i, f.server, f.client)
				}
				for range 2 {
					for i, c := range pairs {
						b.wantShortCut(fmt.Sprint("pair ", i, " ", f.server), c)
					}
				}
				b.moveStation(pairs[0])
			}
		})
	}
}

// moveStation sets the bridge port of the second host of the first pair down and up again: packets
// from the first host then reach it again.
func (b *bridged) moveStation(c *conversation) {
	b.t.Helper()
	b.wantShortCut("before the move", c)
	b.node.Do(b.t, func() error {
		l, err := netlink.LinkByName("p1")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	})
	tracked, _ := b.verdicts()
	_, err := c.Write([]byte("unanswered"))
	b.ok(err)
	b.node.Up(b.t, "p1")
	_ = c.SetDeadline(time.Now().Add(3 * time.Second)) // the next read reports an error
	var echo [64]byte
	if _, err := c.Read(echo[:]); err != nil {
		b.t.Errorf("after the port was down: %v (%d packets tracked before)", err, tracked)
	}
	b.wantShortCut("after the port was down", c)
}

// TestOtherTags: a bridge with 802.1ad tags treats 802.1Q tags as payload, so its frames do not
// take the fast path.
func TestOtherTags(t *testing.T) {
	requireVLANs(t)
	b := newBridged(t, true)
	b.stations[1].ServeTCP(t, "10.9.0.2:7000", "server")
	c := b.talk(0, "10.9.0.2:7000", "10.9.0.1:40000")
	b.wantShortCut("802.1Q", c)
	b.node.Run(t, "ip", "link", "set", "br0", "type", "bridge", "vlan_protocol", "802.1ad")
	testnet.Eventually(t, 5*time.Second, "nothing takes the fast path", func() bool {
		tracked, _ := b.verdicts()
		c.echo(t, "802.1ad")
		now, _ := b.verdicts()
		return now == tracked
	})
	b.wantSlow("802.1ad", c)
}
