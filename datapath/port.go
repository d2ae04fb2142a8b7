// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net"
	"net/netip"
	"slices"
)

// PortName identifies a [Port]: the name of its Interface object.
type PortName string

// Role is the kind of network behind a port.
type Role uint8

// The roles.
const (
	RoleUplink Role = iota // other machines
	RolePort               // a pod, a container, a VM
	RoleHost               // the host itself
	RoleTunnel             // a tunnel device
)

// Port is a Linux device to which the data plane attaches programs.
type Port struct {
	Device  string
	Address netip.Addr // instead of Device: selects the device that has this address
	Switch  bool       // in the switch's network namespace rather than the host's
	Role    Role
	XDP     XDPMode
}

// XDPMode defines whether and how packets of tracked connections are forwarded in XDP, before the
// kernel processes them.
type XDPMode uint8

// The modes.
const (
	XDPOff     XDPMode = iota
	XDPGeneric         // by the kernel, on any device
	XDPNative          // by the driver
)

func (m XDPMode) String() string { return [...]string{"off", "generic", "native"}[m] }

// PortState is the current state of a port's device.
type PortState struct {
	Device    string // its name
	RuleName  string // the name by which rules in force match it; empty: unknown
	Renamed   string // the current name, if the device was renamed and the programs stayed
	Index     int    // 0: the device does not exist
	MAC       net.HardwareAddr
	MTU       int // bytes
	Addresses []netip.Prefix
	Hooks     []string // such as tcx-ingress
	Link      LinkState
}

// Device is a device of the node, whether or not the programs are attached to it.
type Device struct {
	Kind      string   // as the kernel calls it, such as bridge, veth, vlan
	Loopback  bool     // it is lo
	Ports     []string // the names of the devices whose master it is, in ascending order
	Parent    string   // the lower device of a VLAN device or similar; empty: none
	Link      LinkState
	Bridging  PortBridging // of a bridge port
	Addresses []netip.Prefix
	// Sources are the IPv4 and IPv6 addresses to which a masquerade through the device translates;
	// invalid: packets of that family are dropped.
	Sources [2]netip.Addr
}

// Covered reports whether the programs see the packets that arrive on a device: on the device
// itself, on all of its ports, or on its parent. It searches devices; seen reports whether programs
// are attached to a device.
func Covered(devices map[string]Device, device string, seen func(device string) bool) bool {
	if seen(device) {
		return true
	}
	d := devices[device]
	if len(d.Ports) > 0 {
		return !slices.ContainsFunc(d.Ports, func(port string) bool { return !Covered(devices, port, seen) })
	}
	return d.Parent != "" && d.Parent != device && Covered(devices, d.Parent, seen)
}

// PortBridging is the spanning tree state of a bridge port: whether the bridge forwards its frames.
type PortBridging uint8

// The states.
const (
	BridgingUnknown PortBridging = iota // or the device is not a bridge port
	BridgingForwarding
	BridgingDisabled
	BridgingListening
	BridgingLearning
	BridgingBlocking
)

// String returns the kernel's name for b; empty for BridgingUnknown.
func (b PortBridging) String() string {
	return [...]string{"", "forwarding", "disabled", "listening", "learning", "blocking"}[b]
}

// IsOff reports whether the bridge drops the frames of the port.
func (b PortBridging) IsOff() bool { return b > BridgingForwarding }

// LinkState describes whether a device can carry packets.
type LinkState uint8

// The states of a link.
const (
	LinkUnknown   LinkState = iota
	LinkUp                  // with a carrier
	LinkDown                // an administrator set it down
	LinkNoCarrier           // set up, but without a carrier
)

// String returns the name of s in the API; empty for LinkUnknown.
func (s LinkState) String() string { return [...]string{"", "up", "down", "no carrier"}[s] }
