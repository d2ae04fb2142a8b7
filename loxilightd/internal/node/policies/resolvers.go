// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"net/netip"

	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ResolversOf returns the network of an Endpoint, and the DNS servers from whose responses names are
// learnt there. network is empty without resolvers, or if it is ambiguous to which network the Endpoint
// belongs.
func ResolversOf(s *state.Snapshot, e *state.Endpoint) (network string, resolvers []netip.Addr) {
	o := networkOf(s, e)
	if o == nil || len(resolversOf(o)) == 0 {
		return "", nil
	}
	return o.Key.String(), resolversOf(o)
}

// networkOf returns the PodNetwork or Bridge that an Endpoint names, otherwise the only PodNetwork or
// Bridge of the node; nil: no such object exists.
func networkOf(s *state.Snapshot, e *state.Endpoint) *state.Object {
	for _, kind := range networkKinds {
		if e.Network != "" {
			if o, ok := s.Get(state.Key{Kind: kind, Name: e.Network}); ok {
				return o
			}
			continue
		}
		var only *state.Object
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

// networkKinds are the kinds of networks of Endpoints. The first has precedence.
var networkKinds = []string{state.KindPodNetwork, state.KindBridge}

// resolversOf returns the resolvers of a PodNetwork or Bridge.
func resolversOf(o *state.Object) []netip.Addr {
	switch v := o.Value.(type) {
	case *state.PodNetwork:
		return v.Resolvers
	case *state.Bridge:
		return v.Resolvers
	}
	return nil
}

// resolversIn returns the resolvers of all networks that have some.
func resolversIn(s *state.Snapshot) map[string][]netip.Addr {
	all := make(map[string][]netip.Addr)
	for _, kind := range networkKinds {
		for o := range s.After(kind, "") {
			if list := resolversOf(o); len(list) > 0 {
				all[o.Key.String()] = list
			}
		}
	}
	return all
}
