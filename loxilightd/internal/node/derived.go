// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// derivation contains the rows that are derived from PodNetworks, Bridges, Tunnels and Peers.
type derivation struct {
	bridges *derivedRows[datapath.BridgeName, datapath.Bridge]
	links   *derivedRows[datapath.LinkName, datapath.Link]
	ports   *derivedRows[datapath.PortName, datapath.Port]
	routes  *derivedRows[datapath.RouteName, datapath.Route]
	peers   *derivedRows[datapath.PeerName, datapath.Peer]
}

// derivedFrom are the kinds of objects on which derived rows depend.
var derivedFrom = []string{state.KindPodNetwork, state.KindBridge, state.KindInterface, state.KindRoute, state.KindTunnel, state.KindPeer}

func isDerivedFrom(changed []state.Key) bool {
	return slices.ContainsFunc(changed, func(k state.Key) bool { return slices.Contains(derivedFrom, k.Kind) })
}

// derive derives all rows again; the next apply of each table passes its rows to the reconciler.
func (n *Node) derive(s *state.Snapshot) {
	v := n.noRows(s)
	if len(s.PodNetworks()) > 0 {
		n.derivedMTU = n.podMTU(s)
		n.derivePods(s, v, n.peerRoutes.peers, n.derivedMTU)
	}
	n.deriveBridgePorts(s, v)
	n.bridges.derive(v.bridges)
	n.links.derive(v.links)
	n.ports.derive(v.ports)
	n.routes.derive(v.routes)
	n.peers.derive(v.peers)
}

// noRows returns a derivation without any rows.
func (n *Node) noRows(s *state.Snapshot) *derivation {
	return &derivation{n.bridges.none(s), n.links.none(s), n.ports.none(s), n.routes.none(s), n.peers.none(s)}
}
