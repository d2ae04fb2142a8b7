// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/metrics"
)

// agentMetrics are the metrics of an agent.
type agentMetrics struct {
	registry    metrics.Registry
	latency     metrics.Histogram
	calls       metrics.Histogram
	errors      metrics.Counter
	apiFailures metrics.Counter
	refusals    metrics.Counter
	repairs     metrics.Counter
}

func (a *Agent) newMetrics() *agentMetrics {
	f := &agentMetrics{}
	r := &f.registry
	f.latency = r.Histogram("loxilight_agent_endpoints_latency_seconds",
		"Time from a pod's change, as reported by its EndpointSlice, to the daemon's reply.",
		[]float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300})
	f.calls = r.Histogram("loxilight_agent_daemon_call_seconds", "Duration of changes in the daemon.",
		[]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}, "method")
	f.errors = r.Counter("loxilight_agent_daemon_errors_total", "Changes that the daemon did not make.", "method", "reason")
	f.apiFailures = r.Counter("loxilight_agent_api_server_errors_total", "Requests that the API server did not answer as expected.", "resource")
	f.refusals = r.Counter("loxilight_agent_refusals_total", "Objects that the daemon refused.", "kind")
	f.repairs = r.Counter("loxilight_agent_repairs_total", "Number of objects repaired after an external change.")
	r.Gauge("loxilight_agent_objects", "Objects desired in the daemon.", func() float64 { return float64(a.state.numbers().objects) })
	r.Gauge("loxilight_agent_refused_objects", "Desired objects that the daemon refuses.", func() float64 { return float64(a.state.numbers().refused) })
	r.Gauge("loxilight_agent_queue", "Cluster changes that the daemon has not applied yet.", func() float64 {
		waiting, _ := a.queue.waiting()
		return float64(waiting)
	})
	r.Gauge("loxilight_agent_nodes", "Nodes in the cluster.", func() float64 { return float64(a.nodes.Len()) })
	r.Gauge("loxilight_agent_services", "Services in the cluster.", func() float64 { return float64(a.services.Len()) })
	r.Gauge("loxilight_agent_endpoint_slices", "EndpointSlices in the cluster.", func() float64 { return float64(a.slices.Len()) })
	r.Gauge("loxilight_agent_pods", "Pods in the cluster.", func() float64 { return float64(a.pods.Len()) })
	r.Gauge("loxilight_agent_namespaces", "Namespaces in the cluster.", func() float64 { return float64(a.namespaces.Len()) })
	r.Gauge("loxilight_agent_network_policies", "NetworkPolicies in the cluster.", func() float64 { return float64(a.policies.Len()) })
	r.Gauge("loxilight_agent_cluster_network_policies", "ClusterNetworkPolicies in the cluster.", func() float64 { return float64(a.clusterPolicies.Len()) })
	r.Gauge("loxilight_agent_synced", "1: the daemon has the state of the API server.", func() float64 { return bit(a.state.numbers().daemon) })
	r.Gauge("loxilight_agent_ready", "1: the node can carry pods.", func() float64 { ready, _ := a.Readiness(); return bit(ready) })
	return f
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// applied is called when the daemon has a change; since is when the change was made.
func (a *Agent) applied(_ string, since time.Time) {
	a.metrics.latency.Observe(time.Since(since).Seconds())
}

// sent is called after each requested change.
func (a *Agent) sent(method string, _ int, took time.Duration, err error) {
	a.metrics.calls.Observe(took.Seconds(), method)
	if err == nil {
		return
	}
	reason := "unreachable"
	if refused, ok := errors.AsType[*api.Error](err); ok {
		reason = string(refused.Reason())
	}
	a.metrics.errors.Add(1, method, reason)
}

// Metrics returns the metrics of the agent, to be served.
func (a *Agent) Metrics() *metrics.Registry { return &a.metrics.registry }

// metricsHandler serves the metrics for Prometheus, and the name of the service proxy for clients
// that expect kube-proxy.
func metricsHandler(r *metrics.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", r)
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "loxilight") // the client is gone if this fails
	})
	return mux
}

// stuckAfter is how long a change may wait before the agent counts as unhealthy.
const stuckAfter = 2 * time.Minute

// Alive implements health.Checks.
func (a *Agent) Alive() (alive bool, updated time.Time) {
	_, oldest := a.queue.waiting()
	n := a.state.numbers()
	now := time.Now()
	switch {
	case !n.begun: // the API server may take its time
		return true, n.updated
	case !n.daemon:
		return now.Sub(n.since) < stuckAfter, n.updated
	}
	return oldest.IsZero() || now.Sub(oldest) < stuckAfter, now
}

// Live implements health.Checks: an unreachable daemon is not the agent's fault.
func (a *Agent) Live() bool {
	_, oldest := a.queue.waiting()
	n := a.state.numbers()
	return !n.daemon || oldest.IsZero() || time.Since(oldest) < stuckAfter || time.Since(n.updated) < stuckAfter
}

// taintRemoval is on nodes that the cluster autoscaler is about to remove.
const taintRemoval = "ToBeDeletedByClusterAutoscaler"

// Eligible implements health.Checks.
func (a *Agent) Eligible() bool {
	node := a.self()
	if node == nil || node.DeletionTimestamp != nil {
		return false
	}
	for _, t := range node.Spec.Taints {
		if t.Key == taintRemoval {
			return false
		}
	}
	return true
}

// Healthy reports whether this node serves services, for the health checks of services: also while
// the node is about to be removed, because its endpoints may be the last ones.
func (a *Agent) Healthy() bool {
	alive, _ := a.Alive()
	return alive
}
