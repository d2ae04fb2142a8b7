// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testkube"
)

// clusterPolicy denies what pods with the label app receive.
func clusterPolicy(name, app string) *unstructured.Unstructured {
	return testkube.NewClusterPolicy(name, `{"tier":"Admin","priority":7,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"`+app+`"}}}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`)
}

func clusterDenies(app string) string {
	return `{"tier":"admin","priority":7,"appliedTo":[{"namespaces":{},"entities":{"matchLabels":{"app":"` + app + `"}}}],"ingress":[{"action":"deny","from":[{"namespaces":{}}]}]}`
}

// reported waits for an event about a ClusterNetworkPolicy.
func (w *world) reported(name, reason, text string) {
	w.t.Helper()
	eventually(w.t, "an event about "+name+" with "+text, func() bool {
		for _, e := range w.kube.Events() {
			if e.InvolvedObject.Kind == "ClusterNetworkPolicy" && e.InvolvedObject.APIVersion == "policy.networking.k8s.io/v1alpha2" &&
				e.InvolvedObject.Name == name && e.Reason == reason && strings.Contains(e.Message, text) {
				return true
			}
		}
		return false
	})
}

// TestClusterPolicies follows ClusterNetworkPolicies through their changes. Changes of their status
// cause no transaction.
func TestClusterPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Define(testkube.ClusterPolicyVersion)
	w.kube.Set(namespace("shop"), pod("shop", "db", "db", "n1"), clusterPolicy("a", "db"))
	w.agent()
	w.holds("Policy/cnp/a", clusterDenies("db"))
	w.holds("Tier/admin", `{"order":100}`)
	w.holds("Tier/baseline", `{"order":300}`)
	w.kube.Set(clusterPolicy("a", "web"))
	w.holds("Policy/cnp/a", clusterDenies("web"))
	staged := clusterPolicy("b", "web")
	staged.SetAnnotations(map[string]string{"loxilight.io/stage": "staged"})
	w.kube.Set(staged)
	w.holds("Policy/cnp/b", strings.Replace(clusterDenies("web"), `"priority":7,`, `"priority":7,"stage":"staged",`, 1))
	w.reported("a", reasonAmbiguous, "spec.priority: 7 in tier admin is also the priority of b")
	w.reported("b", reasonAmbiguous, "spec.priority: 7 in tier admin is also the priority of a")

	status, err := w.daemon.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same := clusterPolicy("a", "web")
	same.Object["status"] = map[string]any{"conditions": []any{}}
	w.kube.Set(same)
	w.settled()
	if after, err := w.daemon.Status(t.Context()); err != nil || after.Revision != status.Revision+1 {
		t.Errorf("revision %d, then %d: only one change was made (%v)", status.Revision, after.Revision, err)
	}

	w.kube.Delete(clusterPolicy("a", ""))
	w.inStep(api.KindPolicy, "cnp/b")
	w.kube.Set(testkube.NewClusterPolicy("c", `{"tier":"Baseline","priority":7,"subject":{"namespaces":{}},"egress":[{"action":"Accept","to":[{"domainNames":["*.Example.org"]}]},{"action":"Accept","to":[{"domainNames":["*"]}]}]}`))
	w.holds("Policy/cnp/c", `{"tier":"baseline","priority":7,"appliedTo":[{"namespaces":{}}],"egress":[{"action":"allow","to":[{"names":["*.example.org"]}]}]}`)
	w.reported("c", reasonInvalid, `spec.egress[1].to[0].domainNames[0]: "*" is not a domain name`)
}

// TestDefinitionComesAndGoes: the cluster gets the resource, loses it, and gets it again, while the
// agent runs.
func TestDefinitionComesAndGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop"), pod("shop", "db", "db", "n1"), networkPolicy("shop", "db", "db"))
	w.agent()
	w.inStep(api.KindPolicy, "np/shop/db")
	w.inStep(api.KindEntity, "pod/shop/db")
	if text := w.log.String(); strings.Contains(text, "does not answer as expected") {
		t.Error("a cluster without ClusterNetworkPolicies is reported as a failure")
	}
	for range 2 {
		w.kube.Define(testkube.ClusterPolicyVersion)
		w.kube.Set(clusterPolicy("a", "db"))
		w.inStep(api.KindPolicy, "cnp/a np/shop/db")

		// The API server deletes the objects of a resource before it ends the resource.
		w.kube.Delete(clusterPolicy("a", ""))
		w.kube.Define("")
		w.kube.CutWatches()
		w.inStep(api.KindPolicy, "np/shop/db")
	}
	// The agent missed the deletion of the objects.
	w.kube.Define(testkube.ClusterPolicyVersion)
	w.kube.Set(clusterPolicy("a", "db"))
	w.inStep(api.KindPolicy, "cnp/a np/shop/db")
	w.kube.Hold(testkube.ClusterPolicies, true)
	w.kube.Delete(clusterPolicy("a", ""))
	w.kube.Define("")
	w.kube.CutWatches()
	w.inStep(api.KindPolicy, "np/shop/db")
}

