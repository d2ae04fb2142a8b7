// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
)

// noteResolvers is called when Services, by namespace/name, or their endpoints have changed.
func (a *Agent) noteResolvers(services ...string) {
	for _, key := range services {
		if slices.Contains(a.o.Config.Resolvers.Services, key) {
			a.queue.put(item{kind: itemResolvers}, time.Time{})
		}
	}
}

// translateNetwork translates the network of this node's pods. The current state stays in force if
// the node is no longer in the cluster, or has no valid podCIDRs.
func (a *Agent) translateNetwork() {
	node := a.self()
	if node == nil {
		a.syncer.Keep(groupNetwork, podNetwork)
		return
	}
	network, err := nodes.PodNetwork(a.o.Config, node, a.resolvers())
	if err != nil {
		a.reportProblem(nodeOf(a.o.NodeName), reasonInvalid, err)
	}
	if network == nil {
		a.syncer.Keep(groupNetwork, podNetwork)
		return
	}
	a.syncer.Set(groupNetwork, []api.Object{*network}, time.Time{})
}

// resolvers returns the DNS servers from whose responses names are learnt.
func (a *Agent) resolvers() []string {
	var dns []*corev1.Service
	var endpoints []*discoveryv1.EndpointSlice
	for _, key := range a.o.Config.Resolvers.Services {
		if s := a.services.Get(key); s != nil {
			dns, endpoints = append(dns, s), append(endpoints, unpack(a.slices.By(key))...)
		}
	}
	list, left := nodes.Resolvers(a.o.Config, dns, endpoints)
	if left != a.resolversLeft && left > 0 {
		a.log.Warn("names are not learnt from all endpoints of DNS Services, because a PodNetwork has no room for more; responses through the Services are not affected", slog.Int("endpoints", left))
	}
	a.resolversLeft = left
	return list
}
