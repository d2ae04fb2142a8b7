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

// behind holds the prefixes that are reached through Peers, including prefixes of Routes to
// Peers.
type behind struct {
	peers   map[string]datapath.Peer // used by follow only; without single addresses of this node
	singles bool                     // used by follow only; single addresses are among the prefixes
	ways    atomic.Pointer[map[datapath.RouteName]way]
}

// way is the Peer to which a Route leads.
type way struct {
	peer datapath.PeerName
	err  error // why it leads to no Peer
}

// take applies changes, and returns them together with the Peers whose prefixes changed.
func (b *behind) take(s *state.Snapshot, changed []state.Key) []state.Key {
	if !slices.ContainsFunc(changed, func(k state.Key) bool {
		return k.Kind == state.KindPeer || k.Kind == state.KindRoute || k.Kind == state.KindEndpoint && b.singles
	}) {
		return changed
	}
	before := b.peers
	peers, refused := s.Peers()
	ways := map[datapath.RouteName]way{}
	for o := range s.After(state.KindRoute, "") {
		if r := o.Value.(*state.Route); r.Peer != "" {
			ways[datapath.RouteName(o.Name)] = way{datapath.PeerName(r.Peer), refused[o.Name]}
		}
	}
	peers, b.singles = notHere(s, peers)
	b.peers = peers
	b.ways.Store(&ways)
	told := map[string]bool{}
	for _, k := range changed {
		if k.Kind == state.KindPeer {
			told[k.Name] = true
		}
	}
	changed = slices.Clip(changed)
	for name, peer := range peers {
		if !told[name] && !reflect.DeepEqual(before[name], peer) {
			changed = append(changed, state.Key{Kind: state.KindPeer, Name: name})
		}
	}
	return changed
}

// way returns where a Route leads; false: not to a Peer.
func (b *behind) way(name datapath.RouteName) (way, bool) {
	ways := b.ways.Load()
	if ways == nil {
		return way{}, false
	}
	w, ok := (*ways)[name]
	return w, ok
}

// toPeers is the table of routes. Routes to Peers have no row of their own: they exist as soon as
// the Peer is realised.
type toPeers struct {
	datapath.Table[datapath.RouteName, datapath.Route]
	n *Node
}

// Update implements [datapath.Table].
func (t toPeers) Update(ctx context.Context, name datapath.RouteName, r datapath.Route) error {
	w, ok := t.n.behind.way(name)
	if !ok {
		return t.Table.Update(ctx, name, r)
	}
	if err := t.Table.Delete(ctx, name); err != nil { // it may have led elsewhere before
		return err
	}
	return t.n.leads(w)
}

// Verify implements [datapath.Table].
func (t toPeers) Verify(ctx context.Context, name datapath.RouteName) (bool, error) {
	if w, ok := t.n.behind.way(name); ok {
		return true, t.n.leads(w)
	}
	return t.Table.Verify(ctx, name)
}

// leads returns why a way does not lead to its Peer now.
func (n *Node) leads(w way) error {
	if w.err != nil {
		return w.err
	}
	if s, ok := n.peers.Status(w.peer); !ok || s.State != reconcile.Realised {
		return fmt.Errorf("the Peer %s is not Ready, see llcli get peer %[1]s: %w", w.peer, datapath.ErrAbsent)
	}
	return nil
}
