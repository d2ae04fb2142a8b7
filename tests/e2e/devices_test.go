// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/internal/testnet"
)

// setLink changes a device of a namespace.
func setLink(t *testing.T, ns *testnet.NS, device string, change func(netlink.Link) error) {
	t.Helper()
	ns.Do(t, func() error {
		dev, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return change(dev)
	})
}

// rename renames a device of the node.
func (s *site) rename(from, to string) {
	s.t.Helper()
	setLink(s.t, s.node, from, netlink.LinkSetDown)
	setLink(s.t, s.node, from, func(l netlink.Link) error { return netlink.LinkSetName(l, to) })
	s.node.Up(s.t, to)
}

// within waits at most a second until each hook of a device has the wanted number of programs.
func within(t *testing.T, ns *testnet.NS, device string, want int, what string) {
	t.Helper()
	begin := time.Now()
	testnet.Eventually(t, time.Second, what, func() bool {
		n, err := hooksOf(ns, device)
		return err == nil && n == [2]int{want, want}
	})
	t.Logf("%s: after %s", what, time.Since(begin).Round(time.Millisecond))
}

func (s *site) pinned(port string) bool {
	return slices.ContainsFunc(s.pins(), func(path string) bool { return strings.HasSuffix(path, "/"+port) })
}

// expectServed waits: the kernel lets nothing through a device for up to a second after the device
// gets its carrier.
func (s *site) expectServed(when string) {
	s.t.Helper()
	testnet.Eventually(s.t, patience, when+": the service is served", func() bool {
		name, err := s.quick(vip4 + ":9000")
		return name == "b3" && err == nil
	})
}

// TestDeviceComesAndGoes: programs stay on a device that goes down, and on a renamed device
// until its interface names a different device; a device that is recreated under the same name gets
// programs within a second; on a device that is deleted, or moved to another namespace, no programs
// or pins of ours are left.
func TestDeviceComesAndGoes(t *testing.T) {
	for _, attach := range []string{"tcx", "tc"} {
		t.Run(attach, func(t *testing.T) {
			requireAttach(t, attach)
			s := newSite(t, "datapath: {attach: "+attach+"}").start()
			s.serve(s.backends[2], "10.0.3.2:8080", "b3")
			s.Apply(serviceYAML("web", []string{vip4 + ":9000/tcp"}, []string{"10.0.3.2:8080"}))
			s.expectServed("at first")
			s.followsItself()
			all := s.pins()

			setLink(t, s.node, "p3", netlink.LinkSetDown)
			s.node.Up(t, "p3")
			within(t, s.node, "p3", 1, "attached after down and up")
			s.expectServed("after down and up")

			s.node.DeleteLink(t, "p3")
			testnet.Eventually(t, time.Second, "the pins of a device that was deleted are gone", func() bool { return !s.pinned("p3") })
			s.renew(t)
			within(t, s.node, "p3", 1, "attached to a recreated device")
			s.expectServed("by a recreated device")
			if attach == "tcx" { // pins of filters have the index of the device in their names
				testnet.Eventually(t, time.Second, "as much is pinned as before", func() bool { return slices.Equal(s.pins(), all) })
			}

			s.Kill()
			s.node.DeleteLink(t, "p3")
			s.renew(t)
			s.Start()
			within(t, s.node, "p3", 1, "attached to a device recreated while no daemon ran")
			testnet.Eventually(t, time.Second, "the pins of the old one are gone", func() bool { return len(s.pins()) == len(all) })

			s.rename("p3", "q3")
			within(t, s.node, "q3", 1, "attached under another name")
			s.expectServed("under another name")
			s.Apply("kind: Interface\nname: q3\nspec: {device: q3}\n")
			s.LLCLI("delete", "Interface", "p3", "--wait", "5s")
			within(t, s.node, "q3", 1, "attached by another interface")
			s.expectServed("by another interface")

			s.moveAway(t)
		})
	}
}

// renew recreates the veth pair of p3, whose other end was deleted, too.
func (s *site) renew(t *testing.T) {
	t.Helper()
	testnet.Veth(t, testnet.Port{NS: s.node, Name: "p3", Addrs: []string{"10.0.3.1/24"}},
		testnet.Port{NS: s.backends[2], Name: "eth0", Addrs: []string{"10.0.3.2/24"}})
	s.backends[2].Route(t, "default", "10.0.3.1")
}

// moveAway moves q3 to a different namespace, and back.
func (s *site) moveAway(t *testing.T) {
	t.Helper()
	away := testnet.New(t, "away")
	move := func(from, to *testnet.NS) {
		t.Helper()
		handle, err := to.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer handle.Close()
		setLink(t, from, "q3", func(l netlink.Link) error { return netlink.LinkSetNsFd(l, int(handle.Fd())) })
	}
	move(s.node, away)
	within(t, away, "q3", 0, "off a device that is in another namespace")
	testnet.Eventually(t, time.Second, "its pins are gone", func() bool { return !s.pinned("q3") })
	move(away, s.node)
	within(t, s.node, "q3", 1, "attached to a device that is back")
	s.node.Up(t, "q3")
	s.node.Addr(t, "q3", "10.0.3.1/24")
	s.expectServed("by a device that is back")
}