// TestDefinitionIsAbsentOnOneServer: policies stay while another server has them, and while the
// resource is served in another version.
func TestDefinitionIsAbsentOnOneServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := w.secondServer()
	for _, k := range []*testkube.Server{w.kube, second} {
		k.Define(testkube.ClusterPolicyVersion)
		k.Set(namespace("shop"), pod("shop", "here", "x", "n1"), clusterPolicy("a", "db"))
	}
	a, stop := w.agent()
	w.inStep(api.KindPolicy, "cnp/a")
	eventually(t, "the agent knows both servers", func() bool { return len(a.servers()) == 2 })
	w.kube.Define("")
	w.kube.CutWatches()
	second.Set(clusterPolicy("b", "db")) // the agent continues with the second server
	w.inStep(api.KindPolicy, "cnp/a cnp/b")
	w.neverDeleted("Policy/cnp/a")

	second.Define("v1")
	w.kube.Define("v1")
	w.kube.CutWatches()
	second.CutWatches()
	const reason = "is served in another version only"
	eventually(t, "the reason is in the log", func() bool { return strings.Contains(w.log.String(), reason) })
	w.settled()
	if got := w.daemon.names(api.KindPolicy); got != "cnp/a cnp/b" {
		t.Errorf("policies %q", got)
	}

	// Nor does an agent that starts now remove them.
	stop()
	before := strings.Count(w.log.String(), reason)
	_, stop = w.agent()
	eventually(t, "the reason is in the log again", func() bool { return strings.Count(w.log.String(), reason) > before })
	if got := w.daemon.names(api.KindPolicy); got != "cnp/a cnp/b" {
		t.Errorf("policies %q", got)
	}
	w.neverDeleted("Policy/cnp/a")
	for _, k := range []*testkube.Server{w.kube, second} {
		k.Define("")
		k.CutConnections()
	}
	w.inStep(api.KindPolicy, "")
	stop()
}

// neverDeleted checks that no transaction so far has deleted an object.
func (w *world) neverDeleted(ref string) {
	w.t.Helper()
	changes, err := w.daemon.Changes(w.t.Context(), 0)
	if err != nil || changes.Expired {
		w.t.Fatalf("%+v, %v", changes, err)
	}
	for _, c := range changes.Changes {
		if c.Kind+"/"+c.Name == ref && c.Action == api.ActionDeleted {
			w.t.Errorf("%s was deleted in revision %d", ref, c.Revision)
		}
	}
}

// TestAbsentDefinitionAtStart: an agent that starts does not remove the policies of an earlier agent
// while the API server cannot say whether the resource exists.
func TestAbsentDefinitionAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Define(testkube.ClusterPolicyVersion)
	w.kube.Set(namespace("shop"), pod("shop", "here", "x", "n1"), clusterPolicy("a", "db"))
	_, stop := w.agent()
	w.inStep(api.KindPolicy, "cnp/a")
	stop()
	var failed atomic.Int32
	w.kube.Fault(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/"+testkube.ClusterPolicies) {
			return false
		}
		failed.Add(1)
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	a, _ := w.agent()
	eventually(t, "a failed request", func() bool { return failed.Load() > 1 })
	if _, why := a.Readiness(); !strings.Contains(why, "clusternetworkpolicies") {
		t.Errorf("not ready because: %s", why)
	}
	if got := w.daemon.names(api.KindPolicy); got != "cnp/a" {
		t.Errorf("policies %q", got)
	}
	w.kube.Fault(nil)
	w.kube.Delete(clusterPolicy("a", ""))
	w.inStep(api.KindPolicy, "")
}

// TestListWithoutClusterPolicies: a list that lacks policies does not end protection if another API
// server has them.
func TestListWithoutClusterPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := w.secondServer()
	for _, k := range []*testkube.Server{w.kube, second} {
		k.Define(testkube.ClusterPolicyVersion)
		k.Set(namespace("shop"), pod("shop", "here", "x", "n1"), clusterPolicy("a", "db"))
	}
	a, _ := w.agent()
	w.inStep(api.KindPolicy, "cnp/a")
	eventually(t, "the agent knows both servers", func() bool { return len(a.servers()) == 2 })
	w.kube.Hold(testkube.ClusterPolicies, true)
	w.kube.Delete(clusterPolicy("a", ""))
	w.kube.Forget()
	w.kube.CutWatches()
	eventually(t, "the list is rejected", func() bool { return strings.Contains(w.log.String(), "which a second list contains") })
	second.Set(clusterPolicy("b", "db"))
	w.inStep(api.KindPolicy, "cnp/a cnp/b")
	w.neverDeleted("Policy/cnp/a")
}

