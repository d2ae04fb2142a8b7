// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/health"
)

func TestProbesAndMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.agent()
	probe := httptest.NewServer(health.Handler(a))
	defer probe.Close()
	ask := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get(probe.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var body strings.Builder
		if err := r.Write(&body); err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, body.String()
	}
	served := httptest.NewServer(metricsHandler(a.Metrics()))
	defer served.Close()
	for path, want := range map[string]string{"/metrics": "loxilight_agent_", "/proxyMode": "loxilight"} {
		if r, err := http.Get(served.URL + path); err != nil {
			t.Error(err)
		} else if body, err := io.ReadAll(r.Body); err != nil || r.Body.Close() != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v, %q", path, r.Status, err, body)
		}
	}
	w.inStep(api.KindService, "default/kubernetes")
	eventually(t, "ready", func() bool { code, _ := ask("/readyz"); return code == http.StatusOK })
	if code, body := ask("/healthz"); code != http.StatusOK || !strings.Contains(body, `"nodeEligible":true`) {
		t.Errorf("healthz: %d %s", code, body)
	}
	doomed := w.kube.Node("n1")
	doomed.Spec.Taints = []corev1.Taint{{Key: taintRemoval, Effect: corev1.TaintEffectNoSchedule}}
	w.kube.Set(doomed)
	eventually(t, "not eligible", func() bool { code, _ := ask("/healthz"); return code == http.StatusServiceUnavailable })
	if code, _ := ask("/livez"); code != http.StatusOK {
		t.Errorf("livez: %d, but the agent is well", code)
	}
	if !a.Healthy() {
		t.Error("balancers that ask for a service get the answer that the node does not serve it")
	}
	s := slice("default", "kubernetes", "kubernetes", "192.0.2.100", "192.0.2.101")
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Add(-time.Second).Format(time.RFC3339Nano)}
	w.kube.Set(s)
	eventually(t, "two backends", func() bool { return backends(w.daemon.has()["Service/default/kubernetes"]) == 2 })
	var metrics strings.Builder
	eventually(t, "the latency is counted", func() bool {
		metrics.Reset()
		if err := a.Metrics().Write(&metrics); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(metrics.String(), "loxilight_agent_endpoints_latency_seconds_count 1\n")
	})
	for _, want := range []string{
		`loxilight_agent_endpoints_latency_seconds_bucket{le="0.5"} 0`, "loxilight_agent_synced 1", "loxilight_agent_ready 1",
		"loxilight_agent_nodes 2", "loxilight_agent_objects 10",
	} {
		if !strings.Contains(metrics.String(), want+"\n") {
			t.Errorf("no %q in\n%s", want, metrics.String())
		}
	}
	w.daemon.kill()
	eventually(t, "not ready", func() bool { code, _ := ask("/readyz"); return code == http.StatusServiceUnavailable })
	if code, _ := ask("/livez"); code != http.StatusOK {
		t.Errorf("livez: %d right after the daemon was killed", code)
	}
}

// TestProbesWithoutDaemon: an agent that knows everything but cannot reach the daemon is unhealthy
// after two minutes, and reports the node's network as unavailable after one; before it knows
// everything, the state is unknown.
func TestProbesWithoutDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon.kill()
	a, _ := w.agent()
	eventually(t, "everything is known", func() bool { return a.state.numbers().begun })
	expect := func(what string, since time.Duration, alive bool, status corev1.ConditionStatus) {
		t.Helper()
		a.state.mu.Lock()
		a.state.since = time.Now().Add(-since)
		a.state.mu.Unlock()
		if got, _ := a.Alive(); got != alive {
			t.Errorf("%s: alive %t", what, got)
		}
		if got, _, _ := a.state.condition(time.Now()); got != status {
			t.Errorf("%s: NetworkUnavailable is %s, want %s", what, got, status)
		}
	}
	expect("at first", 0, true, corev1.ConditionUnknown)
	expect("after a minute", daemonGrace+time.Second, true, corev1.ConditionTrue)
	expect("after two", stuckAfter+time.Second, false, corev1.ConditionTrue)
	if a.Healthy() {
		t.Error("balancers get the answer that services are served")
	}
	a.state.mu.Lock()
	a.state.begun = false
	a.state.mu.Unlock()
	expect("before all was listed", stuckAfter+time.Second, true, corev1.ConditionUnknown)
	w.daemon.start()
}

// TestConditionWaitsForTheNetwork: a daemon that has just received everything has not reported the
// state of the pod network yet, however long that took.
func TestConditionWaitsForTheNetwork(t *testing.T) {
	s := newState()
	s.begin()
	s.podsSince = time.Now().Add(-time.Hour)
	s.inStep()
	if status, _, message := s.condition(time.Now().Add(2 * podsGrace)); status != corev1.ConditionUnknown {
		t.Errorf("NetworkUnavailable is %s: %s", status, message)
	}
	s.network(api.StatePending, "not yet")
	for after, want := range map[time.Duration]corev1.ConditionStatus{podsGrace / 2: corev1.ConditionUnknown, 2 * podsGrace: corev1.ConditionTrue} {
		if status, _, _ := s.condition(time.Now().Add(after)); status != want {
			t.Errorf("%s after: NetworkUnavailable is %s, want %s", after, status, want)
		}
	}
}
