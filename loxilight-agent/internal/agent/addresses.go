// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/pools"
)

// announces reports whether a node may announce load-balancer addresses.
func announces(n *corev1.Node) bool {
	if n == nil || n.DeletionTimestamp != nil {
		return false
	}
	if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; excluded {
		return false
	}
	for _, t := range n.Spec.Taints {
		if t.Key == taintRemoval {
			return false
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// announcers returns the nodes that share the load-balancer addresses.
func (a *Agent) announcers() (names []string) {
	for _, n := range a.nodes.All() {
		if announces(n) {
			names = append(names, n.Name)
		}
	}
	return names
}

// pooled returns the addresses of a Service that were assigned from pools.
func (a *Agent) pooled(s *corev1.Service) []netip.Addr {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || a.pools == nil || !a.o.Config.LoadBalancer.Announce {
		return nil
	}
	return slices.DeleteFunc(pools.Ingress(s), func(ip netip.Addr) bool { return !a.pools.Has(ip) })
}

// announce records which addresses of a Service this node announces: with external traffic policy
// Local, only nodes with endpoints of the address's family are candidates.
func (t *translator) announce(a *Agent, key string, s *corev1.Service) {
	addresses := a.pooled(s)
	if len(addresses) == 0 {
		return
	}
	var endpoints []*discoveryv1.EndpointSlice
	local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if local {
		endpoints = unpack(a.slices.By(key))
	}
	for _, ip := range addresses {
		candidates := t.announcers
		if local {
			candidates = serving(candidates, endpoints, ip.Is4())
		}
		t.here[ip] = pools.Announcer(ip, candidates) == a.o.NodeName
	}
}

// serving returns the nodes with serving endpoints of a family: ready endpoints, and terminating
// endpoints that serve until they end. If the address moved earlier, their connections would
// break.
func serving(nodes []string, list []*discoveryv1.EndpointSlice, is4 bool) []string {
	have := map[string]bool{}
	for _, slice := range list {
		if (slice.AddressType == discoveryv1.AddressTypeIPv4) != is4 {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			if e.NodeName != nil && (ready || e.Conditions.Serving != nil && *e.Conditions.Serving) {
				have[*e.NodeName] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return !have[name] })
}

// announceAnew again translates the services whose addresses may have a new announcer.
func (a *Agent) announceAnew() {
	if a.translator == nil {
		return
	}
	a.translator.announcers = a.announcers()
	for _, s := range a.services.All() {
		if len(a.pooled(s)) > 0 {
			a.tellService(kube.Key(s.Namespace, s.Name), s, time.Time{})
		}
	}
}
