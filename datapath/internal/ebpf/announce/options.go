// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"log/slog"
	"net/netip"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Options are what an [Announcer] uses.
type Options struct {
	Table       *bpfmap.Map[kernel.AnnounceKey, kernel.Announced]
	SwitchNetns uint8          // id of the netns with the bridges of pods
	Netns       func() []Netns // those in use
	Log         *slog.Logger
}

// Netns is a network namespace in use. Two values are equal if, and only if, they are the same
// netns. A netns that was deleted and created again is a different netns.
type Netns interface {
	// ID returns the id of the netns in the keys of maps.
	ID() uint8
	// Networks returns the networks whose ARP and NDP requests our programs see.
	Networks() []Network
	// Addrs returns the node's addresses in the netns.
	Addrs() []netip.Addr
	// Do calls f on a thread that is in the netns.
	Do(f func() error) error
}

// Network is a network of a port, or of a bridge with ports. A device with several addresses has
// several networks.
type Network struct {
	Index      int    // ifindex of the device
	Name       string // of the device
	MAC        [6]byte
	Prefix     netip.Prefix
	Neighbours []netip.Addr        // neighbours known on the device
	Local      map[netip.Addr]bool // addresses of the node in the netns
	Role       Role
	Bridge     bool // the device is a bridge
}

// Role distinguishes uplinks from other devices.
type Role uint8

// The roles. RoleUnknown is the role of a device that an earlier run attached and that is not yet
// configured in this run.
const (
	RoleUnknown Role = iota
	RoleUplink
	RoleOther
)
