// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
	"github.com/loxilight/loxilight/loxilight-agent/internal/controller"
)

// conditions returns the conditions of a ClusterNetworkPolicy.
func (w *world) conditions(name string) []metav1.Condition {
	w.t.Helper()
	var status struct{ Conditions []metav1.Condition }
	p := w.kube.ClusterPolicy(name)
	if p == nil {
		w.t.Fatalf("there is no policy %s", name)
	}
	if err := json.Unmarshal(raw(w.t, p.Object["status"]), &status); err != nil {
		w.t.Fatal(err)
	}
	return status.Conditions
}

// condition waits for a condition of a ClusterNetworkPolicy.
func (w *world) condition(name string, status metav1.ConditionStatus, reason, message string) (is metav1.Condition) {
	w.t.Helper()
	eventually(w.t, name+" has the condition "+reason, func() bool {
		for _, is = range w.conditions(name) {
			if is.Type == controller.ConditionAccepted && is.Status == status && is.Reason == reason && strings.Contains(is.Message, message) {
				return true
			}
		}
		return false
	})
	return is
}

// TestConditions: one of two controllers writes the conditions of ClusterNetworkPolicies, only when
// they change, and keeps the conditions of other writers. Agents write none.
func TestConditions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Define(testkube.ClusterPolicyVersion)
	first := clusterPolicy("a", "db")
	first.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Other", "status": "True", "reason": "Theirs", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}
	w.kube.Set(namespace("shop"), first)
	w.agent()
	w.holds("Policy/cnp/a", clusterDenies("db"))
	if n := w.kube.Calls("patch "+testkube.ClusterPolicies) + w.kube.Calls("get leases"); n != 0 {
		t.Errorf("%d requests of an agent", n)
	}
	stop := w.controller("c1")
	w.controller("c2")
	is := w.condition("a", metav1.ConditionTrue, "Accepted", "")
	if is.ObservedGeneration != 1 || is.LastTransitionTime.IsZero() {
		t.Errorf("%+v", is)
	}
	if all := w.conditions("a"); len(all) != 2 || all[0].Reason != "Theirs" {
		t.Errorf("%+v", all)
	}

	w.kube.Set(clusterPolicy("b", "db"))
	w.condition("b", metav1.ConditionTrue, "AmbiguousOrder", "is also the priority of a")
	w.condition("a", metav1.ConditionTrue, "AmbiguousOrder", "is also the priority of b")
	b := testkube.NewClusterPolicy("b", `{"tier":"Baseline","priority":7,"subject":{"namespaces":{}},"egress":[{"action":"Accept","to":[{}]}]}`)
	b.SetGeneration(2)
	w.kube.Set(b)
	if is := w.condition("b", metav1.ConditionFalse, "Invalid", "spec.egress[0].to[0]: has not exactly one"); is.ObservedGeneration != 2 {
		t.Errorf("%+v", is)
	}
	w.condition("a", metav1.ConditionTrue, "Accepted", "")

	// Nothing changes: nothing is written.
	patches := w.kube.Calls("patch " + testkube.ClusterPolicies)
	renewed := w.kube.Calls("put leases")
	eventually(t, "the lease is renewed", func() bool { return w.kube.Calls("put leases") > renewed })
	if now := w.kube.Calls("patch " + testkube.ClusterPolicies); now != patches {
		t.Errorf("%d patches without a change", now-patches)
	}

	stop() // the other one continues
	w.kube.Set(clusterPolicy("c", "db"))
	w.condition("c", metav1.ConditionTrue, "AmbiguousOrder", "")
}

// TestNoPoliciesNoLease: without pools and policies, a controller asks for no lease.
func TestNoPoliciesNoLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.controller("c1")
	time.Sleep(4 * time.Second) // more than the pause between two rounds
	if n := w.kube.Calls("get leases"); n != 0 {
		t.Errorf("%d requests for leases", n)
	}
	w.config.LoadBalancer.Pools = []config.Pool{{Name: "lan", Addresses: []string{"203.0.113.16/30"}}}
	w.controller("c2")
	eventually(t, "a lease for pools", func() bool { return w.kube.Calls("get leases") > 0 })
}
