// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/control/object"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Limits on a page of connections.
const (
	longestConnection = 2700 // maximum size of one encoded connection, in bytes, with the longest names
	longestDecision   = 1200 // likewise of one of its policies
	fewConnections    = 8    // a page without room for this many counts as full
)

func (s *Server) connectionsList(ctx context.Context, _ Caller, p *api.ConnectionsListParams) (any, *api.Error) {
	if p.Limit < 0 {
		return nil, invalid("limit", "%d is negative", p.Limit)
	}
	if p.Filter.All && p.Filter != (api.ConnectionFilter{All: true}) {
		return nil, invalid("filter.all", "cannot be combined with other filter fields")
	}
	filter, err := s.parseFilter(&p.Filter)
	if err != nil {
		return nil, err
	}
	result := &connectionsResult{Items: []json.RawMessage{}, Continue: p.Continue}
	room, longest := maxPage, longestConnection
	var policies *deciders
	if p.Policies {
		longest += 2 * longestDecision
		policies = s.newDeciders()
	}
	for {
		// A batch cannot be read again, so read no more than is certain to fit.
		limit := room / longest
		if p.Limit > 0 {
			limit = min(limit, p.Limit-len(result.Items))
		}
		batch, next, derr := s.Plane.Connections().List(ctx, filter, result.Continue, limit)
		if derr != nil && p.Continue != "" && errors.Is(derr, datapath.ErrAbsent) {
			return nil, invalid("continue", "%v", derr)
		}
		if derr != nil {
			return nil, planeError(derr)
		}
		for i := range batch {
			item := s.nameConnection(connectionOf(&batch[i]), &batch[i])
			if policies != nil {
				policies.add(item, &batch[i])
			}
			text, err := json.Marshal(item)
			if err != nil {
				return nil, api.FromError(err)
			}
			result.Items = append(result.Items, text)
			room -= len(text) + 1
		}
		result.Continue = next
		if next == "" || p.Limit > 0 && len(result.Items) >= p.Limit || room < fewConnections*longest {
			return result, nil
		}
	}
}

// connectionsResult is an [api.ConnectionsListResult] with encoded items.
type connectionsResult struct {
	Items    []json.RawMessage `json:"items"`
	Continue string            `json:"continue,omitempty"`
}

func (s *Server) connectionsFlush(ctx context.Context, _ Caller, p *api.ConnectionsFlushParams) (any, *api.Error) {
	switch {
	case p.Filter == (api.ConnectionFilter{}):
		return nil, invalid("filter", "is missing: specify which connections, or {\"all\": true} for all of them")
	case p.Filter.All && p.Filter != (api.ConnectionFilter{All: true}):
		return nil, invalid("filter.all", "cannot be combined with other filter fields")
	}
	filter, err := s.parseFilter(&p.Filter)
	if err != nil {
		return nil, err
	}
	n, derr := s.Plane.Connections().Flush(ctx, filter)
	if derr != nil {
		return nil, planeError(derr)
	}
	return &api.ConnectionsFlushResult{Flushed: n}, nil
}

