// SPDX-License-Identifier: Apache-2.0

package state

import (
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
)

// ResolversOf returns the network of an Endpoint, and the DNS servers from whose responses names are
// learnt there. network is empty if there are none, or if it is ambiguous to which network the Endpoint
// belongs.
func (s *Snapshot) ResolversOf(e *Endpoint) (network string, resolvers []netip.Addr) {
	o := s.networkOf(e)
	if o == nil {
		return "", nil
	}
	switch v := o.Value.(type) {
	case *PodNetwork:
		resolvers = v.Resolvers
	case *Bridge:
		resolvers = v.Resolvers
	}
	if len(resolvers) == 0 {
		return "", nil
	}
	return o.Key.String(), resolvers
}

// networkOf returns the PodNetwork or Bridge of an Endpoint: the one that it names, otherwise the only one.
func (s *Snapshot) networkOf(e *Endpoint) *Object {
	for _, kind := range []string{KindPodNetwork, KindBridge} {
		if e.Network != "" {
			if o, ok := s.Get(Key{kind, e.Network}); ok {
				return o
			}
			continue
		}
		var only *Object
		for o := range s.After(kind, "") {
			if only != nil {
				return nil
			}
			only = o
		}
		if only != nil {
			return only
		}
	}
	return nil
}

// checkNames rejects a plan with more names in Policies than a node may have.
func (p *plan) checkNames() error {
	var at *Object
	for _, o := range p.puts {
		if v, ok := o.Value.(*Policy); ok {
			for range v.Names() {
				at = o
				break
			}
		}
	}
	if at == nil {
		return nil
	}
	all := map[string]bool{}
	for o := range p.each(KindPolicy) {
		for name := range o.Value.(*Policy).Names() {
			all[name] = true
		}
	}
	if len(all) <= datapath.NameMax {
		return nil
	}
	return refuse(Capacity, at.Key, "", "the Policies of a node have at most %d names: %d with this change; delete some, or use *.NAME for several names",
		datapath.NameMax, len(all))
}
