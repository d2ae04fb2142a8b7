// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// enslave attaches in0 to a new bridge br0 of the node, which takes over its addresses.
func (s *site) enslave(t *testing.T) {
	t.Helper()
	s.node.Bridge(t, "br0")
	setLink(t, s.node, "in0", func(dev netlink.Link) error {
		br0, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		// Before the port is attached, so that the bridge never has a different MAC address.
		if err := netlink.LinkSetHardwareAddr(br0, dev.Attrs().HardwareAddr); err != nil {
			return err
		}
		addrs, err := netlink.AddrList(dev, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if a.IP.IsLinkLocalUnicast() {
				continue
			}
			if err := netlink.AddrDel(dev, &a); err != nil {
				return err
			}
		}
		return netlink.LinkSetMaster(dev, br0)
	})
	s.node.Addr(t, "br0", "192.0.2.1/24", "2001:db8:0:2::1/64")
}

// TestPortOfABridge: a port that becomes a bridge port keeps working; nothing is lost, even
// after the next confirmation of neighbours; and the bridge can replace it as the Interface.
func TestPortOfABridge(t *testing.T) {
	s := newSite(t).start()
	fronts := []string{vip4 + ":9000", vip6 + ":9000"}
	for i, family := range []string{"IPv4", "IPv6"} {
		s.serve(s.backends[0], backendAddr(family, 0, 8080), "b1")
		s.Apply(serviceYAML("web-"+family[3:], []string{fronts[i] + "/tcp", fronts[i] + "/udp"}, []string{backendAddr(family, 0, 8080)}))
		if name, err := talkTCP(s.client, "", fronts[i], nil); name != "b1" || err != nil {
			t.Fatalf("before: %q, %v", name, err)
		}
	}
	s.enslave(t)
	within(t, s.node, "in0", 1, "attached to a port of a bridge")
	under := func(when string, lasts time.Duration) {
		t.Helper()
		var load []*testtraffic.Traffic
		for _, front := range fronts {
			testnet.Eventually(t, 2*time.Second, when+": "+front+" is reached", func() bool {
				_, err := s.quick(front)
				return err == nil
			})
			load = append(load, testtraffic.Start(t, s.client, front, testtraffic.Load{Flows: 8, Packets: 500}))
		}
		begin := time.Now()
		testnet.Eventually(t, lasts+time.Second, when, func() bool { return time.Since(begin) > lasts })
		for _, tr := range load {
			tr.ExpectUnharmed(t)
		}
	}
	under("by a port of a bridge", confirmed+time.Second)
	s.Apply("kind: Interface\nname: br0\nspec: {device: br0}\n")
	within(t, s.node, "br0", 1, "attached to the bridge")
	s.LLCLI("delete", "Interface", "in0", "--wait", "5s")
	within(t, s.node, "in0", 0, "detached from its port")
	under("by the bridge", time.Second)
}

// TestRulesByBridge: the first packet of a connection to a service follows a routing rule that
// names the bridge of its port, as the kernel's packets do.
func TestRulesByBridge(t *testing.T) {
	s := newSite(t).start()
	s.enslave(t)
	within(t, s.node, "in0", 1, "attached to a port of a bridge")
	for _, f := range []struct{ ip, far, front, via, other, near string }{
		{"-4", "10.9.9.9", vip4 + ":9000", "10.0.%d.2", vip4 + ":9001", backendAddr("IPv4", 0, 8081)},
		{"-6", "2001:db8:99::9", vip6 + ":9000", "2001:db8:%d::2", vip6 + ":9001", backendAddr("IPv6", 0, 8081)},
	} {
		for i, b := range s.backends[:2] {
			b.Run(t, "ip", f.ip, "address", "add", f.far, "dev", "lo", "nodad")
			s.node.Run(t, "ping", "-c", "1", "-W", "5", fmt.Sprintf(f.via, i+1)) // adds a neighbour entry
			s.serve(b, netip.AddrPortFrom(netip.MustParseAddr(f.far), 8080).String(), fmt.Sprintf("b%d", i+1))
		}
		s.node.Run(t, "ip", f.ip, "route", "add", f.far, "via", fmt.Sprintf(f.via, 1))
		s.node.Run(t, "ip", f.ip, "route", "add", f.far, "via", fmt.Sprintf(f.via, 2), "table", "100")
		s.node.Run(t, "ip", f.ip, "rule", "add", "iif", "br0", "lookup", "100")
		s.Apply(serviceYAML("web"+f.ip, []string{f.front + "/tcp", f.front + "/udp"},
			[]string{netip.AddrPortFrom(netip.MustParseAddr(f.far), 8080).String()}))
		// The next hop of the main table's route is known and in use.
		s.Apply(serviceYAML("other"+f.ip, []string{f.other + "/tcp", f.other + "/udp"}, []string{f.near}))
		s.serve(s.backends[0], f.near, "near")
		for name, ask := range talk {
			for range 3 {
				if got, err := ask(s.client, "", f.other, nil); got != "near" || err != nil {
					t.Fatalf("%s, %s: %q answers, %v; want near", f.other, name, got, err)
				}
				if got, err := ask(s.client, "", f.front, nil); got != "b2" || err != nil {
					t.Errorf("%s, %s: %q answers, %v; want b2", f.front, name, got, err)
				}
			}
		}
	}
}