// planeError converts an error from the data plane to an API error.
func planeError(err error) *api.Error {
	switch {
	case errors.Is(err, datapath.ErrUnsupported):
		return api.Errorf(api.ReasonUnsupported, "%v", err)
	case errors.Is(err, datapath.ErrAbsent):
		return api.Errorf(api.ReasonUnavailable, "%v", err)
	case errors.Is(err, datapath.ErrCapacity):
		return api.Errorf(api.ReasonCapacity, "%v", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return api.Errorf(api.ReasonUnavailable, "the daemon is stopping, or the client disconnected")
	}
	return api.FromError(err)
}

// connectionStates are the values of [api.Connection.State].
var connectionStates = []string{
	"syn-sent", "syn-received", "established", "fin-wait", "time-wait", "closed", "unreplied", "one-way", "replied",
}

func (s *Server) parseFilter(f *api.ConnectionFilter) (d datapath.ConnectionFilter, err *api.Error) {
	if f.Endpoint != "" {
		if d.Either, err = s.addressesOf(f.Endpoint); err != nil {
			return d, err
		}
	}
	if f.Protocol != "" {
		var ok bool
		if d.Protocol, ok = datapath.ParseProtocol(f.Protocol); !ok {
			return d, invalid("filter.protocol", "%q is not one of tcp, udp, sctp, icmp, icmpv6", decode.Shorten(f.Protocol))
		}
	}
	if f.State != "" && !slices.Contains(connectionStates, f.State) {
		return d, invalid("filter.state", "%q is not one of %s", decode.Shorten(f.State), strings.Join(connectionStates, ", "))
	}
	d.State = f.State
	if f.Service != "" {
		if err := object.CheckName(api.KindService, f.Service, "filter.service"); err != nil {
			return d, invalid("filter.service", "%q is not a valid name of a Service", decode.Shorten(f.Service))
		}
	}
	d.Service = datapath.ServiceName(f.Service)
	for _, a := range []struct {
		field, text string
		prefix      *netip.Prefix
		port        *uint16
	}{
		{"filter.source", f.Source, &d.Source, &d.SourcePort},
		{"filter.destination", f.Destination, &d.Destination, &d.DestinationPort},
		{"filter.backend", f.Backend, &d.Backend, &d.BackendPort},
	} {
		if a.text == "" {
			continue
		}
		if *a.prefix, *a.port, err = parseHostFilter(a.field, a.text); err != nil {
			return d, err
		}
	}
	return d, nil
}

// parseHostFilter parses an address, a prefix or address:port.
func parseHostFilter(field, text string) (p netip.Prefix, port uint16, err *api.Error) {
	if p, err := netip.ParsePrefix(text); err == nil && !p.Addr().Is4In6() {
		return p.Masked(), 0, nil
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), 0, nil
	}
	if a, err := netip.ParseAddrPort(text); err == nil && a.Addr().Zone() == "" {
		addr := a.Addr().Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), a.Port(), nil
	}
	return p, 0, invalid(field, "%q is not an address, prefix or address:port", decode.Shorten(text))
}

func connectionOf(c *datapath.Connection) *api.Connection {
	a := &api.Connection{
		Protocol: c.Protocol.String(),
		Original: tupleOf(c.Original), Reply: tupleOf(c.Reply),
		State: c.State, Path: "slow",
		Age: api.Duration(c.Age), Idle: api.Duration(c.Idle), Expires: api.Duration(c.Expires),
		Sent: api.Traffic(c.Sent), Received: api.Traffic(c.Received),
		Service: string(c.Service), Rule: string(c.Rule),
	}
	if c.Tracked {
		a.Path = "fast"
	}
	a.Forth, a.Back = wayOf(c.Forth), wayOf(c.Back)
	switch {
	case c.DNAT && c.SNAT:
		a.NAT = "dnat+snat"
	case c.DNAT:
		a.NAT = "dnat"
	case c.SNAT:
		a.NAT = "snat"
	}
	for _, name := range []datapath.NATName{c.NAT, c.NATBack} {
		if name != "" {
			a.TranslatedBy = append(a.TranslatedBy, string(name))
		}
	}
	if c.Backend.IsValid() {
		a.Backend = c.Backend.String()
	}
	return a
}

func wayOf(w datapath.Way) api.Way {
	a := api.Way{Path: "slow", Why: w.Why, Device: w.Device, VLAN: w.VLAN, Peer: string(w.Peer), Tunnel: string(w.Tunnel)}
	if w.Tracked {
		a.Path = "fast"
	}
	return a
}

func tupleOf(t datapath.Tuple) api.Tuple {
	return api.Tuple{Source: t.Source.String(), Destination: t.Destination.String()}
}

func (s *Server) counters(ctx context.Context, _ Caller, p *api.CountersParams) (any, *api.Error) {
	if p.Kind == "" && p.Name == "" {
		c, err := s.Plane.Telemetry().NodeCounters(ctx)
		if err != nil {
			return nil, planeError(err)
		}
		return &api.CountersResult{
			Packets: c.Packets, Bytes: c.Bytes, Connections: c.Connections, Drops: orEmpty(c.Drops), Verdicts: c.Verdicts,
		}, nil
	}
	o, err := s.find(p.Kind, p.Name)
	if err != nil {
		return nil, err
	}
	if v, ok := o.Value.(*state.Service); ok {
		return s.serviceCounters(ctx, o.Name, v)
	}
	if v, ok := o.Value.(*state.Peer); ok && v.Tunnel == "" {
		return nil, api.Errorf(api.ReasonUnsupported, "a Peer without a tunnel has no counters, because the underlay routes its packets; see the counters of the Interface towards it").At(o.Key.String(), "")
	}
	result, derr := s.plainCounters(ctx, o)
	if derr != nil {
		return nil, planeError(derr)
	}
	if result == nil {
		return nil, api.Errorf(api.ReasonUnsupported, "objects of this kind have no counters; Interfaces, Endpoints, Tunnels, Peers, Services, NATs, FirewallRules, Policies and Mirrors have them").At(o.Key.String(), "")
	}
	return result, nil
}

