// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// routes returns n routes through a gateway, to prefixes to which no test sends.
func routes(gateway string, n int) (all []*netlink.Route) {
	via := netip.MustParseAddr(gateway)
	for i := range n {
		r := &netlink.Route{Gw: via.AsSlice()}
		if via.Is4() {
			r.Dst = &net.IPNet{IP: net.IPv4(100, byte(64+i>>16), byte(i>>8), byte(i)).To4(), Mask: net.CIDRMask(32, 32)}
		} else {
			r.Dst = &net.IPNet{IP: net.ParseIP(fmt.Sprintf("2001:db8:77:%x::", i)), Mask: net.CIDRMask(64, 128)}
		}
		all = append(all, r)
	}
	return all
}

// indexes returns the number of next hops that have an index.
func (n *network) indexes() (count int) {
	n.t.Helper()
	var key kernel.NexthopKey
	var index uint32
	for it := n.d.tables.NexthopId.Iterate(); it.Next(&key, &index); {
		count++
	}
	return count + len(n.d.nexthops.Retired())
}

// TestRoutesElsewhere: changes of routes, and new addresses, that do not concern a connection leave
// it on the fast path, and take no index of a next hop. A connection whose route changes follows
// it. With LOXILIGHT_ROUTES: 1,000 connections and 100,000 changes.
func TestRoutesElsewhere(t *testing.T) {
	connections, changes := 3, 20_000
	if os.Getenv("LOXILIGHT_ROUTES") != "" {
		connections, changes = 1000, 100_000
	}
	for server, gateway := range map[string]string{"10.0.1.11:8080": "10.0.1.11", "[2001:db8:2::11]:8080": "2001:db8:2::11"} {
		t.Run(gateway, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			n.backends.ServeTCP(t, server, "server")
			var all []*conversation
			for range connections {
				all = append(all, n.dial(server))
				n.wantShortCut("before", all[len(all)-1])
			}
			fast, slow := n.verdicts()
			before, begin := n.indexes(), time.Now()
			changed := make(chan error, 1)
			go func() { changed <- n.changeRoutes(gateway, changes) }()
			const settled = 1500 * time.Millisecond // by then all messages have been handled
			for i, done := 0, false; !done || time.Since(begin) < settled; i++ {
				select {
				case err := <-changed:
					n.ok(err)
					done = true
				default:
				}
				all[i%connections].echo(t, fmt.Sprint("while routes change ", i))
			}
			took := time.Since(begin)
			nowFast, nowSlow := n.verdicts()
			t.Logf("%d changes in %s; %d packets took the fast path", changes, took, nowFast-fast)
			// Each of the two next hops is confirmed every 5 s.
			if left := nowSlow - slow; left > 2*uint64(took/(5*time.Second)+1) || nowFast-fast < 100*left {
				t.Errorf("%d packets left the fast path", left)
			}
			if now := n.indexes(); now != before {
				t.Errorf("%d next hops have an index, before %d", now, before)
			}

			leaves := func(what string, c *conversation) {
				t.Helper()
				testnet.Eventually(t, time.Second, what, func() bool {
					fast, _ := n.verdicts()
					_, _ = c.Write([]byte("lost"))
					now, _ := n.verdicts()
					return now == fast
				})
			}
			to := netip.MustParseAddrPort(server).Addr()
			if to.Is4() { // the prefix of an address of lo is the node's, without a message about it in the main table
				time.Sleep(300 * time.Millisecond) // the node would answer a delayed ACK of another connection with RST
				n.node.Addr(t, "lo", "10.0.1.77/24")
				leaves("the server's address is the node's", all[1])
				n.node.Run(t, "ip", "addr", "del", "10.0.1.77/24", "dev", "lo")
				n.wantShortCut("without the address", all[0])
			}
			n.node.Do(t, func() error { return blackhole(to, netlink.RouteReplace) })
			leaves("a route of the connection is in force", all[0])
		})
	}
}

// changeRoutes adds and deletes routes, and adds and renews addresses of the node.
func (n *network) changeRoutes(gateway string, changes int) error {
	var h *netlink.Handle
	err := n.node.Try(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return err
	}
	defer h.Close()
	out, err := h.LinkByName("out0")
	if err != nil {
		return err
	}
	for i := range 20 {
		for _, change := range []func(*netlink.Route) error{h.RouteAdd, h.RouteDel} {
			for _, r := range routes(gateway, changes/40) {
				r.LinkIndex = out.Attrs().Index
				if err := change(r); err != nil {
					return fmt.Errorf("%s: %w", r, err)
				}
			}
		}
		addr, err := netlink.ParseAddr(fmt.Sprintf("203.0.113.%d/32", 1+i/2))
		if err != nil {
			return err
		}
		if err := h.AddrReplace(out, addr); err != nil { // new at first, then renewed
			return err
		}
	}
	return nil
}
