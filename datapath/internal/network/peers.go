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

	"github.com/loxilight/loxilight/datapath"
)

// peers is the table of peers, restricted to the kernel's own forwarding: a route to each prefix.
// With a tunnel, the route is in the switch and leads through the tunnel's device; without one, it
// is in the host's namespace and leads through the peer's address.
type peers struct{ n *Network }

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
	if value.Here {
		return all, nil // pods on this node are on-link
	}
	for _, prefix := range value.Prefixes {
		r := datapath.Route{Prefix: prefix, Switch: value.Tunnel != ""}
		if value.Tunnel != "" {
			r.NextHops, r.MTU = []datapath.NextHop{{Device: device, Weight: 1}}, mtuTo(value.MTU, prefix)
		} else {
			i := slices.IndexFunc(value.Underlay, func(a netip.Addr) bool { return a.Is4() == prefix.Addr().Is4() })
			if i < 0 {
				return nil, fmt.Errorf("prefix %s: no underlay address of its family, and no tunnel: %w", prefix, datapath.ErrUnsupported)
			}
			r.NextHops = []datapath.NextHop{{Via: value.Underlay[i], Weight: 1}}
		}
		all[peerOwner(name).route(prefix.String())] = r
	}
	return all, nil
}

// mtuTo returns the MTU of a route to a prefix, or 0 if the route has no MTU of its own. The
// minimum for IPv6 is 1280.
func mtuTo(mtu int, prefix netip.Prefix) uint32 {
	const least6 = 1280
	if mtu != 0 && prefix.Addr().Is6() {
		mtu = max(mtu, least6)
	}
	return uint32(mtu)
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
	return p.n.routes.removeBut(ctx, peerOwner(name), wanted)
}

// Delete implements [datapath.Table].
func (p peers) Delete(ctx context.Context, name datapath.PeerName) error {
	p.n.tunnels.peer(name, nil)
	return p.n.routes.removeBut(ctx, peerOwner(name), nil)
}

// Keys implements [datapath.Table].
func (p peers) Keys(context.Context) iter.Seq2[datapath.PeerName, error] {
	return keysOf[datapath.PeerName](slices.Sorted(maps.Keys(p.n.journal.routeOwners(peerMark))))
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
		return false, nil // Update reports the error
	}
	for route, v := range wanted {
		p.n.routes.mu.Lock()
		configured, ok := p.n.routes.wanted[route]
		p.n.routes.mu.Unlock()
		if !ok || !slices.Equal(configured.NextHops, v.NextHops) || configured.Switch != v.Switch || configured.MTU != v.MTU {
			return false, nil
		}
		if ok, err := p.n.routes.Verify(ctx, route); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}
