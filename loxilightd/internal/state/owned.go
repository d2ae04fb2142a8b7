// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"iter"
	"net/netip"
)

// checkOwned rejects a plan in which an Endpoint has an address that the switch or the node has
// because of a Bridge or a PodNetwork: such an Endpoint could answer for the gateway.
func (p *plan) checkOwned() error {
	var fresh []*Object // new or changed objects with such addresses
	var owned map[netip.Addr]Key
	for _, o := range p.puts {
		switch v := o.Value.(type) {
		case *Bridge, *PodNetwork:
			fresh = append(fresh, o)
		case *Endpoint:
			if owned == nil {
				owned = p.edit.owned()
			}
			for i, a := range v.Addresses {
				if holder, ok := owned[a]; ok {
					return refuse(Conflict, o.Key, fmt.Sprintf("spec.addresses[%d]", i), "%s is an address of the switch or the node (%s)", a, holder)
				}
			}
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	endpoints := map[netip.Addr]Key{}
	for o := range p.each(KindEndpoint) {
		for _, a := range o.Value.(*Endpoint).Addresses {
			endpoints[a] = o.Key
		}
	}
	for _, o := range fresh {
		for a, field := range ownedBy(o.Value) {
			if holder, ok := endpoints[a]; ok {
				return refuse(Conflict, o.Key, field, "%s is an address of %s and cannot become an address of the switch or the node: remove it there first, or choose another", a, holder)
			}
		}
	}
	return nil
}

// ownedBy yields the addresses that the switch or the node has because of an object, each with the
// field that sets it.
func ownedBy(v Value) iter.Seq2[netip.Addr, string] {
	return func(yield func(netip.Addr, string) bool) {
		switch v := v.(type) {
		case *Bridge:
			for i, a := range v.Addresses {
				if !yield(a.Addr(), fmt.Sprintf("spec.addresses[%d]", i)) {
					return
				}
			}
		case *PodNetwork:
			for i, subnet := range v.Subnets {
				// The first address is the switch's, the second the node's.
				gateway := subnet.Masked().Addr().Next()
				field := fmt.Sprintf("spec.subnets[%d]", i)
				if !yield(gateway, field) || !yield(gateway.Next(), field) {
					return
				}
			}
		}
	}
}

// owned returns the addresses of the switch and the node, each with the object that sets it.
func (t *table) owned() map[netip.Addr]Key {
	owned := map[netip.Addr]Key{}
	for _, kind := range []string{KindBridge, KindPodNetwork} {
		for o := range t.each(kind) {
			for a := range ownedBy(o.Value) {
				owned[a] = o.Key
			}
		}
	}
	return owned
}

// each yields the objects of a kind in the state after the plan.
func (p *plan) each(kind string) iter.Seq[*Object] { return p.edit.each(kind) }

// AddressHolder returns the object that prevents any other Endpoint from having an address. It
// considers the current state and the state after a rollback of the pending change.
func (s *Store) AddressHolder(a netip.Addr) (k Key, held bool) {
	c := claim{what: claimAddress, prefix: netip.PrefixFrom(a, a.BitLen())}
	if k, held = s.holder(c); held {
		return k, true
	}
	if k, held = s.Snapshot().table.owned()[a]; held {
		return k, true
	}
	w := s.waiting.Load()
	if w == nil {
		return Key{}, false
	}
	if k, held = w.claims[c]; held {
		return k, true
	}
	k, held = w.back.owned()[a]
	return k, held
}
