// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// pathMTU returns the size of the largest packet that can be sent to a Peer, before encapsulation,
// as reported by routers in the underlay. It returns 0 if no router has reported a value below the
// tunnel's MTU.
func (n *Node) pathMTU(s *state.Snapshot, name string, tunnel datapath.TunnelName) int {
	telemetry := n.opts.Plane.Telemetry()
	is, ok := telemetry.PeerState(datapath.PeerName(name))
	o, there := s.Get(state.Key{Kind: state.KindTunnel, Name: string(tunnel)})
	if !ok || is.PathMTU == 0 || !there {
		return 0
	}
	t := o.Value.(*state.Tunnel).Tunnel
	mtu := is.PathMTU - t.Overhead(is.Underlay.Is6())
	if device, ok := telemetry.TunnelState(tunnel); ok && mtu >= device.MTU {
		return 0
	}
	return mtu
}

// pathMTUsChanged updates the path MTUs to Peers, and returns the Peers whose path MTU has changed.
func (n *Node) pathMTUsChanged(s *state.Snapshot) (changed []state.Key) {
	now := map[string]int{}
	for o := range s.After(state.KindPeer, "") {
		tunnel := o.Value.(*state.Peer).Tunnel
		if tunnel == "" {
			continue
		}
		mtu := n.pathMTU(s, o.Name, tunnel)
		if mtu != 0 {
			now[o.Name] = mtu
		}
		if mtu != n.paths[o.Name] {
			changed = append(changed, o.Key)
		}
	}
	n.paths = now
	return changed
}

// peer returns the desired state of a Peer.
func (n *Node) peer(o *state.Object) datapath.Peer {
	p := n.peerRoutes.peers[o.Name]
	p.MTU = n.paths[o.Name]
	return p
}
