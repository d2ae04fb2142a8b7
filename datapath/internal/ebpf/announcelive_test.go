// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestPoolOnLink: pool addresses in the network of the output device need no route to the node, and
// need not be assigned to a device: the node announces them to neighbours, and answers requests for
// them. Packets to them that belong to no connection are dropped, and do not loop.
func TestPoolOnLink(t *testing.T) {
	for _, tt := range []struct{ server, pool, one string }{
		{"10.0.1.11", "10.0.1.192/28", "10.0.1.200"},
		{"2001:db8:2::11", "2001:db8:2::c0/124", "2001:db8:2::c8"},
	} {
		t.Run(tt.server, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			n.backends.Run(t, "ip", "neigh", "replace", tt.one, "lladdr", "02:00:5e:99:99:99", "dev", "eth0", "nud", "stale")
			pool := datapath.NAT{Match: datapath.Match{Out: []string{"out0"}}, Addresses: prefixes(tt.pool)}
			n.translate(map[datapath.NATName]datapath.NAT{"away": pool})
			mac := n.node.MAC(t, "out0")
			at := net.HardwareAddr(mac[:]).String()
			testnet.Eventually(t, 5*time.Second, "hosts with another hardware address are updated", func() bool {
				return strings.Contains(n.backends.Run(t, "ip", "neigh", "show", tt.one), at)
			})
			to := netip.AddrPortFrom(netip.MustParseAddr(tt.server), 8080).String()
			server := n.backends.ServeTCP(t, to, "server")
			n.dial(to)
			got := server.Clients()
			if len(got) != 1 || !netip.MustParsePrefix(tt.pool).Contains(got[0].Unmap()) {
				t.Fatalf("the server saw %v, want one of %s", got, tt.pool)
			}
			u, err := n.backends.Dial("udp", "", netip.AddrPortFrom(netip.MustParseAddr(tt.one), 9).String(), time.Second)
			n.ok(err)
			defer u.Close()
			for range 3 {
				_, _ = u.Write([]byte("question")) // the counter is checked
			}
			testnet.Eventually(t, 5*time.Second, "a packet without a socket is dropped", func() bool {
				c, err := n.d.Telemetry().NodeCounters(context.Background())
				return err == nil && c.Drops["no_mapping"] == 3
			})
			n.translate(nil)
			if left := n.announced(); len(left) != 0 {
				t.Errorf("%d prefixes are still announced: %+v", len(left), left)
			}
		})
	}
}

// TestAnnounced checks which addresses each device announces.
func TestAnnounced(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	index := func(dev string) uint32 {
		l, err := n.host().Netlink.LinkByName(dev)
		n.ok(err)
		return uint32(l.Attrs().Index)
	}
	n.translate(map[datapath.NATName]datapath.NAT{
		"pool":     {Addresses: prefixes("10.0.1.192/28", "203.0.113.0/28")},
		"network":  {Priority: 1, Addresses: prefixes("10.0.1.0/24")},
		"other":    {Priority: 2, Match: datapath.Match{Out: []string{"in0"}}, Addresses: prefixes("10.0.1.64/32")},
		"in":       {Type: datapath.DNAT, Match: datapath.Match{Destination: prefixes("10.0.1.80/32")}, Addresses: prefixes("192.0.2.10/32")},
		"in0":      {Type: datapath.DNAT, Match: datapath.Match{Destination: prefixes("10.0.1.81/32"), In: []string{"in0"}}, Addresses: prefixes("192.0.2.10/32")},
		"redirect": {Type: datapath.DNAT, Match: datapath.Match{Destination: prefixes("10.0.1.96/28")}, Addresses: prefixes("192.0.2.10/32")},
	})
	for _, tt := range []struct {
		dev, addr string // no device: the entry of the node itself
		want      bool
	}{
		{"out0", "10.0.1.200", true}, {"in0", "10.0.1.200", false}, {"", "10.0.1.200", true},
		{"", "203.0.113.7", true}, {"out0", "203.0.113.7", false},
		{"out0", "10.0.1.34", false}, {"", "10.0.1.34", false},
		{"out0", "10.0.1.64", false}, {"in0", "10.0.1.64", false},
		{"out0", "10.0.1.80", true}, {"", "10.0.1.80", true},
		{"out0", "10.0.1.81", false}, {"out0", "10.0.1.97", false}, {"", "10.0.1.1", false},
	} {
		key := kernel.AnnounceKey{PrefixLen: 64 + 128, Addr: kernel.AddrOf(netip.MustParseAddr(tt.addr))}
		if tt.dev != "" {
			key.Ifindex = index(tt.dev)
		}
		var value kernel.Announced
		found, err := n.d.tables.Announced.Find(key, &value)
		n.ok(err)
		if (found && value.Flags == 0) != tt.want {
			t.Errorf("%s by %q: %t, %+v, want %t", tt.addr, tt.dev, found, value, tt.want)
		}
	}
}
