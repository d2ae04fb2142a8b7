// SPDX-License-Identifier: Apache-2.0

// Package watch follows the devices of a network namespace: links, addresses, neighbours, routes
// and filters. It keeps the programs' tables of devices, bridges and the node's addresses in sync
// with them, and invalidates the next hops that may have changed. It attaches no programs, and
// changes nothing in the kernel but these tables.
package watch

import (
	"log/slog"
	"net/netip"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Options are what [Devices] use. The functions must be safe for concurrent use.
type Options struct {
	Netns  *hook.Netns
	Tables *kernel.Tables
	Log    *slog.Logger
	// LinkDevice is the end of the link between host and switch in this namespace; "": none.
	LinkDevice string
	Uplinks    *UplinkNames

	// Guard returns the required source MAC of frames from a device; false: any.
	Guard func(guard.Device) (mac [6]byte, ok bool)
	// LostAddr is called when the node has lost an address.
	LostAddr func()
	// FollowAddrs updates the announcements after a change of devices, addresses or neighbours.
	FollowAddrs func() error
	// NamesChanged is called with the names that devices have lost or gained.
	NamesChanged func(names []string) error
	// Invalidate retires each next hop for which match returns true.
	Invalidate func(match func(kernel.NexthopKey) bool) error
	// Forget takes the next hops off the connections and peers whose packets are routed in the
	// namespace to an address that to selects.
	Forget func(to func(netip.Addr) bool) error
	// IsTunnel reports whether a device with this name belongs to a tunnel.
	IsTunnel func(device string) bool
	// PathsChanged is called when the paths to peers may have changed.
	PathsChanged func()
	// LacksProgram reports whether a device with our programs lacks one; false if done is closed
	// meanwhile.
	LacksProgram func(index int, done <-chan struct{}) bool
	// HasMirrors reports whether programs of mirrors are attached to a device; IsMirrored reports
	// whether packets that leave through the device are copied, so that they must take its egress
	// hook.
	HasMirrors func(index int) bool
	IsMirrored func(index int) bool
	// Signal is called after a change that others must read.
	Signal func()
}
