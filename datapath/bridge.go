// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"time"
)

// BridgeName identifies a [Bridge].
type BridgeName string

// Bridge is a kernel bridge in the switch's network namespace. The configured ports, addresses and
// VLANs are applied; any that other programs add are kept.
type Bridge struct {
	Device        string
	VLANFiltering bool
	Addresses     []netip.Prefix // of the bridge device, host bits kept
	Ports         []BridgePort
	Ageing        time.Duration // of learnt MACs; 0: the kernel's default, 300 s
	MTU           int           // bytes; 0: the kernel chooses
}

// BridgePort is a device that is enslaved to a bridge.
type BridgePort struct {
	Device   string
	PVID     uint16      // VLAN of untagged frames; 0: untagged frames are dropped
	VLANs    []VLANRange // tagged, in both directions
	Untagged []VLANRange // sent untagged; includes the PVID unless configured otherwise
	Isolated bool        // exchanges no frames with other isolated ports
}

// VLANRange is the range First to Last, both from 1 to 4094.
type VLANRange struct{ First, Last uint16 }

// RouteName identifies a [Route].
type RouteName string

// RouteType defines how packets that match a route are handled.
type RouteType uint8

// The types of routes.
const (
	RouteUnicast     RouteType = iota // are sent to a next hop
	RouteBlackhole                    // are dropped silently
	RouteUnreachable                  // are rejected: host unreachable
	RouteProhibit                     // are rejected: administratively prohibited
)

// Route is an entry of the kernel's main routing table.
type Route struct {
	Prefix   netip.Prefix
	Switch   bool // in the switch's network namespace rather than the host's
	Type     RouteType
	NextHops []NextHop  // at least one in a unicast route; several: ECMP
	Metric   uint32     // 0: the kernel's default
	Source   netip.Addr // preferred source of the node's own packets; invalid: the kernel chooses
	MTU      uint32     // bytes; 0: the MTU of the device
}

// NextHop is one path of a route. Device may be empty if Via determines it, and Via invalid if the
// destination is on the link.
type NextHop struct {
	Via    netip.Addr
	Device string
	Weight uint16 // 1 to 256
}

// LinkName identifies a [Link].
type LinkName string

// Link is an existing device, whichever program created it, and the settings configured for it: it
// is up, and has these addresses in addition to any that other programs added.
type Link struct {
	Device    string
	Switch    bool           // in the switch's network namespace rather than the host's
	Addresses []netip.Prefix // host bits kept
	MTU       int            // bytes; 0: unchanged. Deleting the Link restores the previous MTU
}
