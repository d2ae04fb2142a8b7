// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"net/netip"

	"github.com/loxilight/loxilight/api"
	corev1 "k8s.io/api/core/v1"
)

// group is one port of a service during its translation: its objects share endpoints.
type group struct {
	*translator
	name      string // of the object for the cluster IPs
	labels    map[string]string
	idle      *api.IdleTimeout
	endpoints []endpoint // IPv4 first
	first     int        // index of the first IPv6 endpoint
	chosen    [2]chosen
	everybody []api.Backend // backends for clients that any endpoint may serve
	nearby    []api.Backend // backends for clients that only endpoints on this node may serve
	diverted  bool          // an object sends clients to all endpoints
	hasAll    bool          // the object of the cluster IPs has all endpoints
}

// split separates the families, whose endpoints are chosen independently.
func (g *group) split() {
	for g.first < len(g.endpoints) && g.endpoints[g.first].addr.Addr().Is4() {
		g.first++
	}
	for f := range g.chosen {
		g.chosen[f] = choose(g.node, g.of(f))
	}
}

func (g *group) of(family int) []endpoint {
	if family == 0 {
		return g.endpoints[:g.first]
	}
	return g.endpoints[g.first:]
}

// all returns the backends for clients that any endpoint may serve.
func (g *group) all() []api.Backend {
	if g.everybody == nil {
		g.everybody = make([]api.Backend, 0, len(g.endpoints))
		for f := range g.chosen {
			g.everybody = backends(g.everybody, g.of(f), g.chosen[f].cluster, g.chosen[f].any)
		}
	}
	return g.everybody
}

// local returns the backends for clients that only this node's endpoints may serve. Other endpoints
// stay as backends without new connections: connections that are older than the policy continue.
func (g *group) local() []api.Backend {
	if g.nearby == nil {
		g.nearby = make([]api.Backend, 0, len(g.endpoints))
		for f := range g.chosen {
			g.nearby = backends(g.nearby, g.of(f), g.chosen[f].local, g.chosen[f].here)
		}
	}
	return g.nearby
}

// policy sets backends, with only this node's endpoints serving if local is set. If only other
// nodes have endpoints, whatever sent the packet here will soon know that: the packet is dropped,
// so that the client retries. If this applies to one family of the frontends, packets of both are
// dropped.
func (g *group) policy(spec *api.ServiceSpec, local bool, list []wanted) {
	if !local {
		spec.Backends = g.all()
		return
	}
	spec.Backends = g.local()
	for _, w := range list {
		if c := &g.chosen[family(w.addr.Addr())]; c.any && !c.here {
			spec.NoBackend = "drop"
		}
	}
}

// cluster makes the object for the cluster IPs. Cluster IPs have no other use: packets to their
// other ports would loop between the node and its router.
func (g *group) cluster(list []wanted) {
	spec := &api.ServiceSpec{Frontends: texts(list), OtherPorts: "reject"}
	g.policy(spec, g.rules.internalLocal, list)
	g.hasAll = !g.rules.internalLocal
	g.object(g.name, spec)
}

// balancer makes the objects for a load balancer's addresses: one for each address from our pools,
// because each may be announced by a different node, and one for all other addresses.
func (g *group) balancer(list []wanted) {
	var rest []wanted
	for i, w := range list {
		if g.rules.closed[family(w.addr.Addr())] {
			continue
		}
		if ours, here := g.node.pool(w.addr.Addr()); ours {
			g.external(suffixBalancer+"/"+w.addr.Addr().StringExpanded(), list[i:i+1], true, here)
		} else {
			rest = append(rest, w)
		}
	}
	if len(rest) > 0 {
		g.external(suffixBalancer, rest, true, false)
	}
}

// external makes an object for frontends that clients from outside the cluster use.
func (g *group) external(suffix string, list []wanted, ranged, announce bool) {
	spec := &api.ServiceSpec{Frontends: texts(list), Source: "snat", Announce: announce}
	if ranged {
		spec.SourceRanges = g.sourceRanges(list)
	}
	g.policy(spec, g.rules.externalLocal, list)
	if g.rules.externalLocal {
		spec.Source = "keep"
		if len(g.rules.divertSources) > 0 {
			target := g.name
			if !g.hasAll {
				target += suffixInside
			}
			spec.Divert = []api.Divert{{Sources: g.rules.divertSources, Service: target}}
			g.diverted = true
		}
	}
	g.object(g.name+suffix, spec)
}

// inside makes the object to which clients are diverted if the object of the cluster IPs does not
// have all endpoints.
func (g *group) inside() {
	if !g.diverted || g.hasAll {
		return
	}
	name := g.name + suffixInside
	g.object(name, &api.ServiceSpec{Frontends: nowhere(name), Backends: g.all()})
}

// object adds one object to the translation.
func (g *group) object(name string, spec *api.ServiceSpec) {
	spec.Affinity, spec.IdleTimeout = g.rules.affinity, g.idle
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // strings and numbers can always be marshalled
	}
	g.objects = append(g.objects, api.Object{Kind: api.KindService, Name: name, Owner: Owner, Labels: g.labels, Spec: text})
}

// nowhere returns, for each family, a frontend that is unique to the name and gets no packets,
// because an object must have at least one frontend. 0.0.0.0/8 cannot be a destination (RFC 6890),
// and 100::/64 is discarded everywhere (RFC 6666).
func nowhere(name string) []string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	sum := h.Sum64()
	a4, a6 := [4]byte{1: byte(sum), 2: byte(sum >> 8), 3: 1 | byte(sum>>16)}, [16]byte{0: 0x01}
	binary.BigEndian.PutUint64(a6[8:], sum)
	port := uint16(sum>>24) | 1
	return []string{
		frontend{netip.AddrPortFrom(netip.AddrFrom4(a4), port), corev1.ProtocolTCP}.String(),
		frontend{netip.AddrPortFrom(netip.AddrFrom16(a6), port), corev1.ProtocolTCP}.String(),
	}
}

// sourceRanges returns the prefixes of permitted clients of the frontends: a family without ranges
// gets all addresses, if the other family has ranges.
func (g *group) sourceRanges(list []wanted) []string {
	var has [2]bool
	for _, w := range list {
		has[family(w.addr.Addr())] = true
	}
	var ranges []string
	bounded := false
	for f, everything := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		switch {
		case !has[f]:
		case g.rules.ranges[f] == nil:
			ranges = append(ranges, everything.String())
		default:
			bounded = true
			for _, p := range g.rules.ranges[f] {
				ranges = append(ranges, p.String())
			}
		}
	}
	if !bounded {
		return nil
	}
	return ranges
}

func texts(list []wanted) []string {
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = w.frontend.String()
	}
	return out
}
