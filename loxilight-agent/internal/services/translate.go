// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Names of the objects for a port of a service: the object for the cluster IPs is named after the
// service, followed by :NAME if the port has a name; the others append these suffixes.
const (
	suffixInside   = "/inside"       // all endpoints, for clients of the cluster that are diverted here
	suffixNodePort = "/nodeport"     //
	suffixBalancer = "/loadbalancer" // for addresses from our pools, followed by / and the address
	suffixExternal = "/external"     // external IPs
)

// Labels of all objects of a service.
const (
	LabelNamespace = "namespace"
	LabelService   = "service"
	LabelPort      = "port" // its name, or its number if it has no name
)

// Translation is the translation of one service for a node.
type Translation struct {
	// Objects are the objects of the service, in the order of their names. Send changes to them in
	// one transaction, because a frontend may move from one to another.
	Objects []api.Object
	// Health is the health check of the service on this node; nil: it has no health check.
	Health *Health
	// Problems are the parts of the service that are not implemented, and why: for an event.
	Problems []string
}

// Health is a node's answer to load balancers about a service.
type Health struct {
	Port  uint16
	Local int // ready endpoints on this node
}

// TranslateService translates a service with its slices for a node. claims contains the frontends
// that belong to other services, and is nil if there are no other services. The arguments are not
// changed.
func TranslateService(n *Node, s *corev1.Service, slices []*discoveryv1.EndpointSlice, claims *Claims) Translation {
	if !n.Concerns(s) {
		return Translation{}
	}
	t := &translator{node: n, service: s, slices: sortedSlices(slices), addresses: addressesOf(n, s)}
	t.bad, t.problems = t.addresses.bad, t.addresses.refused
	t.readRules()
	list := t.won(t.addresses.frontends(s), claims)
	for i := range s.Spec.Ports {
		t.port(&s.Spec.Ports[i], ofPort(list, i))
	}
	t.sortObjects()
	if len(t.bad) > 0 {
		t.problems = append(t.problems, "ignored, not valid addresses: "+strings.Join(t.bad, ", "))
	}
	return Translation{Objects: t.objects, Health: t.health(), Problems: t.problems}
}

func sortedSlices(list []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	byName := func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }
	if slices.IsSortedFunc(list, byName) {
		return list
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, byName)
	return list
}

// translator is a translation in progress.
type translator struct {
	node      *Node
	service   *corev1.Service
	slices    []*discoveryv1.EndpointSlice
	addresses *addresses
	rules     rules
	objects   []api.Object
	problems  []string
	bad       []string
}

// rules are the settings for all ports of a service.
type rules struct {
	affinity                     *api.Affinity
	internalLocal, externalLocal bool
	ranges                       [2][]netip.Prefix
	closed                       [2]bool
	divertSources                []string
}

// Bounds and default of an affinity's timeout.
const (
	minAffinity     = time.Second
	maxAffinity     = 24 * time.Hour
	defaultAffinity = 3 * time.Hour
)

func (t *translator) readRules() {
	s := t.service
	r := &t.rules
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		timeout := defaultAffinity
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			timeout = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
		r.affinity = &api.Affinity{Timeout: api.Duration(min(max(timeout, minAffinity), maxAffinity))}
	}
	r.internalLocal = s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	r.externalLocal = s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if len(s.Spec.LoadBalancerSourceRanges) > 0 {
		var bad []string
		r.ranges, r.closed, bad = sourceRanges(t.node, s, t.addresses.balancer)
		t.bad = append(t.bad, bad...)
	}
	if r.externalLocal {
		for _, p := range t.node.Inside {
			r.divertSources = append(r.divertSources, p.String())
		}
	}
}

// won leaves out the frontends that other services have.
func (t *translator) won(list []wanted, claims *Claims) []wanted {
	if claims == nil {
		return list
	}
	key := Key{Namespace: t.service.Namespace, Name: t.service.Name}
	return slices.DeleteFunc(list, func(w wanted) bool {
		holder, ok := claims.Holder(w.addr, w.proto)
		if !ok || holder == key {
			return false
		}
		if len(t.problems) < maxProblems {
			t.problems = append(t.problems, fmt.Sprintf("%s belongs to service %s", w.frontend, holder))
		}
		return true
	})
}

