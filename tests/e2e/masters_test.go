// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// enslave puts in0 into a new bridge br0 of the node, which takes its addresses over.
func (s *site) enslave(t *testing.T) {
	t.Helper()
	s.node.Bridge(t, "br0")
	setLink(t, s.node, "in0", func(dev netlink.Link) error {
		br0, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		// Before the port is in it, so that the bridge never has another one.
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

// TestPortOfABridge is H07: a port that becomes a bridge port keeps working; nothing is lost, for
// longer than neighbours are confirmed; and the bridge can be the interface in its place.
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
	within(t, s.node, "in0", 0, "taken off its port")
	under("by the bridge", time.Second)
}

// TestMacvlanOnAPort is H07: a device of another namespace on top of a port takes
// nothing from the port, and is reached as ever.
func TestMacvlanOnAPort(t *testing.T) {
	s := newSite(t).start()
	s.serve(s.backends[0], "10.0.1.2:8080", "b1")
	s.Apply(serviceYAML("web", []string{vip4 + ":9000/tcp"}, []string{"10.0.1.2:8080"}))
	box := testnet.New(t, "box")
	handle, err := box.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	setLink(t, s.node, "in0", func(dev netlink.Link) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex, attrs.Namespace = "eth0", dev.Attrs().Index, netlink.NsFd(handle.Fd())
		return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE})
	})
	box.Up(t, "eth0")
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