// macvlan creates a machine whose eth0 is a macvlan on a device of ns.
func macvlan(t *testing.T, name string, ns *testnet.NS, device string) *testnet.NS {
	t.Helper()
	box := testnet.New(t, name)
	handle, err := box.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	setLink(t, ns, device, func(dev netlink.Link) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex, attrs.Namespace = "eth0", dev.Attrs().Index, netlink.NsFd(handle.Fd())
		return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE})
	})
	box.Up(t, "eth0")
	return box
}

// TestRulesToGateways: a routing rule that names the device of arrival chooses between two gateways
// behind the same device. The packets of services follow it, as the kernel's packets do, whether or
// not the neighbours are known.
func TestRulesToGateways(t *testing.T) {
	s := newSite(t).start()
	box := macvlan(t, "box", s.backends[0], "eth0")
	box.Addr(t, "eth0", "10.0.1.3/24", "2001:db8:1::3/64")
	box.Route(t, "default", "10.0.1.1")
	box.Route(t, "default", "2001:db8:1::1")
	for i, c := range []struct{ ip, far, front, first, second string }{
		{"-4", "10.9.9.1", vip4, "10.0.1.2", "10.0.1.3"},
		{"-4", "10.9.9.2", vip4, "10.0.1.2", "inet6 2001:db8:1::3"},
		{"-6", "2001:db8:99::1", vip6, "2001:db8:1::2", "2001:db8:1::3"},
	} {
		far := netip.AddrPortFrom(netip.MustParseAddr(c.far), 8080).String()
		for name, ns := range map[string]*testnet.NS{"first": s.backends[0], "second": box} {
			ns.Run(t, "ip", c.ip, "address", "add", c.far, "dev", "lo", "nodad")
			s.serve(ns, far, name)
		}
		s.node.Run(t, "ip", c.ip, "route", "add", c.far, "via", c.first)
		s.node.Run(t, "ip", slices.Concat([]string{c.ip, "route", "add", c.far, "table", "100", "via"}, strings.Fields(c.second))...)
		s.node.Run(t, "ip", c.ip, "rule", "add", "iif", "in0", "lookup", "100")
		for j, source := range []string{"keep", "snat"} {
			front := fmt.Sprintf("%s:%d", c.front, 9000+10*i+j)
			s.Apply(serviceYAML(fmt.Sprintf("web-%d-%d", i, j), []string{front + "/tcp", front + "/udp"}, []string{far}, "source: "+source))
			for _, known := range []bool{true, false} {
				for _, gateway := range []string{"10.0.1.3", "2001:db8:1::3"} {
					s.node.Run(t, "ping", "-c", "1", "-W", "5", gateway)
				}
				for name, ask := range talk {
					if !known {
						s.node.Run(t, "ip", "neigh", "flush", "dev", "p1")
					}
					if got, err := ask(s.client, "", front, nil); got != "second" || err != nil {
						t.Errorf("%s to %s by %s, source %s, neighbours known %t: %q answers, %v; want second",
							name, c.far, c.second, source, known, got, err)
					}
				}
			}
		}
	}
}

// TestMacvlanOnAPort: a macvlan on a port, in a different namespace, takes no packets from
// the port, and is reached as usual.
func TestMacvlanOnAPort(t *testing.T) {
	s := newSite(t).start()
	s.serve(s.backends[0], "10.0.1.2:8080", "b1")
	s.Apply(serviceYAML("web", []string{vip4 + ":9000/tcp"}, []string{"10.0.1.2:8080"}))
	box := macvlan(t, "box", s.node, "in0")
	box.Addr(t, "eth0", "192.0.2.50/24")
	box.Route(t, "default", "192.0.2.17")
	box.ServeTCP(t, "192.0.2.50:80", "box")
	within(t, s.node, "in0", 1, "attached below a macvlan")
	if name, err := talkTCP(s.client, "", "192.0.2.50:80", nil); name != "box" || err != nil {
		t.Errorf("the macvlan's own address: %q, %v", name, err)
	}
	for range 3 {
		if name, err := talkTCP(s.client, "", vip4+":9000", nil); name != "b1" || err != nil {
			t.Errorf("the service: %q, %v", name, err)
		}
	}
}
