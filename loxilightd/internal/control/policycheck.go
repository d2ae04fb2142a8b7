// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/control/object"
	"github.com/loxilight/loxilight/loxilightd/internal/control/policyreply"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// policiesInForce returns the state that packets obey.
func (s *Server) policiesInForce() (*policyreply.View, *api.Error) {
	is, of, pending := s.Progress.PolicyState()
	if is == nil {
		return nil, api.Errorf(api.ReasonUnavailable, "%s", pending)
	}
	if pending == "" && of.Revision != s.Store.Snapshot().Revision {
		pending = "the latest changes are not in force yet"
	}
	return &policyreply.View{State: is, Of: of, Pending: pending, Learnt: s.Plane.Telemetry()}, nil
}

// policiesWith returns the state as if objects had been applied.
func (s *Server) policiesWith(c Caller, objects []api.Object) (*policyreply.View, *api.Error) {
	r := &request{method: api.MethodPoliciesCheck, change: api.Change{DryRun: true}, budget: c.budget}
	if err := s.parsePuts(r, objects, api.OwnerCLI, 0); err != nil {
		return nil, err
	}
	result, err := s.commit(c, r)
	if err != nil {
		return nil, refusalError(err)
	}
	return &policyreply.View{State: s.Progress.PolicyStateOf(result.Planned), Of: result.Planned, Learnt: s.Plane.Telemetry()}, nil
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
	result := &api.PoliciesCheckResult{Pending: view.Pending}
	if p.Objects == nil {
		result.Pending = cmp.Or(result.Pending, s.detached(view, from), s.detached(view, to))
	}
	if result.Paths = view.Paths(from, to, t, p.Staged); result.Paths == nil && to.Name != "" {
		return nil, invalid("from", "%s is no Endpoint of this node, and names are learnt for Endpoints only", decode.Shorten(p.From))
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
	result.Pending = view.Pending
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
func (s *Server) endOf(view *policyreply.View, field, name string) (end policyreply.Side, err *api.Error) {
	if name == "" {
		return end, invalid(field, "is missing: name an Endpoint, NAMESPACE/POD, an Entity, an address, or node")
	}
	if name == api.PolicyNode {
		return view.Here(), nil
	}
	if a, failure := netip.ParseAddr(name); failure == nil {
		return s.endAt(view, field, a.Unmap().WithZone(""))
	}
	if o := endpointNamed(view.Of, name); o != nil {
		return policyreply.OfEndpoint(o), nil
	}
	for _, entity := range []string{name, "pod/" + name} {
		o, ok := view.Of.Get(state.Key{Kind: state.KindEntity, Name: entity})
		if !ok {
			continue
		}
		v := o.Value.(*state.Entity)
		switch endpoints := view.Of.EndpointsOf(v.Of); {
		case v.Here:
			return view.Here(), nil
		case v.Of == (state.EndpointRef{}):
			return policyreply.Side{Addrs: v.Addrs}, nil
		case len(endpoints) > 0:
			return policyreply.OfEndpoint(endpoints[0]), nil
		}
		return end, api.Errorf(api.ReasonNotFound, "the Endpoint of Entity %s does not exist", decode.Shorten(entity)).At("", field)
	}
	if dns, failure := object.ParseDNSName(name); failure == nil && field == "to" && strings.Contains(dns, ".") {
		return policyreply.Side{Name: dns}, nil
	}
	return end, api.Errorf(api.ReasonNotFound, "there is no Endpoint, pod or Entity %q: see llcli get endpoints, llcli get entities", decode.Shorten(name)).At("", field)
}

// endAt returns the end with an address.
func (s *Server) endAt(view *policyreply.View, field string, a netip.Addr) (policyreply.Side, *api.Error) {
	if slices.Contains(s.Plane.Telemetry().LocalAddrs(), a) {
		return view.Here(a), nil
	}
	if o := view.Of.Endpoints()[a]; o != nil {
		return policyreply.Side{Endpoint: o.Name, Addrs: []netip.Addr{a}}, nil
	}
	for _, e := range view.Entities {
		if e.Endpoint != "" && slices.Contains(e.Addrs, a) { // its link-local address, or it was deleted
			return policyreply.Side{Endpoint: e.Endpoint, Addrs: []netip.Addr{a}}, nil
		}
	}
	for o := range view.Of.After(state.KindService, "") {
		for _, f := range o.Value.(*state.Service).Frontends {
			if f.Addr.Addr() == a {
				return policyreply.Side{}, invalid(field, "%s is an address of Service %s, and policies see its backends: name one of them", a, o.Name)
			}
		}
	}
	return policyreply.Side{Addrs: []netip.Addr{a}}, nil
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

// detached returns why packets of an end do not obey policies; empty: they do.
func (s *Server) detached(view *policyreply.View, end policyreply.Side) string {
	switch end.Endpoint {
	case "":
		return ""
	case policy.Here:
		return s.unenforced(view.AppliedTo(view.Subject(policy.Here)))
	}
	k := state.Key{Kind: state.KindEndpoint, Name: end.Endpoint}
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
