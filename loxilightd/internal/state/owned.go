// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"net/netip"
	"slices"
)

// checkOwned refuses a plan in which an Endpoint has an address that the switch or the node
// has by a Bridge or a PodNetwork: whoever is behind it could answer for the gateway.
func (p *plan) checkOwned() error {
	fresh := func(kind string) bool {
		return slices.ContainsFunc(p.puts, func(o *Object) bool { return o.Kind == kind })
	}
	all := fresh(KindBridge) || fresh(KindPodNetwork)
	if !all && !fresh(KindEndpoint) {
		return nil
	}
	owned := p.ownedAddresses()
	check := func(o *Object) error {
		for i, a := range o.Value.(*Endpoint).Addresses {
			if holder, ok := owned[a]; ok {
				return refuse(Conflict, o.Key, fmt.Sprintf("spec.addresses[%d]", i), "%s is the switch's or the node's own, by %s", a, holder)
			}
		}
		return nil
	}
	if all {
		for o := range p.each(KindEndpoint) {
			if err := check(o); err != nil {
				return err
			}
		}
		return nil
	}
	for _, o := range p.puts {
		if o.Kind == KindEndpoint {
			if err := check(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownedAddresses are those of the switch and the node, with whose they are, as the plan
// leaves it.
func (p *plan) ownedAddresses() map[netip.Addr]Key {
	owned := map[netip.Addr]Key{}
	for o := range p.each(KindBridge) {
		for _, a := range o.Value.(*Bridge).Addresses {
			owned[a.Addr()] = o.Key
		}
	}
	for o := range p.each(KindPodNetwork) {
		for _, subnet := range o.Value.(*PodNetwork).Subnets {
			gateway := subnet.Masked().Addr().Next() // the first is the switch's, the second the node's
			owned[gateway], owned[gateway.Next()] = o.Key, o.Key
		}
	}
	return owned
}

// each yields the objects of a kind as the plan leaves them.
func (p *plan) each(kind string) func(func(*Object) bool) {
	return func(yield func(*Object) bool) {
		for o := range p.edit.from(Key{kind, ""}) {
			if o.Kind != kind || !yield(o) {
				return
			}
		}
	}
}
