// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/pools"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

// policy returns which addresses Services may have, given the configuration and the current
// addresses of the cluster's nodes.
func (a *Agent) policy() services.Policy {
	p := services.Policy{
		ExternalIPs: config.Prefixes(a.o.Config.ExternalIPs.Allowed),
		Reserved:    services.NewReserved(a.nodes.All()).Of,
	}
	if a.pools != nil {
		p.InPool = a.pools.Has
	}
	allowed := config.Prefixes(a.o.Config.LoadBalancer.Allowed)
	if a.pools != nil || len(allowed) > 0 {
		p.Ingress = func(s *corev1.Service, ip netip.Addr) bool {
			return a.pools != nil && (a.pools.Has(ip) || pools.Given(s) != nil) ||
				slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(ip) })
		}
	}
	return p
}

// reserveAnew again translates the Services that have addresses besides their cluster IPs: such an
// address may now belong to a node, or no longer belong to one.
func (a *Agent) reserveAnew() {
	if a.translator == nil {
		return
	}
	node := *a.translator.node
	node.Policy = a.policy()
	a.translator.node = &node
	for _, s := range a.services.All() {
		if len(s.Spec.ExternalIPs) > 0 || len(s.Status.LoadBalancer.Ingress) > 0 {
			a.translateService(kube.Key(s.Namespace, s.Name), time.Time{})
		}
	}
}

// listOf returns a list of one object, or of none.
func listOf[T any](one *T) []*T {
	if one == nil {
		return nil
	}
	return []*T{one}
}
