// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/control/policyreply"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// policyView is a state of network policies, and the snapshot that it was made from.
type policyView struct {
	*policy.State
	of      *state.Snapshot
	pending string // why packets do not obey the desired state
	// names returns the names that have an address in a network, for new connections and no longer.
	names func(network string, a netip.Addr) (usable, former []string, err error)
}

// policiesInForce returns the state that packets obey.
func (s *Server) policiesInForce() (*policyView, *api.Error) {
	is, of, pending := s.Progress.PolicyState()
	if is == nil {
		return nil, api.Errorf(api.ReasonUnavailable, "%s", pending)
	}
	if pending == "" && of.Revision != s.Store.Snapshot().Revision {
		pending = "the latest changes are not in force yet"
	}
	return &policyView{is, of, pending, s.Plane.Telemetry().PolicyNames}, nil
}

// policiesWith returns the state as if objects had been applied.
func (s *Server) policiesWith(c Caller, objects []api.Object) (*policyView, *api.Error) {
	r := &request{method: api.MethodPoliciesCheck, change: api.Change{DryRun: true}, budget: c.budget}
	if err := s.parsePuts(r, objects, api.OwnerCLI, 0); err != nil {
		return nil, err
	}
	result, err := s.commit(c, r)
	if err != nil {
		return nil, refusalError(err)
	}
	return &policyView{s.Progress.PolicyStateOf(result.Planned), result.Planned, "", s.Plane.Telemetry().PolicyNames}, nil
}

// policyEnd is one end of traffic.
type policyEnd struct {
	node     bool   // this node itself
	endpoint string // policy.Here: this node itself, if policies apply to it
	addrs    []netip.Addr
}

// policiesCheck answers the method policies.check.
func (s *Server) policiesCheck(_ context.Context, c Caller, p *api.PoliciesCheckParams) (any, *api.Error) {
	t, err := trafficOf(p)
	if err != nil {
		return nil, err
	}
	view, err := s.policiesInForce()
	if p.Objects != nil {
		view, err = s.policiesWith(c, p.Objects)
	}
	if err != nil {
		return nil, err
	}
	from, err := s.endOf(view, "from", p.From)
	if err != nil {
		return nil, err
	}
	to, err := s.endOf(view, "to", p.To)
	if err != nil {
		return nil, err
	}
	result := &api.PoliciesCheckResult{Pending: view.pending}
	if p.Objects == nil {
		result.Pending = cmp.Or(result.Pending, s.detached(view, from), s.detached(view, to))
	}
	for _, path := range pathsBetween(from, to) {
		result.Paths = append(result.Paths, view.check(from, to, path, t, p.Staged))
	}
	if result.Paths == nil {
		return nil, invalid("to", "%s and %s have no address family in common", decode.Shorten(p.From), decode.Shorten(p.To))
	}
	return result, nil
}

// policiesCompareMost is the most differences in one answer.
const policiesCompareMost = 1000

// policiesCompare answers the method policies.compare.
func (s *Server) policiesCompare(_ context.Context, c Caller, p *api.PoliciesCompareParams) (any, *api.Error) {
	if p.Limit < 0 || p.Limit > policiesCompareMost {
		return nil, invalid("limit", "%d is not from 1 to %d", p.Limit, policiesCompareMost)
	}
	if len(p.Objects) == 0 {
		return nil, invalid("objects", "is missing: list the objects whose effect is to be compared")
	}
	view, err := s.policiesInForce()
	if err != nil {
		return nil, err
	}
	next, err := s.policiesWith(c, p.Objects)
	if err != nil {
		return nil, err
	}
	result := policyreply.Differences(view.State, next.State, cmp.Or(p.Limit, 100))
	result.Pending = view.pending
	return result, nil
}

// trafficOf returns the protocol and port of the parameters.
func trafficOf(p *api.PoliciesCheckParams) (t policy.Traffic, err *api.Error) {
	named, ok := datapath.ParseProtocol(p.Protocol)
	protocol := policy.Protocol(named)
	if !ok {
		n, failure := strconv.ParseUint(p.Protocol, 10, 8)
		if failure != nil {
			return t, invalid("protocol", "%q is not tcp, udp, sctp, icmp, icmpv6, or a number from 0 to 255", decode.Shorten(p.Protocol))
		}
		protocol = policy.Protocol(n)
	}
	switch {
	case protocol.HasPorts() && p.Port == 0:
		return t, invalid("port", "is missing: set the destination port, 1 to 65535")
	case protocol.HasPorts() && (p.Port < 1 || p.Port > 65535):
		return t, invalid("port", "%d is not from 1 to 65535", p.Port)
	case !protocol.HasPorts() && p.Port != 0:
		return t, invalid("port", "is only for tcp, udp and sctp")
	}
	return policy.Traffic{Protocol: protocol, Port: uint16(p.Port)}, nil
}

