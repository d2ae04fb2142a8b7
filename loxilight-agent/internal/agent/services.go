// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

// translator holds the state of the translation of Services. Only the goroutine that sends to the
// daemon uses it.
type translator struct {
	node     *services.Node
	claims   *services.Claims
	prefixes []netip.Prefix    // of node ports
	problems map[string]string // of services, by namespace/name: the last reported error

	announcers []string            // nodes that share the load-balancer addresses
	here       map[netip.Addr]bool // addresses from pools: whether this node announces them
}

// serviceOf returns namespace/name of the service of a slice, or an empty string if the slice has
// no service.
func serviceOf(s *packed) string {
	if name := s.Labels[discoveryv1.LabelServiceName]; name != "" {
		return kube.Key(s.Namespace, name)
	}
	return ""
}

// serviceChanged is called for each change to a Service.
func (a *Agent) serviceChanged(old, now *corev1.Service) {
	s := either(now, old)
	a.noteResolvers(kube.Key(s.Namespace, s.Name))
	a.queue.put(item{itemService, kube.Key(s.Namespace, s.Name)}, time.Time{})
}

// sliceChanged is called for each change to an EndpointSlice.
func (a *Agent) sliceChanged(old, now *packed) {
	var before, after string
	if old != nil {
		before = serviceOf(old)
	}
	if now != nil {
		after = serviceOf(now)
	}
	if before == apiService || after == apiService {
		a.noteServers()
	}
	a.noteResolvers(before, after)
	if before != "" {
		a.noteDeparted(before, old, now, before == after)
	}
	if before != "" && before != after {
		a.queue.put(item{itemService, before}, time.Time{})
	}
	if after != "" {
		a.queue.put(item{itemService, after}, triggered(old, now))
	}
}

// noteDeparted remembers the endpoints that left a slice of a service; stays is set if the slice
// still exists.
func (a *Agent) noteDeparted(service string, old, now *packed, stays bool) {
	if !stays {
		now = nil
	}
	if a.services.Get(service) != nil && a.departed.note(service, old, now) {
		a.forgetLater(service)
	}
}

// triggered returns the time of the pod change that caused a slice to change, according to the
// slice's controller, or the zero time if it is unknown or an earlier change.
func triggered(old, now *packed) time.Time {
	text := now.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if text == "" || old != nil && old.Annotations[corev1.EndpointsLastChangeTriggerTime] == text {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || old == nil && time.Since(at) > time.Hour { // from the initial list
		return time.Time{}
	}
	return at
}

// newTranslator starts a new translation with the state of this node.
func (a *Agent) newTranslator(node *corev1.Node) *translator {
	t := &translator{claims: &services.Claims{}, problems: map[string]string{}, here: map[netip.Addr]bool{}}
	for _, text := range a.o.Config.NodePorts.Addresses {
		if p, err := netip.ParsePrefix(text); err == nil { // checked before
			t.prefixes = append(t.prefixes, p)
		}
	}
	t.node = services.NewNode(node, t.prefixes)
	if a.translator != nil {
		t.node.Complete(a.translator.node)
	}
	if len(t.prefixes) > 0 {
		a.health.SetAddresses(t.node.NodePorts)
	}
	t.node.ProxyName = a.o.Config.ServiceProxyName
	idle := a.o.Config.IdleTimeout
	t.node.IdleTimeout = api.IdleTimeout{TCP: api.Duration(idle.TCP), UDP: api.Duration(idle.UDP), SCTP: api.Duration(idle.SCTP)}
	if a.pools != nil && a.o.Config.LoadBalancer.Announce {
		t.announcers = a.announcers()
		t.node.Pool = func(ip netip.Addr) (ours, here bool) { return a.pools.Has(ip), t.here[ip] }
	}
	t.node.Policy = a.policy()
	if a.translator != nil {
		t.problems = a.translator.problems
	}
	return t
}

// translateServices translates all services for the current state of this node; since contains the
// times at which some services changed.
func (a *Agent) translateServices(node *corev1.Node, since map[item]time.Time) {
	a.translator = a.newTranslator(node)
	all := a.services.All()
	for _, s := range all {
		a.translator.claims.Set(a.translator.node, s)
	}
	there := make(map[string]bool, len(all))
	for _, s := range all {
		key := kube.Key(s.Namespace, s.Name)
		there[key] = true
		a.tellService(key, s, since[item{itemService, key}])
	}
	for _, group := range a.syncer.Groups() {
		if key, ok := strings.CutPrefix(group, groupService); ok && !there[key] {
			a.forgetService(key, time.Time{})
		}
	}
}

// translateService translates one service, and the services that gain or lose a frontend as a
// result.
func (a *Agent) translateService(key string, since time.Time) {
	if a.translator == nil {
		return // this node is not known yet: all are translated once it is
	}
	var affected []services.Key
	if s := a.services.Get(key); s != nil {
		affected = a.translator.claims.Set(a.translator.node, s)
		a.tellService(key, s, since)
	} else {
		namespace, name, _ := strings.Cut(key, "/")
		affected = a.translator.claims.Delete(services.Key{Namespace: namespace, Name: name})
		a.forgetService(key, since)
	}
	for _, other := range affected {
		if s := a.services.Get(other.String()); s != nil {
			a.tellService(other.String(), s, since)
		}
	}
}

func (a *Agent) tellService(key string, s *corev1.Service, since time.Time) {
	a.translator.announce(a, key, s)
	slices := a.departed.with(key, unpack(a.slices.By(key)))
	t := services.TranslateService(a.translator.node, s, slices, a.translator.claims)
	a.syncer.Set(groupService+key, t.Objects, since)
	a.health.Set(services.Key{Namespace: s.Namespace, Name: s.Name}, t.Health)
	a.reportInvalid(a.translator.problems, key, aboutService(s), t.Problems)
}

func (a *Agent) forgetService(key string, since time.Time) {
	a.departed.forget(key)
	a.syncer.Set(groupService+key, nil, since)
	namespace, name, _ := strings.Cut(key, "/")
	a.health.Set(services.Key{Namespace: namespace, Name: name}, nil)
	delete(a.translator.problems, key)
}

func aboutService(s *corev1.Service) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: s.UID}
}

// serviceNamed returns the Service to which the object of ours with that name belongs, or nil if
// there is none.
func (a *Agent) serviceNamed(object string) *corev1.Service {
	namespace, rest, _ := strings.Cut(object, "/")
	if end := strings.IndexAny(rest, ":/"); end >= 0 {
		rest = rest[:end]
	}
	return a.services.Get(kube.Key(namespace, rest))
}

// logCounts logs the number of objects in the cluster.
func (a *Agent) logCounts() {
	a.log.Info("the first lists of the cluster are complete", slog.Int("nodes", a.nodes.Len()), slog.Int("services", a.services.Len()), slog.Int("endpoint_slices", a.slices.Len()),
		slog.Int("pods", a.pods.Len()), slog.Int("namespaces", a.namespaces.Len()), slog.Int("network_policies", a.policies.Len()), slog.Int("cluster_network_policies", a.clusterPolicies.Len()))
}
