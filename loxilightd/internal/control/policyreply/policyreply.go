// SPDX-License-Identifier: Apache-2.0

// Package policyreply makes parts of replies about network policies.
package policyreply

import (
	"cmp"
	"strconv"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// Rules returns the decisions of each rule of a policy, then of its isolation, by direction. Rules of which
// counted has no counters have decided nothing.
func Rules(p *policy.Policy, spec *api.PolicySpec, counted *datapath.PolicyCounters) (list []api.PolicyRuleCounters) {
	for d, rules := range p.Rules {
		for n := range rules {
			r := api.PolicyRuleCounters{Rule: strconv.Itoa(n + 1), Action: rules[n].Action.String()}
			if d == int(policy.Ingress) {
				r.Rule = cmp.Or(spec.Ingress[n].Name, r.Rule)
			} else {
				r.Rule = cmp.Or(spec.Egress[n].Name, r.Rule)
			}
			// The rules in force may differ from the rules of p.
			c := counted.Rules[d][datapath.PolicyRule{ID: rules[n].ID, Action: rules[n].Action}]
			list = append(list, withDecisions(r, policy.Direction(d), c))
		}
		if p.Isolates[d] {
			list = append(list, withDecisions(api.PolicyRuleCounters{Action: p.Isolation(policy.Direction(d)).Action.String()}, policy.Direction(d), counted.Isolation[d]))
		}
	}
	return list
}

func withDecisions(r api.PolicyRuleCounters, d policy.Direction, c datapath.PolicyDecisions) api.PolicyRuleCounters {
	r.Direction, r.Connections, r.Packets, r.Bytes = d.String(), c.Connections, c.Packets, c.Bytes
	if !c.Since.IsZero() {
		r.Since = c.Since.UTC().Format(time.RFC3339)
	}
	if !c.Last.IsZero() {
		r.Last = c.Last.UTC().Format(time.RFC3339)
	}
	return r
}

// Differences returns the traffic whose verdict differs between two states, at most limit.
func Differences(before, after *policy.State, limit int) *api.PoliciesCompareResult {
	result := &api.PoliciesCompareResult{Differences: []api.PolicyDifference{}}
	list, more := policy.Differences(before, after, limit)
	result.More = more
	for i := range list {
		d := &list[i]
		one := api.PolicyDifference{Source: endOf(&d.Source), Destination: endOf(&d.Destination), Before: d.Before.String(), After: d.After.String()}
		if d.Protocol != 0 {
			one.Protocol, one.Port, one.End = datapath.Protocol(d.Protocol).String(), int(d.First), int(d.Last)
		}
		result.Differences = append(result.Differences, one)
	}
	return result
}

func endOf(e *policy.End) api.PolicyEnd {
	switch {
	case e.Node:
		return api.PolicyEnd{Name: api.PolicyNode}
	case e.Prefix.IsSingleIP():
		return api.PolicyEnd{Name: e.Entity, Address: e.Prefix.Addr().String()}
	}
	return api.PolicyEnd{Address: e.Prefix.String()}
}
