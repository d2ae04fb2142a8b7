// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"io"
	"net"
	"net/netip"
)

// SetName identifies a set of rules that is in force as a whole. One set of each kind exists.
type SetName string

// NodeSet is the name of the node's sets.
const NodeSet SetName = "node"

// Network is the part of the kernel's own forwarding that objects configure: the slow path.
// Additions by other programs (addresses, routes, ports, VLANs) are neither changed nor removed. If
// a row takes over a resource (a port or a prefix) from another row, the new owner is updated
// first, and Delete of the old owner must not change the resource.
type Network interface {
	Bridges() Table[BridgeName, Bridge]
	Routes() Table[RouteName, Route]
	Links() Table[LinkName, Link]
	// Endpoints makes the devices of endpoints ports of their bridges, and sets them up.
	Endpoints() Table[EndpointName, Endpoint]
	// Tunnels contains the tunnels' devices, Peers the routes to the prefixes behind peers.
	Tunnels() Table[TunnelName, Tunnel]
	Peers() Table[PeerName, Peer]
	// Maintain repairs the network namespace of the switch and the link between it and the host if
	// another program deleted them. The daemon calls it about once a second.
	Maintain(ctx context.Context) error
	// Repairs returns how often state that belongs to no row was repaired after an external
	// change.
	Repairs() uint64
	// Changed is signalled when another program has changed something that belongs to us.
	Changed() <-chan struct{}
	// Closer releases the network and leaves its state unchanged.
	io.Closer
}

// NetworkView selects a part of the kernel's own forwarding state, including other programs'
// entries.
type NetworkView uint8

// The views.
const (
	ViewBridges    NetworkView = iota // bridges and their ports
	ViewFDB                           // MACs and their bridge ports
	ViewNeighbours                    // addresses of neighbours on links, IPv4 and IPv6
	ViewRoutes                        // of the main table, IPv4 and IPv6
)

// NetworkLister lists the state of the kernel's network. Safe for concurrent use.
type NetworkLister interface {
	// List skips the first skip entries of the host's or the switch's network namespace, and
	// returns at most limit further ones, and whether more follow. If the switch has no namespace
	// of its own, or the namespace does not exist, the list is empty.
	List(ctx context.Context, v NetworkView, inSwitch bool, skip, limit int) ([]NetworkEntry, bool, error)
}

// NetworkEntry is one entry of a [NetworkView]; each field is used in the views named beside it,
// and zero in others.
type NetworkEntry struct {
	Device string // the bridge, or the device of a MAC, a neighbour or the only next hop
	Object string // name of the Bridge or Route that it belongs to; empty: it is not ours
	Origin string // the program that added it: loxilight, kernel, other, or a routing protocol

	Up            bool           // bridges
	MTU           int            // bridges, routes; 0: none of its own
	VLANFiltering bool           // bridges
	Addresses     []netip.Prefix // bridges
	Ports         []NetworkPort  // bridges

	MAC     net.HardwareAddr // bridges, FDB, resolved neighbours
	VLAN    uint16           // FDB; 0: none
	Bridge  string           // FDB: name of its device
	State   string           // FDB: learned, static, local; neighbours: as in ip neighbour
	Address netip.Addr       // neighbours

	Route *Route // routes; Switch is not set
}

// NetworkPort is the current state of a bridge port.
type NetworkPort struct {
	BridgePort
	Up bool
}
