// SPDX-License-Identifier: Apache-2.0

// Package agent is the agent without its command line: it translates objects from the API server,
// keeps the daemon in step with them, and reports the result.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
	"github.com/loxilight/loxilight/loxilight-agent/internal/health"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
	"github.com/loxilight/loxilight/loxilight-agent/internal/policies"
	"github.com/loxilight/loxilight/loxilight-agent/internal/pools"
	"github.com/loxilight/loxilight/loxilight-agent/internal/servicehealth"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
	"github.com/loxilight/loxilight/loxilight-agent/internal/syncer"
)

// Options of an [Agent].
type Options struct {
	Config   *config.Config
	NodeName string
	Kube     *kube.Client
	Daemon   *client.Client
	Log      *slog.Logger
	Version  string
}

// Kinds are the kinds of the agent's objects. Other kinds of the owner are left alone. If one
// transaction is not enough, they are sent in this order: no pod becomes a participant before the
// policies that select it, and the pod network does not require participants before they exist.
var Kinds = []string{
	api.KindInterface, api.KindTunnel, api.KindPeer, api.KindService, api.KindTier, api.KindNamespace, api.KindPolicy, api.KindEntity, api.KindPodNetwork,
}

// Agent is one agent. Create it with [New] and start it with [Agent.Run].
type Agent struct {
	o        Options
	log      *slog.Logger
	nodes    *kube.Store[corev1.Node]
	services *kube.Store[corev1.Service]
	slices   *kube.Store[packed]

	pods       *kube.Store[policies.Pod]
	namespaces *kube.Store[corev1.Namespace]
	policies   *kube.Store[packedPolicy]
	newPods    *newPods

	clusterPolicies *kube.Store[kube.ClusterNetworkPolicy]

	departed *departed
	queue    *queue
	state    *state
	events   *kube.Recorder
	metrics  *agentMetrics
	health   *servicehealth.Server // for Services with a health check of local endpoints

	known  atomic.Pointer[[]string] // addresses of the API servers; nil: not yet listed
	before func() []string          // the addresses that an earlier agent knew
	pools  *pools.Pools             // nil: no pools

	// Used only by the goroutine of Run.
	syncer       *syncer.Syncer
	translator   *translator // nil: this node is not known yet
	participants *participants
	// resolversLeft is how many DNS servers have no room in the PodNetwork.
	resolversLeft int
	remembers     bool // the objects from an earlier agent were read from the daemon
}

// New returns an agent that does not do anything yet.
func New(o Options) *Agent {
	a := &Agent{o: o, log: o.Log, departed: newDeparted(), queue: newQueue(), state: newState(), newPods: newNewPods(), participants: newParticipants(o.NodeName)}
	if configured := o.Config.LoadBalancer.Pools; len(configured) > 0 {
		var err error
		if a.pools, err = pools.New(configured); err != nil {
			panic(err) // the configuration was checked
		}
	}
	a.nodes = kube.NewStore(kube.StoreOptions[corev1.Node]{Trim: trimNode, Check: a.checkNodes, Confirm: true, Changed: a.nodeChanged})
	all := kube.StoreOptions[corev1.Service]{Trim: trimService, Changed: a.serviceChanged}
	if o.Config.ServiceProxyName == "" { // with a proxy name, there may be no Services
		all.Check = kube.NeverEmpty[corev1.Service]("Services")
	}
	a.services = kube.NewStore(all)
	a.slices = kube.NewStore(kube.StoreOptions[packed]{
		Convert: pack, Check: kube.NeverEmpty[packed]("EndpointSlices"), Changed: a.sliceChanged, Index: serviceOf,
	})
	a.newPolicyStores()
	a.events = kube.NewRecorder(o.Kube, o.Log, "loxilight-agent", o.NodeName)
	a.syncer = syncer.New(syncer.Options{
		Client: o.Daemon, Owner: nodes.Owner, Kinds: Kinds, Log: o.Log, All: a.translateAll,
		Refused: a.refused, Fallback: policies.Fallback, Applied: a.applied, Sent: a.sent,
	})
	a.before = onceIn(time.Second, a.askBefore)
	o.Kube.SetServers(a.servers)
	a.metrics = a.newMetrics()
	a.health = servicehealth.New(a.Healthy, a.healthPortFailed, o.Log)
	return a
}

