// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// confirmed bounds how long the data plane sends to the old MAC address of a neighbour: it queries
// the kernel every 5 s.
const confirmed = 5*time.Second + 500*time.Millisecond

// TestAlone: without the daemon for a long time, connections continue and new ones are
// opened, even beyond the size of the tables, which are not swept; the node stays reachable;
// neighbours that the kernel forgot are learnt again, and moved ones are followed.
func TestAlone(t *testing.T) {
	s := newSite(t)
	s.Configure("tables: {connections: 256, services: 64, backends: 64, affinity: 64, ranges: 64}")
	s.start()
	fronts := []string{vip4 + ":9000", vip6 + ":9000"}
	for i, family := range []string{"IPv4", "IPv6"} {
		s.serve(s.backends[0], backendAddr(family, 0, 8080), "b1")
		s.Apply(serviceYAML("web-"+family[3:], []string{fronts[i] + "/tcp", fronts[i] + "/udp"}, []string{backendAddr(family, 0, 8080)}))
	}
	s.node.ServeTCP(t, "192.0.2.1:22", "node")
	dhcp := s.node.ListenUDP(t, "0.0.0.0:67")
	defer dhcp.Close()
	var load []*testtraffic.Traffic
	for _, front := range fronts {
		load = append(load, testtraffic.Start(t, s.client, front, testtraffic.Load{Flows: 8, Packets: 500, Connections: 150, Lasting: 8}))
	}
	s.Kill()
	s.expectNodeReached(t, dhcp)
	s.forgetNeighbours(t)
	testnet.Eventually(t, 2*confirmed, "the neighbours are known again", func() bool { return len(s.neighbours(t)) >= 4 })
	testnet.Eventually(t, 4*patience, "more connections than the tables hold", func() bool {
		return load[0].Opened() > 400 && load[1].Opened() > 400
	})
	for _, tr := range load {
		tr.ExpectUnharmed(t)
	}
	s.expectMovesFollowed(t, fronts)
	s.Start()
	s.ready()
	for i, front := range fronts {
		if name, err := talkTCP(s.client, "", front, nil); name != "b1" || err != nil {
			t.Errorf("family %d, with a daemon again: %q, %v", i, name, err)
		}
	}
}

// expectNodeReached: traffic without services is unaffected by the data plane.
func (s *site) expectNodeReached(t *testing.T, dhcp *net.UDPConn) {
	t.Helper()
	if name, err := talkTCP(s.client, "", "192.0.2.1:22", nil); name != "node" || err != nil {
		t.Errorf("the node itself: %q, %v", name, err)
	}
	c, err := s.client.Dial("udp", "192.0.2.17:68", "255.255.255.255:67", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Write([]byte("discover"))
	b := make([]byte, 64)
	err = errors.Join(err, dhcp.SetReadDeadline(time.Now().Add(patience)))
	n, from, e := dhcp.ReadFromUDPAddrPort(b)
	if err = errors.Join(err, e); err != nil || string(b[:n]) != "discover" || from.Port() != 68 {
		t.Errorf("a broadcast of DHCP: %q from %v, %v", b[:n], from, err)
	}
}

// neighbours returns the node's neighbour entries for the machines, found by their addresses.
func (s *site) neighbours(t *testing.T) (known []netlink.Neigh) {
	t.Helper()
	s.node.Do(t, func() error {
		for _, device := range []string{"in0", "p1"} {
			dev, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			all, err := netlink.NeighList(dev.Index, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, n := range all {
				if n.IP.IsGlobalUnicast() && len(n.HardwareAddr) == 6 {
					known = append(known, n)
				}
			}
		}
		return nil
	})
	return known
}

// forgetNeighbours deletes the machines' entries from the kernel of the node, as ageing does.
func (s *site) forgetNeighbours(t *testing.T) {
	t.Helper()
	all := s.neighbours(t)
	s.node.Do(t, func() error {
		for _, n := range all {
			if err := netlink.NeighDel(&n); err != nil {
				return fmt.Errorf("neighbour %s: %w", n.IP, err)
			}
		}
		return nil
	})
}

// expectMovesFollowed changes the MAC addresses of the client and the backend, which announce them,
// and checks that all of their connections find the new addresses.
func (s *site) expectMovesFollowed(t *testing.T, fronts []string) {
	t.Helper()
	const flows = 6
	var conns []net.Conn
	for _, front := range fronts {
		for range flows {
			c, err := s.client.Dial("udp", "", front, patience)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for range 3 { // answers have a next hop as well
				if _, err := exchangeUDP(c, []byte("query")); err != nil {
					t.Fatal(err)
				}
			}
			conns = append(conns, c)
		}
	}
	for i, ns := range []*testnet.NS{s.client, s.backends[0]} {
		ns.Sysctl(t, "net.ipv4.conf.eth0.arp_notify", "1")
		ns.Sysctl(t, "net.ipv6.conf.eth0.ndisc_notify", "1")
		ns.Do(t, func() error {
			dev, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetHardwareAddr(dev, net.HardwareAddr{2, 0, 0, 0x4c, 0x4c, byte(0x31 + i)})
		})
	}
	begin := time.Now()
	for i, c := range conns {
		testnet.Eventually(t, time.Until(begin.Add(2*confirmed)), fmt.Sprintf("flow %d reaches the moved hosts", i), func() bool {
			_, err := s.quickUDP(c)
			return err == nil
		})
	}
	t.Logf("all flows reached the moved hosts after %s", time.Since(begin).Round(10*time.Millisecond))
	for _, n := range s.neighbours(t) {
		if a, _ := netip.AddrFromSlice(n.IP); n.HardwareAddr[3] != 0x4c && a.Unmap() != netip.MustParseAddr("192.0.2.77") {
			t.Errorf("the kernel did not hear that %s moved: the test shows nothing", a)
		}
	}
}
