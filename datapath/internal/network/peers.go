// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/datapath"
)

// peerMark begins the names of routes that belong to peers, and not to a Route.
const peerMark = "peer "

// peers is the table of peers, as far as the kernel's own forwarding is concerned: a
// route to each prefix, in the switch by the device of the tunnel, or without one in the
// host's namespace by the peer's address.
type peers struct{ n *Network }

// routeName is what the route of a peer to a prefix is called.
func routeName(name datapath.PeerName, prefix netip.Prefix) datapath.RouteName {
	return datapath.RouteName(peerMark + string(name) + " " + prefix.String())
}

// ofPeer returns the peer that has a route; false if none has.
func ofPeer(route string) (datapath.PeerName, bool) {
	rest, ok := strings.CutPrefix(route, peerMark)
	name, _, _ := strings.Cut(rest, " ")
	return datapath.PeerName(name), ok
}

// routes returns the routes to a peer.
func (p peers) routes(name datapath.PeerName, value datapath.Peer) (map[datapath.RouteName]datapath.Route, error) {
	all := make(map[datapath.RouteName]datapath.Route, len(value.Prefixes))
	var device string
	if value.Tunnel != "" {
		t, ok := p.n.tunnels.get(value.Tunnel)
		if !ok {
			return nil, absent("tunnel %q", value.Tunnel)
		}
		device = t.Device
	}
	for _, prefix := range value.Prefixes {
		r := datapath.Route{Prefix: prefix, Switch: value.Tunnel != ""}
		if value.Tunnel != "" {
			r.NextHops = []datapath.NextHop{{Device: device, Weight: 1}}
		} else {
			i := slices.IndexFunc(value.Underlay, func(a netip.Addr) bool { return a.Is4() == prefix.Addr().Is4() })
			if i < 0 {
				return nil, fmt.Errorf("prefix %s: no underlay address is of its family, and there is no tunnel: %w", prefix, datapath.ErrUnsupported)
			}
			r.NextHops = []datapath.NextHop{{Via: value.Underlay[i], Weight: 1}}
		}
		all[routeName(name, prefix)] = r
	}
	return all, nil
}

// Update implements [datapath.Table].
func (p peers) Update(ctx context.Context, name datapath.PeerName, value datapath.Peer) error {
	p.n.tunnels.peer(name, &value)
	if value.Tunnel != "" {
		if err := p.n.tunnels.peerChanged(value.Tunnel); err != nil {
			return err
		}
	}
	wanted, err := p.routes(name, value)
	if err != nil {
		return err
	}
	for _, route := range slices.Sorted(maps.Keys(wanted)) {
		err = errors.Join(err, p.n.routes.Update(ctx, route, wanted[route]))
	}
	if err != nil {
		return err
	}
	return p.removeBut(ctx, name, wanted)
}

// removeBut removes the routes to a peer that are not among those to be kept.
func (p peers) removeBut(ctx context.Context, name datapath.PeerName, keep map[datapath.RouteName]datapath.Route) error {
	p.n.journal.mu.Lock()
	var gone []datapath.RouteName
	for route := range p.n.journal.held.Routes {
		route = strings.TrimSuffix(route, before(""))
		if of, ok := ofPeer(route); !ok || of != name {
			continue
		}
		if _, kept := keep[datapath.RouteName(route)]; !kept {
			gone = append(gone, datapath.RouteName(route))
		}
	}
	p.n.journal.mu.Unlock()
	for route := range p.n.routes.wantedOf(name) {
		if _, kept := keep[route]; !kept {
			gone = append(gone, route)
		}
	}
	var err error
	for _, route := range gone {
		err = errors.Join(err, p.n.routes.Delete(ctx, route))
	}
	return err
}

// wantForPeer notes that a route is wanted, or not any more, if it is a peer's. r.mu is held.
func (r *routes) wantForPeer(name datapath.RouteName, wanted bool) {
	peer, ok := ofPeer(string(name))
	switch {
	case !ok:
	case !wanted:
		if delete(r.ofPeers[peer], name); len(r.ofPeers[peer]) == 0 {
			delete(r.ofPeers, peer)
		}
	case r.ofPeers[peer] == nil:
		r.ofPeers[peer] = map[datapath.RouteName]bool{name: true}
	default:
		r.ofPeers[peer][name] = true
	}
}

// wantedOf returns the routes to a peer that Update was told.
func (r *routes) wantedOf(name datapath.PeerName) map[datapath.RouteName]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.ofPeers[name])
}

// Delete implements [datapath.Table].
func (p peers) Delete(ctx context.Context, name datapath.PeerName) error {
	p.n.tunnels.peer(name, nil)
	return p.removeBut(ctx, name, nil)
}

// Keys implements [datapath.Table].
func (p peers) Keys(context.Context) iter.Seq2[datapath.PeerName, error] {
	all := map[datapath.PeerName]bool{}
	p.n.journal.mu.Lock()
	for route := range p.n.journal.held.Routes {
		if name, ok := ofPeer(route); ok {
			all[name] = true
		}
	}
	p.n.journal.mu.Unlock()
	names := slices.Sorted(maps.Keys(all))
	return func(yield func(datapath.PeerName, error) bool) {
		for _, name := range names {
			if !yield(name, nil) {
				return
			}
		}
	}
}

// Verify implements [datapath.Table].
func (p peers) Verify(ctx context.Context, name datapath.PeerName) (bool, error) {
	p.n.tunnels.mu.Lock()
	value, ok := p.n.tunnels.peers[name]
	p.n.tunnels.mu.Unlock()
	if !ok {
		return false, nil
	}
	wanted, err := p.routes(name, value)
	if err != nil {
		return false, nil // Update says why
	}
	for route, v := range wanted {
		p.n.routes.mu.Lock()
		told, ok := p.n.routes.wanted[route]
		p.n.routes.mu.Unlock()
		if !ok || !slices.Equal(told.NextHops, v.NextHops) || told.Switch != v.Switch {
			return false, nil
		}
		if ok, err := p.n.routes.Verify(ctx, route); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}
