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
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/control/policyreply"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// policyDropReason is the drop reason of packets that a Policy denies or rejects.
const policyDropReason = "policy"

// policyCounters returns the decisions of a Policy, and their sums.
func (s *Server) policyCounters(ctx context.Context, o *state.Object) (*api.CountersResult, error) {
	rules, err := s.ruleCounters(ctx, o)
	if err != nil {
		return nil, err
	}
	result := &api.CountersResult{Drops: map[string]uint64{}, Rules: rules}
	for i := range rules {
		r := &rules[i]
		result.Connections += r.Connections
		result.Packets += r.Packets
		result.Bytes += r.Bytes
		if r.Action != policy.Allow.String() && !o.Value.(*state.Policy).Staged {
			result.Drops[policyDropReason] += r.Packets
		}
	}
	return result, nil
}

// ruleCounters returns the decisions of each rule of a Policy, then of its isolation, by direction. If the
// rules are not in force, nothing has been counted.
func (s *Server) ruleCounters(ctx context.Context, o *state.Object) (list []api.PolicyRuleCounters, err error) {
	counted, _, err := s.Plane.Telemetry().PolicyCounters(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	var spec api.PolicySpec
	if err := json.Unmarshal([]byte(o.Spec), &spec); err != nil {
		return nil, err
	}
	return policyreply.Rules(&o.Value.(*state.Policy).Policy, &spec, &counted), nil
}

// policiesUnusedMost is how many Policies one request examines.
const policiesUnusedMost = 1000

// policiesUnused answers the method policies.unused.
func (s *Server) policiesUnused(ctx context.Context, _ Caller, p *api.PoliciesUnusedParams) (any, *api.Error) {
	if p.Since < 0 {
		return nil, invalid("since", "%s is negative: set a length of time, such as 720h", p.Since)
	}
	if p.Limit < 0 || p.Limit > policiesUnusedMost {
		return nil, invalid("limit", "%d is not from 1 to %d", p.Limit, policiesUnusedMost)
	}
	done, name, err := unusedStart(p.Continue)
	if err != nil {
		return nil, err
	}
	limit, from := cmp.Or(p.Limit, policiesUnusedMost), time.Now().Add(-time.Duration(p.Since)).Truncate(time.Second)
	result := &api.PoliciesUnusedResult{Rules: []api.UnusedRule{}}
	snapshot, size := s.Store.Snapshot(), 512
	// add adds the unused rules of a Policy after the first done ones, and reports whether more may follow.
	add := func(o *state.Object, done int) (bool, error) {
		rules, err := s.ruleCounters(ctx, o)
		if err != nil {
			return false, err
		}
		for i := done; i < len(rules); i++ {
			at, err := time.Parse(time.RFC3339, rules[i].Last)
			if used := err == nil && !at.Before(from); used || rules[i].Action == policy.Pass.String() {
				continue
			}
			rule := api.UnusedRule{Policy: o.Name, PolicyRuleCounters: rules[i]}
			if size += sizeOfJSON(rule); size > maxPage {
				result.Continue = fmt.Sprintf("%d %s", i, o.Name)
				return false, nil
			}
			result.Rules = append(result.Rules, rule)
		}
		if done == 0 {
			limit--
		}
		if limit == 0 {
			result.Continue = fmt.Sprintf("%d %s", max(1, len(rules)), o.Name)
		}
		return limit > 0, ctx.Err()
	}
	more, derr := true, error(nil)
	if o, found := snapshot.Get(state.Key{Kind: state.KindPolicy, Name: name}); found {
		more, derr = add(o, done)
	}
	for o := range snapshot.After(state.KindPolicy, name) {
		if !more || derr != nil {
			break
		}
		more, derr = add(o, 0)
	}
	if derr != nil {
		return nil, planeError(derr)
	}
	return result, nil
}

// unusedStart parses a continue value of policies.unused: how many rules of which Policy are done.
func unusedStart(text string) (done int, name string, err *api.Error) {
	if text == "" {
		return 0, "", nil
	}
	number, name, ok := strings.Cut(text, " ")
	n, nerr := strconv.ParseUint(number, 10, 31)
	if !ok || nerr != nil {
		return 0, "", invalid("continue", "%q is not a continue value of this request", decode.Shorten(text))
	}
	return int(n), name, nil
}

// policiesFor answers the method policies.for.
func (s *Server) policiesFor(_ context.Context, _ Caller, p *api.PoliciesForParams) (any, *api.Error) {
	view, err := s.policiesInForce()
	if err != nil {
		return nil, err
	}
	name, end := api.PolicyNode, view.Here()
	if o := endpointNamed(view.Of, p.Endpoint); o != nil && p.Endpoint != api.PolicyNode {
		name, end = o.Name, policyreply.OfEndpoint(o)
	} else if p.Endpoint != api.PolicyNode {
		return nil, api.Errorf(api.ReasonNotFound, "there is no Endpoint or pod %q: see llcli get endpoints", decode.Shorten(p.Endpoint)).At("", "endpoint")
	}
	result := &api.PoliciesForResult{Endpoint: name, Pending: cmp.Or(view.Pending, s.detached(view, end))}
	subject := view.Subject(end.Endpoint)
	if subject == nil || subject.Set == policy.Unknown {
		return result, nil
	}
	result.IsEntity, result.Set, result.Namespace, result.Labels = true, subject.Set, subject.Namespace, subject.Labels
	for _, applied := range view.AppliedTo(subject) {
		for d, list := range []*[]api.AppliedPolicy{policy.Ingress: &result.Ingress, policy.Egress: &result.Egress} {
			if applied.Isolates[d] || len(applied.Rules[d]) > 0 {
				*list = append(*list, api.AppliedPolicy{
					Tier: applied.Tier, Policy: applied.Name, Staged: applied.Staged, Isolates: applied.Isolates[d], Rules: len(applied.Rules[d]),
				})
			}
		}
	}
	return result, nil
}

// decidingRule describes what decided about a packet; nil: it is unknown.
func (s *Server) decidingRule(d *datapath.PolicyDecision) *api.DecidingRule {
	if d == nil {
		return nil
	}
	rule := &api.DecidingRule{Endpoint: policyreply.EndpointText(string(d.Endpoint)), Direction: d.Direction.String(), FormerNames: strings.Fields(d.FormerNames)}
	if d.Policy == policy.Unknown {
		return rule
	}
	rule.Tier, rule.Policy = d.Tier, d.Policy
	if d.Rule < 0 {
		return rule
	}
	rule.Rule = strconv.Itoa(d.Rule + 1)
	view, err := s.policiesInForce()
	if err != nil || view.Pending != "" {
		return rule // the object may have other rules than packets obey
	}
	if p := view.Policies[policy.Failsafe]; d.Policy == policy.Failsafe && p != nil && d.Rule < len(p.Rules[d.Direction]) {
		rule.Rule = p.RuleID(d.Verdict)
	}
	if o, ok := view.Of.Get(state.Key{Kind: state.KindPolicy, Name: d.Policy}); ok && len(o.Spec) < maxNamed {
		rule.Rule = cmp.Or(policyreply.RuleIn(o, d.Direction, d.Rule).Name, rule.Rule)
	}
	return rule
}

// deciders finds what decides about the connections of one request.
type deciders struct {
	*Server
	local []netip.Addr // of this node
	rules map[datapath.PolicyDecision]*api.DecidingRule
}

func (s *Server) newDeciders() *deciders {
	return &deciders{s, s.Plane.Telemetry().LocalAddrs(), make(map[datapath.PolicyDecision]*api.DecidingRule)}
}

// add adds what decides about a connection at present.
func (s *deciders) add(a *api.Connection, c *datapath.Connection) {
	t := policy.Traffic{Protocol: policy.Protocol(c.Protocol)}
	if t.Protocol.HasPorts() {
		t.Port = c.Reply.Source.Port()
	}
	server := c.Reply.Source.Addr().Unmap()
	isTo := slices.Contains(s.local, server)
	for _, end := range []struct {
		of    *api.ConnectionSide
		isOf  bool // this node itself
		d     policy.Direction
		peer  netip.Addr
		isFor bool // the peer is this node itself
	}{{a.From, c.FromNode, policy.Egress, server, isTo}, {a.To, isTo, policy.Ingress, c.Original.Source.Addr().Unmap(), c.FromNode}} {
		var of datapath.EndpointName
		switch {
		case end.isOf:
			of = policy.Here
		case end.of != nil:
			of = datapath.EndpointName(end.of.Endpoint)
		default:
			continue
		}
		t.Peer, t.Node = end.peer, end.isFor
		v, found := s.Plane.Telemetry().PolicyVerdict(of, end.d, t)
		if !found || v.Policy == "" {
			continue
		}
		decision := datapath.PolicyDecision{Endpoint: of, Verdict: v}
		if s.rules[decision] == nil {
			s.rules[decision] = s.decidingRule(&decision)
		}
		a.Policies = append(a.Policies, *s.rules[decision])
	}
}

// maxNamed limits the specs, in bytes, that are read to name the rule of a packet: there may be many
// such packets.
const maxNamed = 16 << 10
