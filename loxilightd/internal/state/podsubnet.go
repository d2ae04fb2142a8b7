// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"slices"
)

// checkSubnets rejects a plan in which one of this node's pod networks is reached through a Peer,
// or in which a pod network is deleted or loses addresses that pods still use.
func (p *plan) checkSubnets() error {
	for _, o := range p.puts {
		for prefix, field := range peerPrefixes(o) {
			for n := range p.each(KindPodNetwork) {
				for i, subnet := range n.Value.(*PodNetwork).Subnets {
					if why := peerConflict(prefix, subnet, fmt.Sprintf("spec.subnets[%d] of %s", i, n.Key)); why != "" {
						return refuse(Conflict, o.Key, field, "%s: pods of this node cannot be behind a Peer: remove the prefix here, or change the subnet first", why)
					}
				}
			}
		}
		if o.Kind != KindPodNetwork || o.isOpaque() {
			continue
		}
		if err := p.checkPeerPrefixes(o); err != nil {
			return err
		}
	}
	for _, o := range p.replaced {
		if o.Kind != KindPodNetwork || o.isOpaque() {
			continue
		}
		if err := p.checkInhabited(o); err != nil {
			return err
		}
	}
	return nil
}

// peerPrefixes yields the prefixes that an object routes to another node, each with its field.
func peerPrefixes(o *Object) func(func(netip.Prefix, string) bool) {
	return func(yield func(netip.Prefix, string) bool) {
		switch v := o.Value.(type) {
		case *Peer:
			for i, prefix := range v.Prefixes {
				if !yield(prefix, fmt.Sprintf("spec.prefixes[%d]", i)) {
					return
				}
			}
		case *Route:
			if v.Peer != "" {
				yield(v.Prefix, "spec.prefix")
			}
		}
	}
}

// peerConflict returns why a prefix behind a Peer conflicts with a subnet of this node's pods, or
// an empty string if there is no conflict. A wider prefix does not conflict, because the longest
// match wins, and neither does the address of a pod that has moved to the Peer.
func peerConflict(prefix, subnet netip.Prefix, of string) string {
	if !subnet.Overlaps(prefix) || prefix.Bits() < subnet.Bits() {
		return ""
	}
	a, gateway := prefix.Addr(), subnet.Masked().Addr().Next()
	switch {
	case prefix == subnet:
		return fmt.Sprintf("%s is %s", prefix, of)
	case !prefix.IsSingleIP():
		return fmt.Sprintf("%s is part of %s, %s", prefix, subnet, of)
	case a == gateway || a == gateway.Next():
		return fmt.Sprintf("%s is reserved for the switch or the node in %s, %s", prefix, subnet, of)
	}
	return ""
}

// checkPeerPrefixes rejects a pod network if part of it is reached through a Peer.
func (p *plan) checkPeerPrefixes(network *Object) error {
	for _, kind := range []string{KindPeer, KindRoute} {
		for o := range p.each(kind) {
			for prefix, field := range peerPrefixes(o) {
				for i, subnet := range network.Value.(*PodNetwork).Subnets {
					if peerConflict(prefix, subnet, "") == "" {
						continue
					}
					what := fmt.Sprintf("%s is %s of %s", subnet, field, o.Key)
					if prefix != subnet {
						what = fmt.Sprintf("%s, %s of %s, is part of %s", prefix, field, o.Key, subnet)
					}
					return refuse(Conflict, network.Key, fmt.Sprintf("spec.subnets[%d]", i),
						"%s: pods of this node cannot be behind a Peer: remove the prefix there first, or choose another subnet for this node", what)
				}
			}
		}
	}
	return nil
}

// checkInhabited rejects deleting a pod network, or changing its subnets, while Endpoints depend on
// them.
func (p *plan) checkInhabited(was *Object) error {
	o := p.edit.get(was.Key)
	count, first := 0, ""
	for e := range p.each(KindEndpoint) {
		if p.isRollback && e.Revision <= p.restoredRevision || p.restored != nil && p.restored.find(e.Key) != nil {
			continue // the Endpoint also exists in that state, or has been checked in it
		}
		v := e.Value.(*Endpoint)
		i, ends := v.livesIn(was, o)
		if !ends {
			continue
		}
		if count++; count == 1 {
			first = e.Key.String()
			if o != nil {
				first += " with " + v.Addresses[i].String()
			}
		}
	}
	if count == 0 {
		return nil
	}
	field, one, many := "spec.subnets", "would have an address outside all subnets", "would have addresses outside all subnets"
	todo := "remove these pods first, or keep their subnets"
	if o == nil {
		field, one, many, todo = "", "is in it", "are in it", "remove these pods first"
	}
	if count == 1 {
		return refuse(Conflict, was.Key, field, "1 Endpoint %s, %s: %s", one, first, todo)
	}
	return refuse(Conflict, was.Key, field, "%d Endpoints %s, the first is %s: %s", count, many, first, todo)
}

// livesIn reports whether an Endpoint is in the pod network that was describes, but cannot be in it
// after the plan. after is the same network after the plan, or nil if the plan deletes it. address
// is the index of the Endpoint's first address that is no longer in any of its subnets, or -1 if
// there is none.
func (e *Endpoint) livesIn(was, after *Object) (address int, ends bool) {
	subnets := []netip.Prefix(nil)
	if after != nil {
		subnets = after.Value.(*PodNetwork).Subnets
	}
	within := func(list []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(list, func(subnet netip.Prefix) bool { return subnet.Contains(a) })
	}
	address = slices.IndexFunc(e.Addresses, func(a netip.Addr) bool {
		return within(was.Value.(*PodNetwork).Subnets, a) && !within(subnets, a)
	})
	named := after == nil && e.Network == was.Name
	return address, named || address >= 0 && (e.Network == "" || e.Network == was.Name)
}