// endOf finds what a parameter names. A node's address counts as the node itself.
func (s *Server) endOf(view *policyView, field, name string) (end policyEnd, err *api.Error) {
	if name == "" {
		return end, invalid(field, "is missing: name an Endpoint, NAMESPACE/POD, an Entity, an address, or node")
	}
	if name == api.PolicyNode {
		return view.nodeEnd(), nil
	}
	if a, failure := netip.ParseAddr(name); failure == nil {
		return s.endAt(view, field, a.Unmap().WithZone(""))
	}
	if o := endpointNamed(view.of, name); o != nil {
		return endpointEnd(o), nil
	}
	for _, entity := range []string{name, "pod/" + name} {
		o, ok := view.of.Get(state.Key{Kind: state.KindEntity, Name: entity})
		if !ok {
			continue
		}
		v := o.Value.(*state.Entity)
		switch endpoints := view.of.EndpointsOf(v.Of); {
		case v.Here:
			return view.nodeEnd(), nil
		case v.Of == (state.EndpointRef{}):
			return policyEnd{addrs: v.Addrs}, nil
		case len(endpoints) > 0:
			return endpointEnd(endpoints[0]), nil
		}
		return end, api.Errorf(api.ReasonNotFound, "the Endpoint of Entity %s does not exist", decode.Shorten(entity)).At("", field)
	}
	return end, api.Errorf(api.ReasonNotFound, "there is no Endpoint, pod or Entity %q: see llcli get endpoints, llcli get entities", decode.Shorten(name)).At("", field)
}

// endAt returns the end with an address.
func (s *Server) endAt(view *policyView, field string, a netip.Addr) (policyEnd, *api.Error) {
	if slices.Contains(s.Plane.Telemetry().LocalAddrs(), a) {
		return view.nodeEnd(a), nil
	}
	if o := view.of.Endpoints()[a]; o != nil {
		return policyEnd{endpoint: o.Name, addrs: []netip.Addr{a}}, nil
	}
	for _, e := range view.Entities {
		if e.Endpoint != "" && slices.Contains(e.Addrs, a) { // its link-local address, or it was deleted
			return policyEnd{endpoint: e.Endpoint, addrs: []netip.Addr{a}}, nil
		}
	}
	for o := range view.of.After(state.KindService, "") {
		for _, f := range o.Value.(*state.Service).Frontends {
			if f.Addr.Addr() == a {
				return policyEnd{}, invalid(field, "%s is an address of Service %s, and policies see its backends: name one of them", a, o.Name)
			}
		}
	}
	return policyEnd{addrs: []netip.Addr{a}}, nil
}

// endpointNamed returns the Endpoint with a name, or of a pod, NAMESPACE/POD; nil: it does not exist.
func endpointNamed(of *state.Snapshot, name string) (found *state.Object) {
	if o, ok := of.Get(state.Key{Kind: state.KindEndpoint, Name: name}); ok {
		return o
	}
	for o := range of.After(state.KindEndpoint, "") {
		if o.Value.(*state.Endpoint).PodName() == name {
			return o
		}
	}
	return nil
}

// nodeEnd returns the end that is this node itself, by all of its addresses if none are given.
func (v *policyView) nodeEnd(addrs ...netip.Addr) policyEnd {
	end := policyEnd{node: true, addrs: addrs}
	if e := v.subject(policy.Here); e != nil && len(v.AppliedTo(e)) > 0 {
		end.endpoint = policy.Here
	}
	return end
}

func endpointEnd(o *state.Object) policyEnd {
	return policyEnd{endpoint: o.Name, addrs: o.Value.(*state.Endpoint).Addresses}
}

// detached returns why packets of an end do not obey policies; empty: they do.
func (s *Server) detached(view *policyView, end policyEnd) string {
	switch end.endpoint {
	case "":
		return ""
	case policy.Here:
		return s.unenforced(view.AppliedTo(view.subject(policy.Here)))
	}
	k := state.Key{Kind: state.KindEndpoint, Name: end.endpoint}
	is, ok := s.Progress.Status(k)
	switch {
	case !ok:
		return fmt.Sprintf("%s is not attached yet", k)
	case is.State != api.StateReady:
		return fmt.Sprintf("%s is not Ready: %s", k, is.Message)
	}
	return ""
}