// TestNewPodWaitsForClusterPolicies: a new pod gets no Entity before the agent has the
// ClusterNetworkPolicies that are older than the pod, also if the resource has just been added.
func TestNewPodWaitsForClusterPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Define(testkube.ClusterPolicyVersion)
	w.kube.Set(namespace("shop"), clusterPolicy("old", "db"))
	w.agent()
	w.inStep(api.KindPolicy, "cnp/old")
	w.kube.Hold(testkube.ClusterPolicies, true)
	w.kube.Set(clusterPolicy("new", "db"))
	w.kube.Set(pod("shop", "db", "db", "n1"), pod("shop", "far", "x", "n2", "10.244.2.7"))
	w.inStep(api.KindEntity, "pod/shop/far")
	listed := w.kube.Calls("list " + testkube.ClusterPolicies)
	eventually(t, "the pod is checked again", func() bool { return w.kube.Calls("list "+testkube.ClusterPolicies) > listed })
	w.settled()
	if got := w.daemon.names(api.KindEntity); got != "pod/shop/far" {
		t.Errorf("Entities %q", got)
	}
	w.kube.Hold(testkube.ClusterPolicies, false)
	entityAfter(w, "Entity/pod/shop/db", "Policy/cnp/new")

	absent := newWorld(t)
	absent.kube.Set(namespace("shop"))
	absent.agent()
	absent.inStep(api.KindNamespace, "shop")
	absent.kube.Define(testkube.ClusterPolicyVersion)
	absent.kube.Set(clusterPolicy("new", "db"))
	absent.kube.Set(pod("shop", "db", "db", "n1"))
	entityAfter(absent, "Entity/pod/shop/db", "Policy/cnp/new")
}

// entityAfter waits until the daemon has an Entity, which must not exist without a policy.
func entityAfter(w *world, entity, policy string) {
	w.t.Helper()
	eventually(w.t, entity, func() bool {
		has := w.daemon.has()
		if has[entity] != "" && has[policy] == "" {
			w.t.Errorf("%s exists without %s", entity, policy)
		}
		return has[entity] != ""
	})
}

// TestNodes: nodes are Entities, with their labels and addresses, of which this node is one.
func TestNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	labelled := func(name, address, zone string) *corev1.Node {
		n := node(name, address, "10.244."+name[1:]+".0/24")
		n.Labels = map[string]string{"zone": zone}
		return n
	}
	w.kube.Set(labelled("n1", "192.0.2.1", "a"), labelled("n2", "192.0.2.2", "b"))
	a, stop := w.agent()
	const own, other = `{"set":"nodes","labels":{"/here":"true","zone":"a"},"here":true}`, `{"set":"nodes","labels":{"zone":"b"},"addresses":["192.0.2.2"]}`
	w.holds("Entity/node/n1", own)
	w.holds("Entity/node/n2", other)
	w.kube.Set(labelled("n2", "192.0.2.3", "c"))
	w.holds("Entity/node/n2", `{"set":"nodes","labels":{"zone":"c"},"addresses":["192.0.2.3"]}`)
	w.kube.Set(labelled("n1", "192.0.2.1", "d"))
	w.holds("Entity/node/n1", strings.Replace(own, `"a"`, `"d"`, 1))

	// A node takes the address of an older one.
	younger := labelled("n3", "192.0.2.3", "e")
	younger.CreationTimestamp = metav1.Unix(1900000000, 0)
	w.kube.Set(younger)
	w.inStep(kindNodes, "n1 n3")
	w.kube.Delete(younger)
	w.inStep(kindNodes, "n1 n2")
	if n := a.syncer.Refused(); n != 0 {
		t.Errorf("%d objects are refused", n)
	}

	// This node is deleted: it stays an Entity. Other nodes do not.
	w.kube.Delete(labelled("n1", "", ""), labelled("n2", "", ""))
	w.inStep(kindNodes, "n1")
	stop()
}

