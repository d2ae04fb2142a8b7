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

// A pod that moves to another node may keep its address. On that node, the address is outside all
// subnets of local pods; on this node, it is inside a local subnet, but behind a Peer.

// roamingAddrs returns those addresses of an Endpoint in a local PodNetwork that are outside all
// subnets of this node's pods.
func roamingAddrs(s *state.Snapshot, e *state.Endpoint) (roaming []netip.Addr) {
	if _, ok := networkOf(s, e); !ok {
		return nil
	}
	for _, a := range e.Addresses {
		if !a.IsLinkLocalUnicast() && !isPods(s, a) {
			roaming = append(roaming, a)
		}
	}
	return roaming
}

// networkOf returns the name of the PodNetwork of an Endpoint; it returns false if the Endpoint is
// not in a PodNetwork.
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

// roamingRoutes returns the routes to the addresses of an Endpoint that are outside all subnets of
// this node's pods: in the switch, through the bridge; on the host, through the switch. A
// configured Route replaces such a route.
func (n *Node) roamingRoutes(s *state.Snapshot, e *state.Endpoint, bridge string) (routes []datapath.Route) {
	merged := n.opts.Devices.Host == ""
	for _, a := range roamingAddrs(s, e) {
		p := netip.PrefixFrom(a, a.BitLen())
		if !isConfigured(s, p, true) && (!merged || !isConfigured(s, p, false)) {
			routes = append(routes, datapath.Route{Prefix: p, Switch: true, NextHops: []datapath.NextHop{{Device: bridge, Weight: 1}}})
		}
		via := podAddress(s, ipam.Gateway, a.Is4())
		if !merged && via.IsValid() && !isConfigured(s, p, false) {
			routes = append(routes, datapath.Route{Prefix: p, NextHops: []datapath.NextHop{{Via: via, Device: n.opts.Devices.Host, Weight: 1}}})
		}
	}
	return routes
}

// roamingPrefixes returns the addresses of one family that Endpoints in a PodNetwork have and that
// are outside all subnets of this node's pods.
func roamingPrefixes(s *state.Snapshot, network string, is4 bool) (list []netip.Prefix) {
	for o := range s.After(state.KindEndpoint, "") {
		e := o.Value.(*state.Endpoint)
		if in, _ := networkOf(s, e); in != network {
			continue
		}
		for _, a := range roamingAddrs(s, e) {
			if a.Is4() == is4 {
				list = append(list, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return list
}

// roamingPods are the Endpoints with addresses outside all subnets of this node's pods. It is used
// by follow only.
type roamingPods map[string][]netip.Addr

// take applies changes, and reports whether the roaming pods changed.
func (r roamingPods) take(s *state.Snapshot, changed []state.Key) (updated bool) {
	put := func(name string, addrs []netip.Addr) {
		if slices.Equal(r[name], addrs) {
			return
		}
		updated = true
		if r[name] = addrs; len(addrs) == 0 {
			delete(r, name)
		}
	}
	all := slices.ContainsFunc(changed, func(k state.Key) bool { return k.Kind == state.KindPodNetwork })
	for o := range s.After(state.KindEndpoint, "") {
		if !all {
			break
		}
		put(o.Name, roamingAddrs(s, o.Value.(*state.Endpoint)))
	}
	for _, k := range changed {
		if k.Kind != state.KindEndpoint {
			continue
		}
		var addrs []netip.Addr
		if o, ok := s.Get(k); ok {
			addrs = roamingAddrs(s, o.Value.(*state.Endpoint))
		}
		put(k.Name, addrs)
	}
	return updated
}

// withoutLocalAddrs returns peers without single addresses that Endpoints of this node have: a
// local pod is not behind a Peer, whichever was configured first. singles reports whether peers
// contain single addresses.
func withoutLocalAddrs(s *state.Snapshot, peers map[string]datapath.Peer) (_ map[string]datapath.Peer, singles bool) {
	var local map[netip.Addr]*state.Object
	isLocal := func(p netip.Prefix) bool { return p.IsSingleIP() && local[p.Addr()] != nil }
	left, cloned := peers, false
	for name, peer := range peers {
		if !slices.ContainsFunc(peer.Prefixes, netip.Prefix.IsSingleIP) {
			continue
		}
		if local == nil {
			singles, local = true, s.Endpoints()
		}
		if !slices.ContainsFunc(peer.Prefixes, isLocal) {
			continue
		}
		if !cloned {
			left, cloned = maps.Clone(peers), true // peers belongs to the snapshot
		}
		peer.Prefixes = slices.DeleteFunc(slices.Clone(peer.Prefixes), isLocal)
		left[name] = peer
	}
	return left, singles
}
