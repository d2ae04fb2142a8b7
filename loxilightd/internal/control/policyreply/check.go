// SPDX-License-Identifier: Apache-2.0

package policyreply

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// View is a state of network policies, and the snapshot that it was made from.
type View struct {
	*policy.State
	Of      *state.Snapshot
	Pending string // why packets do not obey the desired state
	Learnt  Learnt
}

// Learnt has the addresses of names in policies: see [datapath.Telemetry].
type Learnt interface {
	PolicyNames(network string, a netip.Addr) (usable, former []string, err error)
	PolicyAddrs(network, name string) ([]netip.Addr, error)
}

// Side is one end of traffic.
type Side struct {
	Node     bool   // this node itself
	Endpoint string // policy.Here: this node itself, if policies apply to it
	Addrs    []netip.Addr
	Name     string // a DNS name; all other fields are zero
}

// Here returns the end that is this node itself, by all of its addresses if none are given.
func (v *View) Here(addrs ...netip.Addr) Side {
	end := Side{Node: true, Addrs: addrs}
	if e := v.Subject(policy.Here); e != nil && len(v.AppliedTo(e)) > 0 {
		end.Endpoint = policy.Here
	}
	return end
}

func OfEndpoint(o *state.Object) Side {
	return Side{Endpoint: o.Name, Addrs: o.Value.(*state.Endpoint).Addresses}
}

// pathsBetween returns the addresses of both ends, for each family that both have. The zero value
// stands for this node, whose address policies do not see.
func pathsBetween(from, to Side) (paths [][2]netip.Addr) {
	if from.Node && to.Node {
		return [][2]netip.Addr{{}}
	}
	for _, is4 := range []bool{true, false} {
		var path [2]netip.Addr
		complete := true
		for i, end := range []Side{from, to} {
			n := slices.IndexFunc(end.Addrs, func(a netip.Addr) bool { return a.Is4() == is4 })
			if n >= 0 {
				path[i] = end.Addrs[n]
			}
			complete = complete && (n >= 0 || end.Node && len(end.Addrs) == 0)
		}
		if complete {
			paths = append(paths, path)
		}
	}
	return paths
}

// check returns the verdict on traffic between two addresses.
func (v *View) check(from, to Side, path [2]netip.Addr, t policy.Traffic, staged bool) api.PolicyPath {
	text := func(end Side, a netip.Addr) string {
		if end.Node {
			return api.PolicyNode
		}
		return a.String()
	}
	result := api.PolicyPath{Source: text(from, path[0]), Destination: text(to, path[1]), Verdict: policy.Allow.String()}
	sent, received := t, t
	sent.Peer, sent.Node = path[1], to.Node
	received.Peer, received.Node = path[0], from.Node
	if from.Endpoint != "" {
		result.Egress = v.decide(from.Endpoint, policy.Egress, sent, staged)
		result.Verdict = result.Egress.Verdict
	}
	if to.Endpoint != "" {
		result.Ingress = v.decide(to.Endpoint, policy.Ingress, received, staged)
		if result.Verdict == policy.Allow.String() {
			result.Verdict = result.Ingress.Verdict
		}
	}
	return result
}

// decide returns the verdict of the policies of an Endpoint.
func (v *View) decide(endpoint string, d policy.Direction, t policy.Traffic, staged bool) *api.PolicyDecision {
	result := &api.PolicyDecision{Endpoint: EndpointText(endpoint), Verdict: policy.Allow.String()}
	if peer := v.PeerOf(t); peer != nil {
		result.Peer = peer.Name
	}
	subject := v.Subject(endpoint)
	if subject == nil {
		return result
	}
	if d == policy.Egress && subject.Network != "" && !t.Node && !t.Peer.IsUnspecified() {
		// After an error, no name has the address.
		t.Names, result.FormerNames, _ = v.Learnt.PolicyNames(subject.Network, t.Peer)
	}
	if d == policy.Egress {
		result.Names = t.Names
	}
	steps, verdict := v.Explain(subject, d, t, staged)
	result.Verdict = verdict.Action.String()
	if verdict.Policy != "" && verdict.Policy != policy.Unknown && verdict.Policy != policy.Failsafe {
		result.Without = v.Without(verdict, subject, d, t, staged).Action.String()
	}
	for i := range steps {
		result.Tiers = append(result.Tiers, v.tier(&steps[i], d))
	}
	return result
}

// EndpointText returns what the API calls an Endpoint of a state.
func EndpointText(endpoint string) string {
	if endpoint == policy.Here {
		return api.PolicyNode
	}
	return endpoint
}

// Subject returns the Entity of an Endpoint; nil: no policy applies to it.
func (v *View) Subject(endpoint string) *policy.Entity {
	for _, e := range v.Entities {
		if e.Endpoint == endpoint {
			return e
		}
	}
	return nil
}

func (v *View) tier(step *policy.Step, d policy.Direction) api.PolicyTier {
	tier := api.PolicyTier{Tier: step.Tier, Policies: step.Policies, Result: api.PolicyNext, Policy: step.Policy, Exempt: step.Exempt}
	switch {
	case step.Policy == "":
	case step.Policy == policy.Unknown:
		return api.PolicyTier{Result: api.PolicyUnknown}
	case step.Rule < 0:
		tier.Result = api.PolicyIsolated
	case step.Policy == policy.Failsafe:
		tier.Result, tier.Rule = step.Action.String(), v.Policies[step.Policy].RuleID(step.Verdict)
	default:
		tier.Result, tier.Rule = step.Action.String(), strconv.Itoa(step.Rule+1)
		v.nameRule(&tier, step, d)
	}
	return tier
}

// nameRule adds what the object of a policy says of the rule that decided.
func (v *View) nameRule(tier *api.PolicyTier, step *policy.Step, d policy.Direction) {
	o, ok := v.Of.Get(state.Key{Kind: state.KindPolicy, Name: step.Policy})
	if !ok || v.Pending != "" {
		return
	}
	r := RuleIn(o, d, step.Rule)
	tier.Rule = cmp.Or(r.Name, tier.Rule)
	if step.Peer >= 0 && step.Peer < len(r.From) {
		tier.Peer = &r.From[step.Peer]
	}
	if step.Port >= 0 && step.Port < len(r.Ports) {
		tier.Port = &r.Ports[step.Port]
	}
}

// RuleIn returns a rule in the spec of a Policy, a rule for egress with its peers in From; the zero
// value: there is no such rule.
func RuleIn(o *state.Object, d policy.Direction, n int) (r api.IngressRule) {
	var spec api.PolicySpec
	switch {
	case json.Unmarshal([]byte(o.Spec), &spec) != nil:
	case d == policy.Ingress && n < len(spec.Ingress):
		return spec.Ingress[n]
	case d == policy.Egress && n < len(spec.Egress):
		r := &spec.Egress[n]
		return api.IngressRule{Name: r.Name, Action: r.Action, From: r.To, Ports: r.Ports}
	}
	return r
}