// newPolicyStores makes the stores of which Policies and their participants are made. Lists that lack
// known objects are confirmed: without its Entity, a pod or a node is no peer of rules that deny.
func (a *Agent) newPolicyStores() {
	a.pods = kube.NewStore(kube.StoreOptions[policies.Pod]{
		Convert: packPod, Confirm: true, Changed: a.podChanged, Index: (*policies.Pod).Namespace,
	})
	a.namespaces = kube.NewStore(kube.StoreOptions[corev1.Namespace]{Trim: trimNamespace, Confirm: true, Changed: a.namespaceChanged})
	a.policies = kube.NewStore(kube.StoreOptions[packedPolicy]{
		Convert: packPolicy, Confirm: true, Changed: a.policyChanged, Index: func(p *packedPolicy) string { return p.Namespace },
	})
	a.clusterPolicies = kube.NewStore(kube.StoreOptions[kube.ClusterNetworkPolicy]{Trim: trimClusterPolicy, Confirm: true, Changed: a.clusterPolicyChanged})
}

// Run works until ctx is done. The daemon's state then stays in force.
func (a *Agent) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a panic must not wait for goroutines that wait for ctx
	defer a.health.Close()
	watcher := &kube.Watcher{Log: a.log, Failed: func(resource string, _ error) { a.metrics.apiFailures.Add(1, resource) }}
	all.Go(func() { health.Serve(ctx, a.log, "health", a.o.Config.Health.Listen, health.Handler(a)) })
	all.Go(func() { health.Serve(ctx, a.log, "metrics", a.o.Config.Metrics.Listen, metricsHandler(a.Metrics())) })
	all.Go(func() { watcher.Nodes(ctx, a.o.Kube, a.nodes) })
	ours, endpoints := services.Selectors(a.o.Config.ServiceProxyName)
	all.Go(func() { watcher.Services(ctx, a.o.Kube, ours, a.services) })
	all.Go(func() { kube.EndpointSlices(ctx, watcher, a.o.Kube, endpoints, a.slices) })
	all.Go(func() { kube.Pods(ctx, watcher, a.o.Kube, a.pods) })
	all.Go(func() { watcher.Namespaces(ctx, a.o.Kube, a.namespaces) })
	all.Go(func() { kube.NetworkPolicies(ctx, watcher, a.o.Kube, a.policies) })
	all.Go(func() { kube.ClusterPolicies(ctx, watcher, a.o.Kube, a.clusterPolicies) })
	a.newPods.ctx, a.newPods.tasks = ctx, &all
	all.Go(func() { a.events.Run(ctx) })
	all.Go(func() { a.tellCondition(ctx) })
	if !a.awaitLists(ctx) {
		return
	}
	a.logCounts()
	a.state.begin()
	a.keepInStep(ctx)
}

// awaitLists waits until the API server has sent every list once: until then, nothing is sent to
// the daemon, so nothing is deleted.
func (a *Agent) awaitLists(ctx context.Context) bool {
	for _, l := range a.lists() {
		select {
		case <-l.synced:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// list is the state of one resource's list from the API server.
type list struct {
	resource string
	synced   <-chan struct{}
}

func (a *Agent) lists() []list {
	return []list{
		{"nodes", a.nodes.Synced()}, {"services", a.services.Synced()}, {"endpointslices", a.slices.Synced()},
		{"pods", a.pods.Synced()}, {"namespaces", a.namespaces.Synced()}, {"networkpolicies", a.policies.Synced()},
		{"clusternetworkpolicies", a.clusterPolicies.Synced()},
	}
}

// missing names the resources that the API server has not sent yet.
func (a *Agent) missing() (resources []string) {
	for _, l := range a.lists() {
		select {
		case <-l.synced:
		default:
			resources = append(resources, l.resource)
		}
	}
	return resources
}

// checkNodes rejects a list without this node: either the API server is faulty, or the node was
// removed from the cluster, and then its forwarding continues.
func (a *Agent) checkNodes(list []*corev1.Node) error {
	for _, n := range list {
		if n.Name == a.o.NodeName {
			return nil
		}
	}
	return fmt.Errorf("%w: %d nodes, and this one, %s, is not among them: is it registered by that name?", kube.ErrImplausible, len(list), a.o.NodeName)
}

// self returns the API server's object for this node, or nil if it does not exist.
func (a *Agent) self() *corev1.Node { return a.nodes.Get(a.o.NodeName) }