// TestNodeLabelsThatPoliciesName: the Entity of a node with many labels has those by which policies
// select nodes.
func TestNodeLabelsThatPoliciesName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Define(testkube.ClusterPolicyVersion)
	n := node("n2", "192.0.2.2", "10.244.2.0/24")
	n.Labels = map[string]string{"zone": "b"}
	for i := range 70 {
		n.Labels["feature-"+string(rune('a'+i/26))+string(rune('a'+i%26))] = "true"
	}
	w.kube.Set(n)
	w.agent()
	eventually(t, "the node without its last label", func() bool {
		spec := w.daemon.has()["Entity/node/n2"]
		return spec != "" && !strings.Contains(spec, "zone")
	})
	w.kube.Set(testkube.NewClusterPolicy("a", `{"tier":"Admin","priority":7,"subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"nodes":{"matchLabels":{"zone":"b"}}}]}]}`))
	eventually(t, "the node with the label", func() bool { return strings.Contains(w.daemon.has()["Entity/node/n2"], `"zone":"b"`) })
	w.holds("Policy/cnp/a", `{"tier":"admin","priority":7,"appliedTo":[{"namespaces":{}}],"egress":[{"action":"deny","to":[{"set":"nodes","entities":{"matchLabels":{"zone":"b"}}}]}]}`)
}

// TestRefusedClusterPolicyDenies: while the daemon refuses a policy, its pods are denied all traffic in
// the directions of its rules. No other policy is affected.
func TestRefusedClusterPolicyDenies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Define(testkube.ClusterPolicyVersion)
	in := `"` + strings.Join(values(257), `","`) + `"`
	w.kube.Set(namespace("shop"), pod("shop", "here", "x", "n1"), clusterPolicy("a", "db"), testkube.NewClusterPolicy("wide",
		`{"tier":"Baseline","priority":9,"subject":{"namespaces":{"matchLabels":{"team":"a"}}},"ingress":[{"action":"Accept","from":[{"namespaces":{"matchExpressions":[{"key":"x","operator":"In","values":[`+in+`]}]}}]}]}`))
	w.agent()
	w.holds("Policy/cnp/wide", `{"tier":"baseline","priority":9,"appliedTo":[{"namespaces":{"matchLabels":{"team":"a"}}}],"ingress":[{"action":"pass","from":[{"set":"nodes","entities":{"matchLabels":{"/here":"true"}}}]},{"action":"deny"}]}`)
	w.holds("Policy/cnp/a", clusterDenies("db"))
	w.reported("wide", reasonRefused, "isolated")
}

// TestListWithoutParticipants: a list that lacks pods or nodes does not end their part in rules that
// deny if another API server has them.
func TestListWithoutParticipants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := w.secondServer()
	for _, k := range []*testkube.Server{w.kube, second} {
		k.Set(namespace("shop"), pod("shop", "far", "x", "n2", "10.244.2.7"))
	}
	a, _ := w.agent()
	w.inStep(api.KindEntity, "pod/shop/far")
	w.inStep(kindNodes, "n1 n2")
	eventually(t, "the agent knows both servers", func() bool { return len(a.servers()) == 2 })
	for _, resource := range []string{testkube.Pods, testkube.Nodes} {
		w.kube.Hold(resource, true)
	}
	w.kube.Delete(pod("shop", "far", "", ""), node("n2", ""))
	w.kube.Forget()
	w.kube.CutWatches()
	for _, lacks := range []string{"it lacks shop/far, which", "it lacks n2, which"} {
		eventually(t, lacks, func() bool { return strings.Contains(w.log.String(), lacks) })
	}
	second.Set(pod("shop", "late", "x", "n2", "10.244.2.8"), node("n3", "192.0.2.3"))
	w.inStep(api.KindEntity, "pod/shop/far pod/shop/late")
	w.inStep(kindNodes, "n1 n2 n3")
}

// TestDefinitionIsAbsentOnTheNextServer: the agent loses a watch, and the next server does not know the
// resource.
func TestDefinitionIsAbsentOnTheNextServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := w.secondServer()
	w.kube.Define(testkube.ClusterPolicyVersion)
	for _, k := range []*testkube.Server{w.kube, second} {
		k.Set(namespace("shop"), pod("shop", "here", "x", "n1"))
	}
	w.kube.Set(clusterPolicy("a", "db"))
	a, _ := w.agent()
	w.inStep(api.KindPolicy, "cnp/a")
	eventually(t, "the agent knows both servers", func() bool { return len(a.servers()) == 2 })
	var refused atomic.Int32
	w.kube.Fault(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/"+testkube.ClusterPolicies) || r.URL.Query().Get("watch") == "" || refused.Load() > 0 {
			return false
		}
		refused.Add(1)
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusNotFound)
		_, _ = rw.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
		return true
	})
	w.kube.CutWatches()
	eventually(t, "the second server is not trusted alone", func() bool { return strings.Contains(w.log.String(), "it lacks a, which a second list contains") })
	w.kube.Set(clusterPolicy("b", "db"))
	w.inStep(api.KindPolicy, "cnp/a cnp/b")
	w.neverDeleted("Policy/cnp/a")
}