// firewallDrop is the drop reason of packets that a rule denies or rejects.
const firewallDrop = "firewall"

// plainCounters returns the counters of an object other than a Service, or nil if the kind has no
// counters.
func (s *Server) plainCounters(ctx context.Context, o *state.Object) (*api.CountersResult, error) {
	t := s.Plane.Telemetry()
	switch v := o.Value.(type) {
	case *state.Interface:
		c, _, err := t.PortCounters(ctx, datapath.PortName(o.Name))
		return &api.CountersResult{Packets: c.Packets, Bytes: c.Bytes, Drops: orEmpty(c.Drops)}, err
	case *state.Endpoint:
		c, _, err := t.PortCounters(ctx, datapath.EndpointName(o.Name).Port())
		return &api.CountersResult{Packets: c.Packets, Bytes: c.Bytes, Drops: orEmpty(c.Drops)}, err
	case *state.FirewallRule:
		c, _, err := t.RuleCounters(ctx, datapath.RuleName(o.Name))
		drops := map[string]uint64{}
		if v.Action != datapath.ActionAllow { // the rule drops each packet that it matches
			drops[firewallDrop] = c.Packets
		}
		return &api.CountersResult{Packets: c.Packets, Bytes: c.Bytes, Connections: c.Connections, Drops: drops}, err
	case *state.Policy:
		return s.policyCounters(ctx, o)
	case *state.NAT:
		c, _, err := t.NATCounters(ctx, datapath.NATName(o.Name))
		return &api.CountersResult{Packets: c.Packets, Bytes: c.Bytes, Connections: c.Connections, Drops: orEmpty(c.Drops)}, err
	case *state.Tunnel:
		is, ok := t.TunnelState(datapath.TunnelName(o.Name))
		return overlayCounters(is.Traffic, ok), nil
	case *state.Peer:
		is, ok := t.PeerState(datapath.PeerName(o.Name))
		return overlayCounters(is.Traffic, ok), nil
	case *state.Mirror:
		is, ok := t.MirrorState(datapath.MirrorName(o.Name))
		if !ok {
			is = datapath.MirrorState{}
		}
		return &api.CountersResult{Packets: is.Packets, Bytes: is.Bytes, Drops: map[string]uint64{}, Dropped: is.Drops}, nil
	}
	return nil, nil
}

// overlayCounters returns the counters of a tunnel or peer. known is whether the tunnel or peer
// exists in the data plane.
func overlayCounters(c datapath.PeerCounters, known bool) *api.CountersResult {
	if !known {
		c = datapath.PeerCounters{}
	}
	return &api.CountersResult{
		Packets: c.SentPackets + c.ReceivedPackets, Bytes: c.SentBytes + c.ReceivedBytes, Drops: map[string]uint64{},
		Sent:     &api.Traffic{Packets: c.SentPackets, Bytes: c.SentBytes},
		Received: &api.Traffic{Packets: c.ReceivedPackets, Bytes: c.ReceivedBytes}, Dropped: c.Drops,
	}
}

// serviceCounters returns the counters of a Service, with its backends in the order of the spec.
func (s *Server) serviceCounters(ctx context.Context, name string, v *state.Service) (any, *api.Error) {
	c, _, err := s.Plane.Telemetry().ServiceCounters(ctx, datapath.ServiceName(name))
	if err != nil {
		return nil, planeError(err)
	}
	result := &api.CountersResult{Packets: c.Packets, Bytes: c.Bytes, Connections: c.Connections, Drops: orEmpty(c.Drops)}
	byAddr := make(map[netip.AddrPort]datapath.BackendCounters, len(c.Backends))
	for _, b := range c.Backends {
		byAddr[b.Backend] = b
	}
	for i := range v.Backends {
		b := byAddr[v.Backends[i].Addr]
		result.Backends = append(result.Backends, api.BackendCounters{
			Address: v.Backends[i].Addr.String(), Connections: b.Connections, Active: b.Active, Packets: b.Packets, Bytes: b.Bytes,
		})
	}
	return result, nil
}

func orEmpty(m map[string]uint64) map[string]uint64 {
	if m == nil {
		return map[string]uint64{}
	}
	return m
}
