// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Options are what an [Overlay] uses.
type Options struct {
	Tables *kernel.Tables
	Ports  Ports
	// Netns returns the netns of the switch, or of the host; both are the same if the switch has no
	// netns of its own. The error wraps [datapath.ErrAbsent] if the netns does not exist.
	Netns func(inSwitch bool) (Netns, error)
	// SwitchNetns is the id of the netns of the switch in the keys of maps; 0: the host's.
	SwitchNetns uint8
	// HostDevice and SwitchDevice are the ends of the link between host and switch; empty: no link
	// exists.
	HostDevice, SwitchDevice string

	// Announce replaces the single addresses behind peers, for which the programs answer requests
	// of hosts on the pods' bridge.
	Announce func(addrs []netip.Addr) error
	// RaiseEpoch makes the programs evaluate all connections again.
	RaiseEpoch func() error
	// Invalidate retires each next hop for which match returns true.
	Invalidate func(match func(kernel.NexthopKey) bool) error
	// Signal reports that the state of a peer has changed.
	Signal func()
}

// Ports are the devices to which our programs are attached. The overlay calls its methods with its
// lock held: of the methods of [Overlay] they may call HasDevice and PathsChanged only.
type Ports interface {
	// Update attaches the programs to the device of a port.
	Update(ctx context.Context, name datapath.PortName, value datapath.Port) error
	// Delete detaches the programs. A missing port is not an error.
	Delete(ctx context.Context, name datapath.PortName) error
	// Verify reports whether the programs are attached.
	Verify(ctx context.Context, name datapath.PortName) (bool, error)
	// Need records that tunnels need the programs on a device until Unneed: if the port that has
	// them is deleted, they pass to the inner port.
	Need(inner datapath.PortName, inSwitch bool, ifindex int)
	// Unneed ends what Need began.
	Unneed(inner datapath.PortName)
	// Holder returns the port that has the programs on a device, or "".
	Holder(inSwitch bool, ifindex int) datapath.PortName
}

// Netns reads a network namespace, as [netlink.Handle] does.
type Netns interface {
	LinkByName(name string) (netlink.Link, error)
	LinkByIndex(index int) (netlink.Link, error)
	AddrList(link netlink.Link, family int) ([]netlink.Addr, error)
	RouteGet(destination net.IP) ([]netlink.Route, error)
}