// unenforced returns why one of some policies is not Ready; empty: all are.
func (s *Server) unenforced(list []*policy.Policy) string {
	for _, p := range list {
		k := state.Key{Kind: state.KindPolicy, Name: p.Name}
		if is, ok := s.Progress.Status(k); ok && is.State != api.StateReady {
			return fmt.Sprintf("%s is not Ready: %s", k, is.Message)
		}
	}
	return ""
}

// pathsBetween returns the addresses of both ends, for each family that both have. The zero value
// stands for this node, whose address policies do not see.
func pathsBetween(from, to policyEnd) (paths [][2]netip.Addr) {
	if from.node && to.node {
		return [][2]netip.Addr{{}}
	}
	for _, is4 := range []bool{true, false} {
		var path [2]netip.Addr
		complete := true
		for i, end := range []policyEnd{from, to} {
			n := slices.IndexFunc(end.addrs, func(a netip.Addr) bool { return a.Is4() == is4 })
			if n >= 0 {
				path[i] = end.addrs[n]
			}
			complete = complete && (n >= 0 || end.node && len(end.addrs) == 0)
		}
		if complete {
			paths = append(paths, path)
		}
	}
	return paths
}

// check returns the verdict on traffic between two addresses.
func (v *policyView) check(from, to policyEnd, path [2]netip.Addr, t policy.Traffic, staged bool) api.PolicyPath {
	text := func(end policyEnd, a netip.Addr) string {
		if end.node {
			return api.PolicyNode
		}
		return a.String()
	}
	result := api.PolicyPath{Source: text(from, path[0]), Destination: text(to, path[1]), Verdict: policy.Allow.String()}
	sent, received := t, t
	sent.Peer, sent.Node = path[1], to.node
	received.Peer, received.Node = path[0], from.node
	if from.endpoint != "" {
		result.Egress = v.decide(from.endpoint, policy.Egress, sent, staged)
		result.Verdict = result.Egress.Verdict
	}
	if to.endpoint != "" {
		result.Ingress = v.decide(to.endpoint, policy.Ingress, received, staged)
		if result.Verdict == policy.Allow.String() {
			result.Verdict = result.Ingress.Verdict
		}
	}
	return result
}

// decide returns the verdict of the policies of an Endpoint.
func (v *policyView) decide(endpoint string, d policy.Direction, t policy.Traffic, staged bool) *api.PolicyDecision {
	result := &api.PolicyDecision{Endpoint: endpointText(endpoint), Verdict: policy.Allow.String()}
	if peer := v.PeerOf(t); peer != nil {
		result.Peer = peer.Name
	}
	subject := v.subject(endpoint)
	if subject == nil {
		return result
	}
	if d == policy.Egress && subject.Network != "" && !t.Node {
		// After an error, no name has the address.
		t.Names, result.FormerNames, _ = v.names(subject.Network, t.Peer)
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

// endpointText returns what the API calls an Endpoint of a state.
func endpointText(endpoint string) string {
	if endpoint == policy.Here {
		return api.PolicyNode
	}
	return endpoint
}

// subject returns the Entity of an Endpoint; nil: no policy applies to it.
func (v *policyView) subject(endpoint string) *policy.Entity {
	for _, e := range v.Entities {
		if e.Endpoint == endpoint {
			return e
		}
	}
	return nil
}

func (v *policyView) tier(step *policy.Step, d policy.Direction) api.PolicyTier {
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
func (v *policyView) nameRule(tier *api.PolicyTier, step *policy.Step, d policy.Direction) {
	o, ok := v.of.Get(state.Key{Kind: state.KindPolicy, Name: step.Policy})
	if !ok || v.pending != "" {
		return
	}
	r := ruleIn(o, d, step.Rule)
	tier.Rule = cmp.Or(r.Name, tier.Rule)
	if step.Peer >= 0 && step.Peer < len(r.From) {
		tier.Peer = &r.From[step.Peer]
	}
	if step.Port >= 0 && step.Port < len(r.Ports) {
		tier.Port = &r.Ports[step.Port]
	}
}

// ruleIn returns a rule in the spec of a Policy, a rule for egress with its peers in From; the zero
// value: there is no such rule.
func ruleIn(o *state.Object, d policy.Direction, n int) (r api.IngressRule) {
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
