// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// ErrNetns is wrapped if a pod's network namespace is at fault: the path does not exist, or is not
// a namespace.
var ErrNetns = errors.New("not a network namespace")

// ErrExists is wrapped if the pod already has a device of that name.
var ErrExists = errors.New("already exists")

// ErrMACTaken is wrapped if the MAC wanted for a pod belongs to the switch.
var ErrMACTaken = errors.New("belongs to the switch")

// ErrNameTaken is wrapped if the switch has a different device with the name of a link.
var ErrNameTaken = errors.New("already exists and is not ours")

// PodDevicePrefix is the prefix of the names of the switch's ends of pod links; a number follows.
const PodDevicePrefix = "hs"

// PodLinks creates the links between pods and the switch: veth pairs with one end in the pod's
// network namespace and the other in the switch. What a pod may send, and to which bridge the
// switch's end is attached, is decided elsewhere. Safe for concurrent use if no device is used in
// two calls at a time.
type PodLinks interface {
	// Make creates a link with the switch's end down, so that it forwards nothing yet. If it fails,
	// nothing is left behind. It sets l.MTU if that is 0, and reduces l.Routes to the routes that
	// it created. The error wraps [ErrNameTaken] if the link needs a different name.
	Make(ctx context.Context, l *PodLink) error
	// Open enables the link for packets, and announces the pod to its neighbours.
	Open(ctx context.Context, l *PodLink) error
	// Shut disables the link at the switch's end; a missing link is not an error.
	Shut(ctx context.Context, device string) error
	// Check returns the differences between the link and its configuration.
	Check(ctx context.Context, l *PodLink) error
	// Delete removes the link at the switch's end; a missing link is not an error.
	Delete(ctx context.Context, device string) error
	// NodeAddresses returns the addresses at which the node can be reached: all addresses in the
	// host's namespace except loopback and link-local ones.
	NodeAddresses(ctx context.Context) ([]netip.Addr, error)
	// CheckMAC rejects a pod MAC that belongs to the switch or to the host's end of the link
	// between host and switch; the error wraps [ErrMACTaken].
	CheckMAC(ctx context.Context, mac net.HardwareAddr) error
	// IsLocal reports whether the host's namespace has the address a; it always has all of
	// 127.0.0.0/8.
	IsLocal(ctx context.Context, a netip.Addr) (bool, error)
	// Listeners returns the addresses at which sockets of the host's namespace receive packets to a
	// port: listening TCP and SCTP sockets, and unconnected UDP sockets. A dual-stack wildcard
	// socket has both unspecified addresses.
	Listeners(ctx context.Context, p Protocol, port uint16) ([]netip.Addr, error)
	// Devices returns the switch's ends of the existing links, each with its label. The label is
	// empty if the complete label is unknown.
	Devices(ctx context.Context) (map[string]string, error)
}

// PodLink is the link of a pod.
type PodLink struct {
	Device    string           // the switch's end
	Bridge    string           // of the switch; its MTU is the default
	Netns     string           // path of the pod's network namespace
	IfName    string           // the pod's end
	MAC       net.HardwareAddr // of the pod's end
	MTU       int              // bytes; 0: the MTU of the bridge
	RouteMTU  int              // bytes, for routes with Via but no MTU, if less than MTU; 0: none
	Addresses []netip.Prefix   // of the pod
	Routes    []PodRoute       // of the pod, through this link
	Label     string           // the owner, for messages; may be empty
	Ingress   PodRate          // packets that the pod receives
	Egress    PodRate          // packets that the pod sends
}

// PodRoute is a route within a pod.
type PodRoute struct {
	Prefix   netip.Prefix
	Via      netip.Addr // zero: on the link itself
	MTU      int        // bytes; 0: the MTU of the device
	AdvMSS   int        // bytes; 0: the kernel's
	Priority int        // 0: the kernel's
	Table    int        // 0: the main table
	Scope    *int       // of IPv4; nil: the kernel's default
	// Spare routes are added only if the pod has no route to Prefix yet.
	Spare bool
}

// PodRate limits traffic. The zero value is no limit.
type PodRate struct {
	Rate  uint64 // bits per second
	Burst uint64 // bits
}
