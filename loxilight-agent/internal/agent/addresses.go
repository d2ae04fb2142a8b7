// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/pools"
)

// reasonAddresses is of events about addresses that a Service does not get.
const reasonAddresses = "LoxilightNoAddress"

// One agent gives out addresses, the one that holds the lease. settle is how long a new
// one waits for what the one before did to be told.
const (
	leaseName     = "loxilight-addresses"
	leaseDuration = 15 * time.Second
	leaseTry      = 3 * time.Second
	settle        = 2 * time.Second
	assignPause   = 100 * time.Millisecond // between two rounds: what the last one did is told meanwhile
)

// namespace is that of the agent's pod, where its lease is.
func namespace() string {
	if name := os.Getenv("POD_NAMESPACE"); name != "" {
		return name
	}
	if text, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace"); err == nil {
		return strings.TrimSpace(string(text))
	}
	return "kube-system"
}

// giveOut gives out addresses, as long as this agent is the one that does.
func (a *Agent) giveOut(ctx context.Context) {
	if len(a.o.Config.LoadBalancer.Pools) == 0 || !a.awaitLists(ctx) {
		return
	}
	lease := &kube.Lease{Client: a.o.Kube, Namespace: namespace(), Name: leaseName, Holder: a.o.NodeName, Duration: leaseDuration}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = lease.Release(ctx) // somebody else takes it a little later then
	}()
	told := map[string]string{} // problems, by namespace/name
	for {
		if err := lease.Try(ctx); err != nil && ctx.Err() == nil {
			a.log.Debug("the lease for giving out addresses could not be taken", slog.Any("error", err))
		}
		if since := lease.Held(); !since.IsZero() && time.Since(since) > settle {
			a.assign(ctx, told)
		}
		if !sleep(ctx, assignPause) {
			return
		}
		select {
		case <-a.balancers:
		case <-time.After(leaseTry):
		case <-ctx.Done():
			return
		}
	}
}

// assign writes the addresses of Services that do not have theirs.
func (a *Agent) assign(ctx context.Context, told map[string]string) {
	now := map[string]string{}
	for _, as := range a.pools.Assign(a.services.All()) {
		s := as.Service
		key := kube.Key(s.Namespace, s.Name)
		if as.Problem != "" {
			now[key] = as.Problem
			if told[key] != as.Problem {
				a.complain(aboutService(s), reasonAddresses, errors.New(as.Problem))
			}
		}
		if !as.Changed() {
			continue
		}
		err := a.o.Kube.PatchServiceAddresses(ctx, s, as.Addresses, pools.Manager)
		switch {
		case err == nil:
			a.log.Info("a service has its addresses", slog.String("service", key), slog.Any("addresses", as.Addresses))
		case apierrors.IsConflict(err) || apierrors.IsNotFound(err) || ctx.Err() != nil: // it has changed meanwhile, and that comes
		default:
			a.log.Warn("the addresses of a service could not be written; it is tried again", slog.String("service", key), slog.Any("error", err))
		}
	}
	clear(told)
	for key, problem := range now {
		told[key] = problem
	}
}

// announces says whether a node may announce addresses of load balancers.
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

// announcers returns the nodes that share the addresses of load balancers.
func (a *Agent) announcers() (names []string) {
	for _, n := range a.nodes.All() {
		if announces(n) {
			names = append(names, n.Name)
		}
	}
	return names
}

// pooled returns the addresses of a Service that were given out from pools.
func (a *Agent) pooled(s *corev1.Service) []netip.Addr {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || a.pools == nil || !a.o.Config.LoadBalancer.Announce {
		return nil
	}
	return slices.DeleteFunc(pools.Ingress(s), func(ip netip.Addr) bool { return !a.pools.Has(ip) })
}

// announce notes which addresses of a Service this node announces: with external traffic
// policy Local only nodes with endpoints of the address's family come into question.
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

// serving returns those of the nodes that have endpoints of a family that serve: ready ones,
// and those that end and serve until then. Where the address moved before they are gone, it
// would leave their connections behind.
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

// announceAnew translates the services whose addresses another node may announce now.
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
