// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// peerRoutes holds the prefixes that are reached through Peers, including the prefixes of Routes to
// Peers.
type peerRoutes struct {
	peers   map[string]datapath.Peer // used by follow only; without single addresses that belong to this node
	singles bool                     // used by follow only; the prefixes contain single addresses
	byRoute atomic.Pointer[map[datapath.RouteName]peerRoute]
}

// peerRoute is the Peer to which a Route leads.
type peerRoute struct {
	peer datapath.PeerName
	err  error // why the Route leads to no Peer
}

// take applies changes, and returns them together with the Peers whose prefixes have changed.
func (p *peerRoutes) take(s *state.Snapshot, changed []state.Key) []state.Key {
	if !slices.ContainsFunc(changed, func(k state.Key) bool {
		return k.Kind == state.KindPeer || k.Kind == state.KindRoute || k.Kind == state.KindEndpoint && p.singles
	}) {
		return changed
	}
	before := p.peers
	peers, refused := s.Peers()
	byRoute := map[datapath.RouteName]peerRoute{}
	for o := range s.After(state.KindRoute, "") {
		if r := o.Value.(*state.Route); r.Peer != "" {
			byRoute[datapath.RouteName(o.Name)] = peerRoute{datapath.PeerName(r.Peer), refused[o.Name]}
		}
	}
	peers, p.singles = withoutLocalAddrs(s, peers)
	p.peers = peers
	p.byRoute.Store(&byRoute)
	listed := map[string]bool{}
	for _, k := range changed {
		if k.Kind == state.KindPeer {
			listed[k.Name] = true
		}
	}
	changed = slices.Clip(changed)
	for name, peer := range peers {
		if !listed[name] && !reflect.DeepEqual(before[name], peer) {
			changed = append(changed, state.Key{Kind: state.KindPeer, Name: name})
		}
	}
	return changed
}

// find returns the Peer to which a Route leads; it returns false if the Route does not lead to a
// Peer.
func (p *peerRoutes) find(name datapath.RouteName) (peerRoute, bool) {
	byRoute := p.byRoute.Load()
	if byRoute == nil {
		return peerRoute{}, false
	}
	w, ok := (*byRoute)[name]
	return w, ok
}

// routeTable is the table of routes. Routes to Peers have no row of their own: they are in force as
// soon as the Peer is done.
type routeTable struct {
	datapath.Table[datapath.RouteName, datapath.Route]
	n *Node
}

// Update implements [datapath.Table].
func (t routeTable) Update(ctx context.Context, name datapath.RouteName, r datapath.Route) error {
	w, ok := t.n.peerRoutes.find(name)
	if !ok {
		return t.Table.Update(ctx, name, r)
	}
	if err := t.Table.Delete(ctx, name); err != nil { // the Route may previously have led elsewhere
		return err
	}
	return t.n.checkPeerRoute(w)
}

// Verify implements [datapath.Table].
func (t routeTable) Verify(ctx context.Context, name datapath.RouteName) (bool, error) {
	if w, ok := t.n.peerRoutes.find(name); ok {
		return true, t.n.checkPeerRoute(w)
	}
	return t.Table.Verify(ctx, name)
}

// checkPeerRoute returns why a Route does not currently lead to its Peer.
func (n *Node) checkPeerRoute(w peerRoute) error {
	if w.err != nil {
		return w.err
	}
	if s, ok := n.peers.Status(w.peer); !ok || s.State != reconcile.Done {
		return fmt.Errorf("the Peer %s is not Ready, see llcli get peer %[1]s: %w", w.peer, datapath.ErrAbsent)
	}
	return nil
}
