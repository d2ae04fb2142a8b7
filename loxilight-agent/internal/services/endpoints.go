// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/loxilight/loxilight/api"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoint is one server of one port of a service.
type endpoint struct {
	addr                        netip.AddrPort
	ready, serving, terminating bool
	local                       bool // on this node
	hints                       *discoveryv1.EndpointHints
}

// retiring reports whether an endpoint still serves, but only until it ends.
func (e *endpoint) retiring() bool { return !e.ready && e.serving && e.terminating }

// hintsNode and hintsZone report whether the endpoint is meant for a node or a zone.
func (e *endpoint) hintsNode(name string) (hinted, here bool) {
	if e.hints == nil {
		return false, false
	}
	return len(e.hints.ForNodes) > 0, slices.ContainsFunc(e.hints.ForNodes, func(f discoveryv1.ForNode) bool { return f.Name == name })
}

func (e *endpoint) hintsZone(name string) (hinted, here bool) {
	if e.hints == nil {
		return false, false
	}
	return len(e.hints.ForZones) > 0, slices.ContainsFunc(e.hints.ForZones, func(f discoveryv1.ForZone) bool { return f.Name == name })
}

// better sorts endpoints of the same address: the first one is used. An address may be in several
// slices while it moves from one to another, or while a pod has the address of a pod that is still
// terminating.
func better(a, b *endpoint) int {
	return cmp.Or(
		flag(a.terminating, b.terminating), -flag(a.ready, b.ready), -flag(a.serving, b.serving), -flag(a.local, b.local),
	)
}

// flag compares a and b, false first.
func flag(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// valueOr returns the value of a condition, or the default if the condition is absent.
func valueOr(condition *bool, otherwise bool) bool {
	if condition == nil {
		return otherwise
	}
	return *condition
}

// collect returns the endpoints of a port, in the order of their addresses, IPv4 first. Slices are
// in the order of their names. Strings that are not a host address are passed to bad.
func collect(n *Node, port *corev1.ServicePort, list []*discoveryv1.EndpointSlice, bad func(text string)) []endpoint {
	count := 0
	for _, slice := range list {
		count += len(slice.Endpoints)
	}
	all := make([]endpoint, 0, count)
	for _, slice := range list {
		if slice.AddressType != discoveryv1.AddressTypeIPv4 && slice.AddressType != discoveryv1.AddressTypeIPv6 {
			continue
		}
		for i := range slice.Ports {
			if number, ok := targetPort(&slice.Ports[i], port); ok {
				all = appendEndpoints(all, n, slice, number, bad)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b endpoint) int { return cmp.Or(a.addr.Compare(b.addr), better(&a, &b)) })
	return slices.CompactFunc(all, func(a, b endpoint) bool { return a.addr == b.addr })
}

// targetPort returns the port on which the endpoints of a slice serve a port of the service.
func targetPort(p *discoveryv1.EndpointPort, port *corev1.ServicePort) (uint16, bool) {
	if p.Name == nil || *p.Name != port.Name || p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
		return 0, false
	}
	proto := corev1.ProtocolTCP
	if p.Protocol != nil {
		proto = protocol(*p.Protocol)
	}
	return uint16(*p.Port), proto == protocol(port.Protocol)
}

func appendEndpoints(all []endpoint, n *Node, slice *discoveryv1.EndpointSlice, port uint16, bad func(text string)) []endpoint {
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		addr, ok := parseAddr(e.Addresses[0])
		if !ok || !isHost(addr) || addr.Is4() != (slice.AddressType == discoveryv1.AddressTypeIPv4) {
			bad("address " + strconv.Quote(e.Addresses[0]) + " of EndpointSlice " + slice.Name)
			continue
		}
		all = append(all, endpoint{
			addr:  netip.AddrPortFrom(addr, port),
			ready: valueOr(e.Conditions.Ready, true), serving: valueOr(e.Conditions.Serving, true), terminating: valueOr(e.Conditions.Terminating, false),
			local: e.NodeName != nil && *e.NodeName == n.Name,
			hints: e.Hints,
		})
	}
	return all
}

// chosen contains which endpoints of one family get new connections.
type chosen struct {
	cluster []bool // endpoints for cluster-wide traffic
	local   []bool // endpoints for clients that only this node's endpoints may serve
	any     bool   // there is one somewhere
	here    bool   // there is one on this node
}

// choose picks the endpoints for new connections: the ready ones or, if none is ready, the
// terminating ones that still serve. For cluster-wide traffic, hints choose among the ready ones.
func choose(n *Node, all []endpoint) chosen {
	c := chosen{cluster: make([]bool, len(all)), local: make([]bool, len(all))}
	ready, readyHere := false, false
	for i := range all {
		e := &all[i]
		ready = ready || e.ready
		readyHere = readyHere || e.ready && e.local
		c.any = c.any || e.ready || e.retiring()
		c.here = c.here || e.local && (e.ready || e.retiring())
	}
	near := hinted(n, all)
	for i := range all {
		e := &all[i]
		c.cluster[i] = e.ready && near(e) || !ready && e.retiring()
		c.local[i] = e.local && (e.ready || !readyHere && e.retiring())
	}
	return c
}

// hinted returns a function that reports whether an endpoint is meant for this node. Hints count
// only if every ready endpoint has them and at least one is for this node, or else for its zone.
func hinted(n *Node, all []endpoint) func(*endpoint) bool {
	for _, hint := range []func(*endpoint) (hinted, here bool){
		func(e *endpoint) (bool, bool) { return e.hintsNode(n.Name) },
		func(e *endpoint) (bool, bool) { return e.hintsZone(n.Zone) },
	} {
		every, some := true, false
		for i := range all {
			if !all[i].ready {
				continue
			}
			hinted, here := hint(&all[i])
			every, some = every && hinted, some || here
		}
		if every && some {
			return func(e *endpoint) bool { _, here := hint(e); return here }
		}
	}
	return func(*endpoint) bool { return true }
}

// backends returns endpoints as the daemon's backends. Unusable endpoints keep their connections:
// the daemon ends connections to unknown backends. If none is usable, none may be draining, because
// the daemon falls back to draining backends.
func backends(to []api.Backend, all []endpoint, usable []bool, some bool) []api.Backend {
	for i := range all {
		e := &all[i]
		b := api.Backend{Address: e.addr.String()}
		switch {
		case usable[i]:
		case some && (e.ready || e.serving):
			b.State = "draining"
		default:
			b.State = "down"
		}
		to = append(to, b)
	}
	return to
}
