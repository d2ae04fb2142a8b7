// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// fakeNetns is a netns in which eth0 leads to all addresses.
type fakeNetns struct{}

var eth0 = &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 7}}

func (fakeNetns) RouteGet(to net.IP) ([]netlink.Route, error) {
	local := netip.MustParseAddr("10.222.0.1")
	if to.To4() == nil {
		local = netip.MustParseAddr("fd00:222::1")
	}
	return []netlink.Route{{Src: local.AsSlice(), Type: unix.RTN_UNICAST, LinkIndex: eth0.Index}}, nil
}

func (fakeNetns) LinkByIndex(int) (netlink.Link, error) { return eth0, nil }

func (fakeNetns) LinkByName(string) (netlink.Link, error) { return nil, netlink.LinkNotFoundError{} }

func (fakeNetns) AddrList(netlink.Link, int) ([]netlink.Addr, error) { return nil, nil }

// fakePorts are the devices with our programs: all.
type fakePorts struct{}

func (fakePorts) Update(context.Context, datapath.PortName, datapath.Port) error { return nil }

func (fakePorts) Delete(context.Context, datapath.PortName) error { return nil }

func (fakePorts) Verify(context.Context, datapath.PortName) (bool, error) { return true, nil }

func (fakePorts) Need(datapath.PortName, bool, int) {}

func (fakePorts) Unneed(datapath.PortName) {}

func (fakePorts) Holder(bool, int) datapath.PortName { return "uplink" }
