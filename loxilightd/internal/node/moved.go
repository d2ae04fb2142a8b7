// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// A pod that moves to another node may keep its address. There the address is outside all subnets
// of that node's pods; here it is inside a local subnet, but behind a Peer.

// guestsOf returns the addresses of an Endpoint in a local PodNetwork that are outside all
// subnets of this node's pods.
func guestsOf(s *state.Snapshot, e *state.Endpoint) (guests []netip.Addr) {
	if _, ok := networkOf(s, e); !ok {
		return nil
	}
	for _, a := range e.Addresses {
		if !a.IsLinkLocalUnicast() && !isPods(s, a) {
			guests = append(guests, a)
		}
	}
	return guests
}

// networkOf returns the name of the PodNetwork of an Endpoint; false: not in a PodNetwork.
func networkOf(s *state.Snapshot, e *state.Endpoint) (string, bool) {
	if e.Network != "" {
		_, ok := s.Get(state.Key{Kind: state.KindPodNetwork, Name: e.Network})
		return e.Network, ok
	}
	for o := range s.After(state.KindPodNetwork, "") {
		return o.Name, true
	}
	return "", false
}

// isPods reports whether an address is in a subnet of this node's pods.
func isPods(s *state.Snapshot, a netip.Addr) bool {
	for o := range s.After(state.KindPodNetwork, "") {
		if slices.ContainsFunc(o.Value.(*state.PodNetwork).Subnets, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return true
		}
	}
	return false
}

// guestRoutes returns the routes to the addresses of an Endpoint that are outside all subnets of
// this node's pods: in the switch by the bridge, on the host by the switch. A configured Route
// replaces them.
func (n *Node) guestRoutes(s *state.Snapshot, e *state.Endpoint, bridge string) (routes []datapath.Route) {
	merged := n.opts.Devices.Host == ""
	for _, a := range guestsOf(s, e) {
		p := netip.PrefixFrom(a, a.BitLen())
		if !isTold(s, p, true) && (!merged || !isTold(s, p, false)) {
			routes = append(routes, datapath.Route{Prefix: p, Switch: true, NextHops: []datapath.NextHop{{Device: bridge, Weight: 1}}})
		}
		via := gatewayFor(s, a)
		if !merged && via.IsValid() && !isTold(s, p, false) {
			routes = append(routes, datapath.Route{Prefix: p, NextHops: []datapath.NextHop{{Via: via, Device: n.opts.Devices.Host, Weight: 1}}})
		}
	}
	return routes
}

// gatewayFor returns the switch's address in the pod network, of the family of a.
func gatewayFor(s *state.Snapshot, a netip.Addr) netip.Addr {
	for o := range s.After(state.KindPodNetwork, "") {
		for _, subnet := range o.Value.(*state.PodNetwork).Subnets {
			if subnet.Addr().Is4() == a.Is4() {
				return ipam.Gateway(subnet)
			}
		}
	}
	return netip.Addr{}
}

// guestsIn returns the addresses of a family that Endpoints of a PodNetwork have outside all
// subnets of this node's pods.
func guestsIn(s *state.Snapshot, network string, is4 bool) (list []netip.Prefix) {
	for o := range s.After(state.KindEndpoint, "") {
		e := o.Value.(*state.Endpoint)
		if in, _ := networkOf(s, e); in != network {
			continue
		}
		for _, a := range guestsOf(s, e) {
			if a.Is4() == is4 {
				list = append(list, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return list
}

// guests are the Endpoints with addresses outside all subnets of this node's pods. Used by follow
// only.
type guests map[string][]netip.Addr

// take applies changes, and reports whether the guests changed.
func (g guests) take(s *state.Snapshot, changed []state.Key) (turned bool) {
	put := func(name string, addrs []netip.Addr) {
		if slices.Equal(g[name], addrs) {
			return
		}
		turned = true
		if g[name] = addrs; len(addrs) == 0 {
			delete(g, name)
		}
	}
	all := slices.ContainsFunc(changed, func(k state.Key) bool { return k.Kind == state.KindPodNetwork })
	for o := range s.After(state.KindEndpoint, "") {
		if !all {
			break
		}
		put(o.Name, guestsOf(s, o.Value.(*state.Endpoint)))
	}
	for _, k := range changed {
		if k.Kind != state.KindEndpoint {
			continue
		}
		var addrs []netip.Addr
		if o, ok := s.Get(k); ok {
			addrs = guestsOf(s, o.Value.(*state.Endpoint))
		}
		put(k.Name, addrs)
	}
	return turned
}

// notHere returns peers without the single addresses that Endpoints of this node have: a local
// pod is not behind a Peer, whichever was configured first. singles: peers contain single
// addresses.
func notHere(s *state.Snapshot, peers map[string]datapath.Peer) (_ map[string]datapath.Peer, singles bool) {
	var here map[netip.Addr]*state.Object
	isHere := func(p netip.Prefix) bool { return p.IsSingleIP() && here[p.Addr()] != nil }
	left, cloned := peers, false
	for name, peer := range peers {
		if !slices.ContainsFunc(peer.Prefixes, netip.Prefix.IsSingleIP) {
			continue
		}
		if here == nil {
			singles, here = true, s.Endpoints()
		}
		if !slices.ContainsFunc(peer.Prefixes, isHere) {
			continue
		}
		if !cloned {
			left, cloned = maps.Clone(peers), true // peers belongs to the snapshot
		}
		peer.Prefixes = slices.DeleteFunc(slices.Clone(peer.Prefixes), isHere)
		left[name] = peer
	}
	return left, singles
}
