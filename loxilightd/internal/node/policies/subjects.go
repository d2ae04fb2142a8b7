// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"maps"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// Endpoints is a set of names of Endpoints.
type Endpoints map[datapath.EndpointName]bool

// SubjectsOf returns the subjects of each policy in the state next, given the subjects in the state
// before. It evaluates changed objects only, and does not change the previous result.
func SubjectsOf(applied map[string]Endpoints, before, next *policy.State) map[string]Endpoints {
	result := make(map[string]Endpoints, len(next.Policies))
	moved := map[string]bool{} // Entities that may be selected by other policies than before
	for name, e := range next.Entities {
		if e.Endpoint != "" && (before.Entities[name] != e || before.Namespaces[e.Namespace] != next.Namespaces[e.Namespace]) {
			moved[name] = true
		}
	}
	var left []datapath.EndpointName
	for name, e := range before.Entities {
		if e.Endpoint != "" && next.Entities[name] == nil {
			left = append(left, datapath.EndpointName(e.Endpoint))
		}
	}
	for name, p := range next.Policies {
		if before.Policies[name] != p {
			result[name] = Endpoints{}
			for _, e := range next.Entities {
				result[name].evaluate(next, p, e)
			}
			continue
		}
		is := applied[name]
		if len(moved)+len(left) > 0 {
			is = maps.Clone(is)
			for _, endpoint := range left {
				delete(is, endpoint)
			}
			for entity := range moved {
				is.evaluate(next, p, next.Entities[entity])
			}
		}
		result[name] = is
	}
	return result
}

// evaluate adds or removes an Entity's Endpoint.
func (all Endpoints) evaluate(s *policy.State, p *policy.Policy, e *policy.Entity) {
	if e.Endpoint == "" {
		return
	}
	delete(all, datapath.EndpointName(e.Endpoint))
	if slices.ContainsFunc(p.AppliedTo, func(sel policy.Selector) bool { return s.Selects(&sel, e) }) {
		all[datapath.EndpointName(e.Endpoint)] = true
	}
}
