// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/loxilight/loxilight/api"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The model answers one question at a time, and slowly: a client sends the first packet of a
// connection to an address, port and protocol through this node. Which endpoints may get it, and
// which source do they see? It uses only the API's terms, and knows no objects. enforce answers
// the same from the objects, as the daemon implements them.

// question is one first packet.
type question struct {
	client netip.Addr
	to     netip.AddrPort
	proto  corev1.Protocol
}

// answer is "pass" (belongs to no service), "drop", "reject", or endpoints with their source.
func (w *world) answer(q question) string {
	for i := range w.service.Spec.Ports {
		port := &w.service.Spec.Ports[i]
		if port.Protocol != q.proto {
			continue
		}
		switch to := q.to.Addr().String(); {
		case !w.isDual && !q.to.Addr().Is4():
			return "pass"
		case int32(q.to.Port()) == port.Port && slices.Contains(w.service.Spec.ClusterIPs, to):
			return w.serve(q, port, w.internalLocal, "auto")
		case int32(q.to.Port()) == port.NodePort && slices.Contains(w.nodeAddresses, to):
			return w.outside(q, port)
		case int32(q.to.Port()) == port.Port && slices.ContainsFunc(w.service.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
			return i.IP == to && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP)
		}):
			if w.shutOut(q.client) {
				return "drop"
			}
			return w.outside(q, port)
		case int32(q.to.Port()) == port.Port && slices.Contains(w.service.Spec.ExternalIPs, to):
			return w.outside(q, port)
		}
	}
	return "pass"
}

// shutOut reports whether source ranges exclude a client from the load balancer. If the node
// itself is permitted, so are connections from an address of the balancer.
func (w *world) shutOut(client netip.Addr) bool {
	balancer := slices.ContainsFunc(w.service.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
		return i.IP == client.String() && i.IPMode == nil
	})
	bounded := false
	for _, text := range w.service.Spec.LoadBalancerSourceRanges {
		p := netip.MustParsePrefix(text)
		if p.Addr().Is4() != client.Is4() {
			continue
		}
		bounded = true
		if p.Contains(client) {
			return false
		}
		for _, own := range w.nodeAddresses {
			if p.Contains(addr(own)) && balancer {
				return false
			}
		}
	}
	return bounded
}

func (w *world) outside(q question, port *corev1.ServicePort) string {
	if !w.externalLocal {
		return w.serve(q, port, false, "snat")
	}
	inside := slices.Contains(w.nodeAddresses, q.client.String())
	for _, pods := range []string{"10.244.3.0/24", "2001:db8:3::/64"} {
		inside = inside || netip.MustParsePrefix(pods).Contains(q.client)
	}
	if inside {
		return w.serve(q, port, false, "auto")
	}
	return w.serve(q, port, true, "keep")
}

// serve picks the endpoints for a packet, from those on this node or from all.
func (w *world) serve(q question, port *corev1.ServicePort, localOnly bool, source string) string {
	var all []server
	for _, s := range w.servers(port) {
		if netip.MustParseAddrPort(s.address).Addr().Is4() == q.to.Addr().Is4() {
			all = append(all, s)
		}
	}
	pick := func(ok func(server) bool) (found []string) {
		for _, s := range all {
			if ok(s) {
				found = append(found, s.address)
			}
		}
		sort.Strings(found)
		return found
	}
	scope := func(s server) bool { return !localOnly || s.node == "n3" }
	ready := pick(func(s server) bool { return s.ready })
	usable := pick(func(s server) bool { return s.ready && scope(s) })
	if !localOnly {
		for _, near := range []func(server) (every bool, here bool){
			func(s server) (bool, bool) { return s.nodes != "", hasWord(s.nodes, "n3") },
			func(s server) (bool, bool) { return s.zones != "", hasWord(s.zones, "east") },
		} {
			every := pick(func(s server) bool { given, _ := near(s); return s.ready && given })
			here := pick(func(s server) bool { _, h := near(s); return s.ready && h })
			if len(every) == len(ready) && len(here) > 0 {
				usable = here
				break
			}
		}
	}
	lasting := func(s server) bool { return !s.ready && s.serving && s.terminating }
	if len(usable) == 0 {
		usable = pick(func(s server) bool { return lasting(s) && scope(s) })
	}
	switch {
	case len(usable) > 0:
		return source + " " + strings.Join(usable, " ")
	case localOnly && len(pick(func(s server) bool { return s.ready || lasting(s) })) > 0:
		return "drop"
	default:
		return "reject"
	}
}

