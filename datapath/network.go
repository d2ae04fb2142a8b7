// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"io"
)

// SetName identifies a set of rules that is in force as a whole. There is one of each kind.
type SetName string

// NodeSet is the name of the sets of the node.
const NodeSet SetName = "node"

// Network is the kernel's own forwarding as far as objects ask for it: the slow path.
// What others add (addresses, routes, ports, VLANs) is neither changed nor removed. Where
// one row takes over what another had, a port or a prefix, the one that takes it comes
// first, and Delete of the other must leave it alone.
type Network interface {
	Bridges() Table[BridgeName, Bridge]
	Routes() Table[RouteName, Route]
	// Maintain repairs the network namespace of the switch and the link between it
	// and the host where somebody deleted them. The daemon calls it about once a second.
	Maintain(ctx context.Context) error
	// Changed is signalled when something that is ours was changed by a stranger.
	Changed() <-chan struct{}
	// Closer lets go and leaves everything as it is.
	io.Closer
}