func ofPort(list []wanted, port int) []wanted {
	first := slices.IndexFunc(list, func(w wanted) bool { return w.port == port })
	if first < 0 {
		return nil
	}
	end := first
	for end < len(list) && list[end].port == port {
		end++
	}
	return list[first:end]
}

// port makes the objects of one port.
func (t *translator) port(p *corev1.ServicePort, list []wanted) {
	if len(list) == 0 {
		return
	}
	g := &group{
		translator: t, name: objectName(t.service, p),
		endpoints: collect(t.node, p, t.slices, t.badEndpoint), idle: t.node.idleTimeout(p.Protocol),
	}
	g.labels = map[string]string{LabelNamespace: t.service.Namespace, LabelService: t.service.Name, LabelPort: portLabel(p)}
	g.split()
	for _, role := range []role{roleCluster, roleNodePort, roleLoadBalancer, roleExternal} {
		of := slices.Clone(list)
		of = slices.DeleteFunc(of, func(w wanted) bool { return w.role != role })
		if len(of) == 0 {
			continue
		}
		switch role {
		case roleCluster:
			g.cluster(of)
		case roleNodePort:
			g.external(suffixNodePort, of, false, false)
		case roleLoadBalancer:
			g.balancer(of)
		case roleExternal:
			g.external(suffixExternal, of, false, false)
		}
	}
	g.inside()
}

// portLabel returns a port's name, or its number if it has no name.
func portLabel(p *corev1.ServicePort) string {
	if p.Name != "" {
		return p.Name
	}
	return strconv.Itoa(int(p.Port))
}

// objectName returns the name of the object for a port's cluster IPs, which is the prefix of the
// names of the port's other objects. The number of a port without a name is not part of it, because
// the number may change.
func objectName(s *corev1.Service, p *corev1.ServicePort) string {
	name := s.Namespace + "/" + s.Name
	if p.Name != "" {
		name += ":" + p.Name
	}
	return name
}

// PortOf returns the port of a service to which the object of that name belongs, or nil if there is
// no such port, or no longer.
func PortOf(s *corev1.Service, object string) *corev1.ServicePort {
	i := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		rest, found := strings.CutPrefix(object, objectName(s, &p))
		return found && (rest == "" || rest[0] == '/')
	})
	if i < 0 {
		return nil
	}
	return &s.Spec.Ports[i]
}

func (t *translator) badEndpoint(text string) {
	if len(t.bad) < maxProblems && !slices.Contains(t.bad, text) {
		t.bad = append(t.bad, text)
	}
}

// maxProblems bounds how many items one event lists.
const maxProblems = 10

func (t *translator) sortObjects() {
	slices.SortFunc(t.objects, func(a, b api.Object) int { return cmp.Compare(a.Name, b.Name) })
}

// health counts the ready endpoints on this node, each address once, regardless of its ports.
func (t *translator) health() *Health {
	s := t.service
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || !t.rules.externalLocal || s.Spec.HealthCheckNodePort < 1 || s.Spec.HealthCheckNodePort > 65535 {
		return nil
	}
	var seen [2][]netip.Addr
	for _, slice := range t.slices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.NodeName == nil || *e.NodeName != t.node.Name || !valueOr(e.Conditions.Ready, true) || len(e.Addresses) == 0 {
				continue
			}
			if a, ok := parseAddr(e.Addresses[0]); ok && isHost(a) {
				seen[family(a)] = append(seen[family(a)], a)
			}
		}
	}
	return &Health{Port: uint16(s.Spec.HealthCheckNodePort), Local: max(len(sortedAddrs(seen[0])), len(sortedAddrs(seen[1])))}
}

// idleTimeout returns the timeout of a port's protocol: timeouts of other protocols would have no
// effect.
func (n *Node) idleTimeout(p corev1.Protocol) *api.IdleTimeout {
	var i api.IdleTimeout
	switch protocol(p) {
	case corev1.ProtocolUDP:
		i.UDP = n.IdleTimeout.UDP
	case corev1.ProtocolSCTP:
		i.SCTP = n.IdleTimeout.SCTP
	default:
		i.TCP = n.IdleTimeout.TCP
	}
	if i == (api.IdleTimeout{}) {
		return nil
	}
	return &i
}