func hasWord(text, word string) bool { return slices.Contains(strings.Fields(text), word) }

// server is one endpoint of a port, as the model sees it.
type server struct {
	address, node, nodes, zones string
	ready, serving, terminating bool
}

// servers returns the endpoints of a port. If an endpoint is in several slices, the preferred
// entry is not terminating, then is ready, serves, is on this node, and is first.
func (w *world) servers(port *corev1.ServicePort) []server {
	best := map[string]server{}
	score := func(s server) (n int) {
		for _, good := range []bool{!s.terminating, s.ready, s.serving, s.node == "n3"} {
			n *= 2
			if good {
				n++
			}
		}
		return n
	}
	for _, slice := range w.slices { // in the order of their names
		for _, p := range slice.Ports {
			if *p.Name != port.Name || *p.Protocol != port.Protocol {
				continue
			}
			for _, e := range slice.Endpoints {
				s := server{
					address: netip.AddrPortFrom(addr(e.Addresses[0]), uint16(*p.Port)).String(),
					ready:   e.Conditions.Ready == nil || *e.Conditions.Ready, serving: e.Conditions.Serving == nil || *e.Conditions.Serving,
					terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
				}
				if e.NodeName != nil {
					s.node = *e.NodeName
				}
				if e.Hints != nil {
					for _, z := range e.Hints.ForZones {
						s.zones += " " + z.Name
					}
					for _, n := range e.Hints.ForNodes {
						s.nodes += " " + n.Name
					}
				}
				if old, ok := best[s.address]; !ok || score(s) > score(old) {
					best[s.address] = s
				}
			}
		}
	}
	list := []server{}
	for _, s := range best {
		list = append(list, s)
	}
	return list
}

// enforce answers from the objects, as docs/api.md defines their meaning.
func enforce(specs map[string]*api.ServiceSpec, q question) string {
	to := frontend{q.to, q.proto}.String()
	for _, spec := range specs {
		if !slices.Contains(spec.Frontends, to) {
			continue
		}
		within := func(prefixes []string) bool {
			return slices.ContainsFunc(prefixes, func(p string) bool { return netip.MustParsePrefix(p).Contains(q.client) })
		}
		if len(spec.SourceRanges) > 0 && !within(spec.SourceRanges) {
			return "drop"
		}
		for _, d := range spec.Divert {
			if within(d.Sources) {
				spec = specs[d.Service]
				break
			}
		}
		return balance(spec, q)
	}
	return "pass"
}

// balance picks the backends of a spec for a new connection.
func balance(spec *api.ServiceSpec, q question) string {
	by := map[string][]string{}
	for _, b := range spec.Backends {
		if netip.MustParseAddrPort(b.Address).Addr().Is4() == q.to.Addr().Is4() {
			by[b.State] = append(by[b.State], b.Address)
		}
	}
	source := spec.Source
	if source == "" {
		source = "auto"
	}
	for _, state := range []string{"", "draining"} {
		if list := by[state]; len(list) > 0 {
			sort.Strings(list)
			return source + " " + strings.Join(list, " ")
		}
	}
	if spec.NoBackend == "" {
		return "reject"
	}
	return spec.NoBackend
}

// world is one service with its endpoints, and the facts that the model needs.
type world struct {
	service                              *corev1.Service
	slices                               []*discoveryv1.EndpointSlice
	isDual, internalLocal, externalLocal bool
	nodeAddresses                        []string
}

// String shows a world in a failure.
func (w *world) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "spec %+v\ningress %+v\n", w.service.Spec, w.service.Status.LoadBalancer.Ingress)
	for _, s := range w.slices {
		fmt.Fprintf(&b, "slice %s\n", s.Name)
		for _, p := range s.Ports {
			fmt.Fprintf(&b, "  port %s %d/%s\n", *p.Name, *p.Port, *p.Protocol)
		}
		for _, e := range s.Endpoints {
			fmt.Fprintf(&b, "  %s\n", e.String())
		}
	}
	return b.String()
}
