// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/policies"
)

func namespace(name string, labels ...string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return n
}

// pod returns a running pod with the label app.
func pod(namespace, name, app, node string, addresses ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app}, CreationTimestamp: metav1.Unix(1700000000, 0)},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

// networkPolicy isolates pods from all traffic, except from pods with the label app of one of apps.
func networkPolicy(namespace, name, app string, apps ...string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	if len(apps) > 0 {
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
			PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: apps}}},
		}}}}
	}
	return p
}

// holds waits until the daemon has our object with this spec; an empty spec: does not have it.
func (w *world) holds(ref, spec string) {
	w.t.Helper()
	got := ""
	defer func() {
		if got != spec {
			w.t.Logf("%s is %q, want %q", ref, got, spec)
		}
	}()
	eventually(w.t, ref+" as wanted", func() bool { got = w.daemon.has()[ref]; return got == spec })
}

// settled waits until everything that was changed before is in the daemon. It changes a Service.
func (w *world) settled() {
	w.t.Helper()
	w.marks++
	name := fmt.Sprint("mark", w.marks)
	w.kube.Set(service("default", name, fmt.Sprintf("10.96.200.%d", w.marks)))
	eventually(w.t, name, func() bool { return w.daemon.has()["Service/default/"+name] != "" })
}

const dbPolicy = `{"tier":"namespaces","isolate":["ingress"],"appliedTo":[{"namespaces":{"names":["shop"]},"entities":{"matchLabels":{"app":"db"}}}]%s}`

func dbAllows(values string) string {
	return fmt.Sprintf(dbPolicy, `,"ingress":[{"action":"allow","from":[{"namespaces":{"names":["shop"]},"entities":{"matchExpressions":[{"key":"app","operator":"In","values":[`+values+`]}]}}]}]`)
}

// TestPolicies follows pods, namespaces and policies through their changes.
func TestPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop", "team", "a"), networkPolicy("shop", "db", "db", "web"),
		pod("shop", "db", "db", "n1"), pod("shop", "web", "web", "n2", "10.244.2.7"))
	host := pod("shop", "host", "x", "n1", "192.0.2.1")
	host.Spec.HostNetwork = true
	w.kube.Set(host, pod("far", "early", "x", "n2", "10.244.2.9"))
	w.agent()
	const db = `{"namespace":"shop","labels":{"app":"db"},"endpoint":{"namespace":"shop","pod":"db","uid":"uid-db"}}`
	w.inStep(api.KindEntity, "pod/shop/db pod/shop/web")
	w.holds("Entity/pod/shop/db", db)
	w.holds("Entity/pod/shop/web", `{"namespace":"shop","labels":{"app":"web"},"addresses":["10.244.2.7"]}`)
	w.holds("Namespace/shop", `{"labels":{"team":"a"}}`)
	w.holds("Tier/namespaces", `{"order":200,"always":["self","node"]}`)
	w.holds("Policy/np/shop/db", dbAllows(`"web"`))
	w.holds("PodNetwork/default", `{"subnets":["10.244.1.0/24"],"policy":"required"}`)

	// A pod in an unknown namespace would match selectors for namespaces without a label.
	w.kube.Set(namespace("far"))
	w.inStep(api.KindEntity, "pod/far/early pod/shop/db pod/shop/web")

	w.kube.Set(pod("shop", "web", "admin", "n2", "10.244.2.7"))
	w.holds("Entity/pod/shop/web", `{"namespace":"shop","labels":{"app":"admin"},"addresses":["10.244.2.7"]}`)
	w.kube.Set(namespace("shop", "team", "b"))
	w.holds("Namespace/shop", `{"labels":{"team":"b"}}`)

	w.kube.Set(networkPolicy("shop", "db", "db", "admin"))
	w.holds("Policy/np/shop/db", dbAllows(`"admin"`))
	w.kube.Set(networkPolicy("shop", "other", "web"))
	w.inStep(api.KindPolicy, "np/shop/db np/shop/other")
	w.kube.Delete(networkPolicy("shop", "db", ""))
	w.inStep(api.KindPolicy, "np/shop/other")

	finished := pod("shop", "web", "admin", "n2", "10.244.2.7")
	finished.Status.Phase = corev1.PodSucceeded
	w.kube.Set(finished)
	w.inStep(api.KindEntity, "pod/far/early pod/shop/db")
	w.kube.Delete(pod("shop", "db", "", ""))
	w.inStep(api.KindEntity, "pod/far/early")
	w.kube.Delete(pod("far", "early", "", ""), namespace("far"))
	w.inStep(api.KindEntity, "")
	w.inStep(api.KindNamespace, "shop")
}

// TestIrrelevantChangesOfPods: a pod whose conditions change causes no transaction.
func TestIrrelevantChangesOfPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := pod("shop", "web", "web", "n2", "10.244.2.7")
	w.kube.Set(namespace("shop"), p)
	a, _ := w.agent()
	w.inStep(api.KindEntity, "pod/shop/web")
	status, err := w.daemon.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := a.pods.Get("shop/web").Version()
	for i := range 5 {
		p = p.DeepCopy()
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Message: fmt.Sprint(i)}}
		w.kube.Set(p)
	}
	eventually(t, "the agent has the last version", func() bool {
		return a.pods.Get("shop/web").Version() != seen && a.pods.Get("shop/web").Version() == p.ResourceVersion
	})
	w.settled()
	after, err := w.daemon.Status(t.Context())
	if err != nil || after.Revision != status.Revision+1 {
		t.Errorf("revision %d, then %d: only one change was made (%v)", status.Revision, after.Revision, err)
	}
}

// TestPoliciesOfPodsHere: the daemon has the policies of the namespaces of its pods only, in the same
// transaction as the first pod of a namespace.
func TestPoliciesOfPodsHere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	host := pod("shop", "host", "db", "n1", "192.0.2.1")
	host.Spec.HostNetwork = true
	w.kube.Set(namespace("shop"), namespace("far"), networkPolicy("shop", "db", "db", "web"), networkPolicy("far", "db", "db"),
		pod("shop", "web", "web", "n2", "10.244.2.7"), pod("far", "db", "db", "n2", "10.244.2.8"), host)
	w.agent()
	w.inStep(api.KindEntity, "pod/far/db pod/shop/web")
	w.settled()
	w.inStep(api.KindPolicy, "")
	w.kube.Set(pod("shop", "db", "db", "n1"))
	w.inStep(api.KindEntity, "pod/far/db pod/shop/db pod/shop/web")
	if got := w.daemon.names(api.KindPolicy); got != "np/shop/db" {
		t.Errorf("policies %q with the first pod of the namespace", got)
	}
	w.kube.Set(pod("shop", "other", "x", "n1"), networkPolicy("shop", "more", "x"))
	w.inStep(api.KindPolicy, "np/shop/db np/shop/more")
	w.kube.Delete(pod("shop", "db", "db", "n1"))
	w.inStep(api.KindEntity, "pod/far/db pod/shop/other pod/shop/web")
	w.settled()
	w.inStep(api.KindPolicy, "np/shop/db np/shop/more")
	finished := pod("shop", "other", "x", "n1")
	finished.Status.Phase = corev1.PodSucceeded
	w.kube.Set(finished)
	w.inStep(api.KindPolicy, "")
}

// TestStaging: the annotation of a namespace concerns its policies.
func TestStaging(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop"), pod("shop", "here", "x", "n1"), networkPolicy("shop", "db", "db"))
	w.agent()
	w.holds("Policy/np/shop/db", fmt.Sprintf(dbPolicy, ""))
	staged := namespace("shop")
	staged.Annotations = map[string]string{policies.AnnotationStage: "staged"}
	w.kube.Set(staged)
	w.holds("Policy/np/shop/db", strings.Replace(fmt.Sprintf(dbPolicy, ""), `"isolate"`, `"stage":"staged","isolate"`, 1))
	w.kube.Set(namespace("shop"))
	w.holds("Policy/np/shop/db", fmt.Sprintf(dbPolicy, ""))
}

// TestAddressMoves: a new pod gets the address of a pod that ends at the same time, or before the
// API server reports its end.
func TestAddressMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop"), pod("shop", "a0", "x", "n2", "10.244.2.7"))
	a, _ := w.agent()
	w.inStep(api.KindEntity, "pod/shop/a0")
	for i := range 20 {
		next := pod("shop", fmt.Sprint("a", i+1), "x", "n2", "10.244.2.7")
		next.CreationTimestamp = metav1.Unix(1700000000+int64(i+1), 0)
		if i%2 == 0 {
			w.kube.Set(next)
			w.kube.Delete(pod("shop", fmt.Sprint("a", i), "", ""))
		} else {
			w.kube.Delete(pod("shop", fmt.Sprint("a", i), "", ""))
			w.kube.Set(next)
		}
		w.inStep(api.KindEntity, fmt.Sprint("pod/shop/a", i+1))
	}
	young := pod("shop", "young", "x", "n2", "10.244.2.7", "10.244.2.8")
	young.CreationTimestamp = metav1.Unix(1800000000, 0)
	w.kube.Set(young) // both exist
	w.inStep(api.KindEntity, "pod/shop/young")
	w.kube.Delete(young)
	w.inStep(api.KindEntity, "pod/shop/a20")
	if n := a.syncer.Refused(); n != 0 || strings.Contains(w.log.String(), "refuses") {
		t.Errorf("%d objects are refused", n)
	}
}

// TestSubnetsMove: addresses in this node's subnets belong to its Endpoints.
func TestSubnetsMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop"), pod("shop", "web", "x", "n3", "10.244.9.7"))
	w.agent()
	w.inStep(api.KindEntity, "pod/shop/web")
	w.kube.Set(node("n1", "192.0.2.1", "10.244.9.0/24"))
	w.inStep(api.KindEntity, "")
	w.kube.Set(node("n1", "192.0.2.1", "10.244.1.0/24"))
	w.inStep(api.KindEntity, "pod/shop/web")
}

// values returns n values for an expression; the daemon accepts 256.
func values(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint("v", i)
	}
	return list
}

// TestRefusedPolicyIsolates: while the daemon refuses a policy, its pods are isolated, or all pods of
// its namespace if its selector is refused. No other policy is affected. The same holds for the
// objects of a new session.
func TestRefusedPolicyIsolates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop"), pod("shop", "here", "x", "n1"), networkPolicy("shop", "db", "db", "web"), networkPolicy("shop", "other", "x"))
	a, _ := w.agent()
	w.holds("Policy/np/shop/db", dbAllows(`"web"`))
	w.kube.Set(networkPolicy("shop", "db", "db", values(257)...), networkPolicy("shop", "new", "db", values(257)...))
	w.holds("Policy/np/shop/db", fmt.Sprintf(dbPolicy, ""))
	w.holds("Policy/np/shop/new", fmt.Sprintf(dbPolicy, ""))
	wide := networkPolicy("shop", "wide", "x", "y")
	wide.Spec.PodSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values(257)}}}
	w.kube.Set(wide)
	const all = `{"tier":"namespaces","isolate":["ingress"],"appliedTo":[{"namespaces":{"names":["shop"]}}]}`
	w.holds("Policy/np/shop/wide", all)
	w.inStep(api.KindPolicy, "np/shop/db np/shop/new np/shop/other np/shop/wide")
	eventually(t, "an event", func() bool {
		for _, e := range w.kube.Events() {
			if e.InvolvedObject.Kind == "NetworkPolicy" && e.InvolvedObject.Name == "wide" && e.Reason == reasonRefused && strings.Contains(e.Message, "isolated") {
				return true
			}
		}
		return false
	})
	eventually(t, "three refused objects are counted", func() bool { return a.state.numbers().refused == 3 })

	w.daemon.kill()
	w.daemon.start()
	w.kube.Set(networkPolicy("shop", "late", "db", values(257)...))
	w.holds("Policy/np/shop/late", fmt.Sprintf(dbPolicy, ""))
	w.holds("Policy/np/shop/wide", all)
	w.holds("Policy/np/shop/db", fmt.Sprintf(dbPolicy, ""))

	// The next attempts change nothing, and a policy that is accepted is in force.
	reported, attempts := strings.Count(w.log.String(), "the daemon refuses"), refusals(t, a)
	eventually(t, "another attempt", func() bool { return refusals(t, a) > attempts })
	if n := strings.Count(w.log.String(), "the daemon refuses"); n != reported {
		t.Errorf("the same refusals are reported %d times", n-reported)
	}
	w.holds("Policy/np/shop/wide", all)
	w.kube.Set(networkPolicy("shop", "db", "db", "web"))
	w.holds("Policy/np/shop/db", dbAllows(`"web"`))
	w.kube.Delete(networkPolicy("shop", "new", ""), networkPolicy("shop", "late", ""), wide)
	w.inStep(api.KindPolicy, "np/shop/db np/shop/other")
	eventually(t, "no refused object", func() bool { return a.state.numbers().refused == 0 })
}

// refusals returns how many transactions the daemon has refused.
func refusals(t *testing.T, a *Agent) (n int) {
	t.Helper()
	page := httptest.NewRecorder()
	a.Metrics().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "loxilight_agent_daemon_errors_total{") {
			count, err := strconv.Atoi(line[strings.LastIndexByte(line, ' ')+1 : len(line)-1])
			if err != nil {
				t.Fatal(err)
			}
			n += count
		}
	}
	return n
}

// TestNewPodWaits: the watch of policies, or of namespaces, is behind the watch of pods. A new pod
// gets no Entity before the agent has the policies that are older than the pod.
func TestNewPodWaits(t *testing.T) {
	t.Parallel()
	for _, held := range []string{testkube.NetworkPolicies, testkube.Namespaces} {
		t.Run(held, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.kube.Set(namespace("shop", "team", "a"))
			a, _ := w.agent()
			w.inStep(api.KindNamespace, "shop")
			w.kube.Hold(held, true)
			w.kube.Set(namespace("shop", "team", "b"), networkPolicy("shop", "db", "db"))
			w.kube.Set(pod("shop", "db", "db", "n1"), pod("shop", "far", "x", "n2", "10.244.2.7"))
			w.inStep(api.KindEntity, "pod/shop/far") // pods of other nodes do not wait
			listed := w.kube.Calls("list networkpolicies")
			eventually(t, "the pod is checked again", func() bool { return w.kube.Calls("list networkpolicies") > listed })
			w.settled()
			if got := w.daemon.names(api.KindEntity); got != "pod/shop/far" {
				t.Errorf("Entities %q", got)
			}
			w.kube.Hold(held, false)
			eventually(t, "the Entity", func() bool {
				has := w.daemon.has()
				if has["Entity/pod/shop/db"] == "" {
					return false
				}
				if has["Policy/np/shop/db"] == "" || has["Namespace/shop"] != `{"labels":{"team":"b"}}` {
					t.Errorf("the pod has an Entity without older objects: %v", has)
				}
				return true
			})
			eventually(t, "no goroutine is left", func() bool {
				a.newPods.mu.Lock()
				defer a.newPods.mu.Unlock()
				return len(a.newPods.waiting)+len(a.newPods.running) == 0
			})
		})
	}
}

// TestNewPodWaitsForDeletions: a policy that was deleted before the pod was created allows it
// nothing.
func TestNewPodWaitsForDeletions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop"), networkPolicy("shop", "db", "db"), networkPolicy("shop", "old", "db", "web"), pod("shop", "here", "x", "n1"))
	w.agent()
	w.inStep(api.KindPolicy, "np/shop/db np/shop/old")
	w.kube.Hold(testkube.NetworkPolicies, true)
	w.kube.Delete(networkPolicy("shop", "old", ""))
	w.kube.Set(pod("shop", "db", "db", "n1"))
	listed := w.kube.Calls("list networkpolicies")
	eventually(t, "the pod is checked twice", func() bool { return w.kube.Calls("list networkpolicies") > listed+1 })
	if got := w.daemon.names(api.KindEntity); got != "pod/shop/here" {
		t.Errorf("Entities %q", got)
	}
	w.kube.Hold(testkube.NetworkPolicies, false)
	w.inStep(api.KindEntity, "pod/shop/db pod/shop/here")
	w.inStep(api.KindPolicy, "np/shop/db")
}

// TestChecksAreRepeated: the API server does not answer the requests about a new pod, or cannot for
// the pod's version. Other changes are not delayed.
func TestChecksAreRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop"))
	w.agent()
	w.inStep(api.KindNamespace, "shop")
	var failed, tooLarge atomic.Int32
	w.kube.Fault(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/namespaces/shop/networkpolicies") {
			return false
		}
		switch {
		case failed.Load() < 3:
			failed.Add(1)
			rw.WriteHeader(http.StatusInternalServerError)
			return true
		case r.URL.Query().Get("resourceVersion") != "":
			tooLarge.Add(1)
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusGatewayTimeout)
			_, _ = rw.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Timeout","code":504}`))
			return true
		}
		return false
	})
	w.kube.Set(pod("shop", "db", "db", "n1"))
	eventually(t, "a failed request", func() bool { return failed.Load() > 0 })
	w.settled()
	w.inStep(api.KindEntity, "pod/shop/db")
	if failed.Load() != 3 || tooLarge.Load() == 0 {
		t.Errorf("%d requests failed, and %d were for a version", failed.Load(), tooLarge.Load())
	}
}

// TestEntitiesStayDuringChecks: an agent that starts does not delete the Entity of a pod that it has
// not checked yet, but ends the Entity of a previous pod of that name.
func TestEntitiesStayDuringChecks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop"), networkPolicy("shop", "db", "db"), pod("shop", "db", "db", "n1"))
	_, stop := w.agent()
	w.inStep(api.KindEntity, "pod/shop/db")
	before := w.daemon.has()["Entity/pod/shop/db"]
	stop()
	blocked := atomic.Bool{}
	blocked.Store(true)
	w.kube.NoStreams(true)
	w.kube.Fault(func(rw http.ResponseWriter, r *http.Request) bool {
		switch {
		case !blocked.Load():
			return false
		case strings.Contains(r.URL.Path, "/namespaces/shop/networkpolicies"):
			rw.WriteHeader(http.StatusInternalServerError)
			return true
		case strings.HasSuffix(r.URL.Path, "/networkpolicies") && r.URL.Query().Get("watch") == "": // from before the pod
			rw.Header().Set("Content-Type", "application/json")
			_, _ = rw.Write([]byte(`{"kind":"NetworkPolicyList","apiVersion":"networking.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[` +
				string(raw(t, networkPolicy("shop", "db", "db"))) + `]}`))
			return true
		case strings.HasSuffix(r.URL.Path, "/networkpolicies") && r.URL.Query().Get("sendInitialEvents") == "":
			<-r.Context().Done() // no change is reported
			return true
		}
		return false
	})
	w.kube.Set(pod("shop", "new", "db", "n1"))
	w.agent()
	w.settled()
	w.kube.Set(pod("shop", "db", "changed", "n1")) // still the same pod
	w.settled()
	if got := w.daemon.has()["Entity/pod/shop/db"]; got != before {
		t.Errorf("the Entity is %q, was %q", got, before)
	}
	if got := w.daemon.names(api.KindEntity); got != "pod/shop/db" {
		t.Errorf("Entities %q", got)
	}
	blocked.Store(false)
	w.kube.CutConnections()
	w.inStep(api.KindEntity, "pod/shop/db pod/shop/new")
	w.holds("Entity/pod/shop/db", strings.Replace(before, `"app":"db"`, `"app":"changed"`, 1))

	// Another pod of the same name.
	w.kube.Hold(testkube.NetworkPolicies, true)
	w.kube.Set(networkPolicy("shop", "late", "db"))
	again := pod("shop", "db", "db", "n1")
	again.UID = "uid-2"
	w.kube.Set(again)
	w.inStep(api.KindEntity, "pod/shop/new")
	w.kube.Hold(testkube.NetworkPolicies, false)
	w.inStep(api.KindEntity, "pod/shop/db pod/shop/new")
}

// secondServer returns another API server of the same cluster, which the agent knows.
func (w *world) secondServer() *testkube.Server {
	w.t.Helper()
	second := testkube.New(w.t)
	first := netip.MustParseAddrPort(strings.TrimPrefix(w.kube.URL, "http://"))
	port := int32(netip.MustParseAddrPort(strings.TrimPrefix(second.URL, "http://")).Port())
	other := int32(first.Port())
	for _, k := range []*testkube.Server{w.kube, second} {
		k.Set(node("n1", "192.0.2.1", "10.244.1.0/24"), node("n2", "192.0.2.2", "10.244.2.0/24"))
		both := slice("default", "kubernetes", "kubernetes", "127.0.0.1")
		both.Ports[0].Port = &port
		one := slice("default", "kubernetes", "kubernetes-1", "127.0.0.1")
		one.Ports[0].Port = &other
		k.Set(service("default", "kubernetes", "10.96.0.1"), both, one)
	}
	return second
}

// TestListWithoutPolicies: a list that lacks policies, although no watch has reported their deletion,
// does not end protection if another API server has them.
func TestListWithoutPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := w.secondServer()
	for _, k := range []*testkube.Server{w.kube, second} {
		k.Set(namespace("shop"), pod("shop", "here", "x", "n1"), networkPolicy("shop", "db", "db"), networkPolicy("shop", "web", "web"))
	}
	a, _ := w.agent()
	w.inStep(api.KindPolicy, "np/shop/db np/shop/web")
	eventually(t, "the agent knows both servers", func() bool { return len(a.servers()) == 2 })
	w.kube.Hold(testkube.NetworkPolicies, true)
	w.kube.Delete(networkPolicy("shop", "db", ""), networkPolicy("shop", "web", ""))
	w.kube.Forget()
	w.kube.CutWatches()
	eventually(t, "the list is rejected", func() bool { return strings.Contains(w.log.String(), "which a second list contains") })
	second.Set(networkPolicy("shop", "late", "x")) // the agent continues with the second server
	w.inStep(api.KindPolicy, "np/shop/db np/shop/late np/shop/web")

	// Policies that no server has are removed.
	w.kube.Hold(testkube.NetworkPolicies, false)
	second.Hold(testkube.NetworkPolicies, true)
	second.Delete(networkPolicy("shop", "db", ""))
	second.Forget()
	second.CutWatches()
	w.inStep(api.KindPolicy, "np/shop/late np/shop/web")
}

// TestListWithoutPoliciesAtStart: likewise for the policies that an earlier agent left in the daemon.
func TestListWithoutPoliciesAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := w.secondServer()
	for _, k := range []*testkube.Server{w.kube, second} {
		k.Set(namespace("shop"), pod("shop", "here", "x", "n1"), networkPolicy("shop", "db", "db"), networkPolicy("shop", "web", "web"))
	}
	_, stop := w.agent()
	w.inStep(api.KindPolicy, "np/shop/db np/shop/web")
	stop()
	w.kube.Delete(networkPolicy("shop", "db", ""), networkPolicy("shop", "web", ""))
	second.Delete(networkPolicy("shop", "web", "")) // in truth
	down := atomic.Bool{}
	down.Store(true)
	second.Fault(func(rw http.ResponseWriter, r *http.Request) bool {
		if down.Load() {
			rw.WriteHeader(http.StatusInternalServerError)
		}
		return down.Load()
	})
	_, stop = w.agent()
	eventually(t, "the second list cannot be read", func() bool { return strings.Contains(w.log.String(), "no second list can be read") })
	if got := w.daemon.names(api.KindPolicy); got != "np/shop/db np/shop/web" {
		t.Errorf("policies %q", got)
	}
	down.Store(false)
	w.inStep(api.KindPolicy, "np/shop/db")
	stop()
	second.Delete(networkPolicy("shop", "db", ""))
	w.agent()
	w.inStep(api.KindPolicy, "")
}

// TestPoliciesOfAnEarlierAgent: with one API server, it is asked twice.
func TestPoliciesOfAnEarlierAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(namespace("shop"), namespace("gone"), networkPolicy("shop", "db", "db"), networkPolicy("gone", "db", "db"),
		pod("shop", "here", "x", "n1"), pod("gone", "here", "x", "n1"))
	_, stop := w.agent()
	w.inStep(api.KindPolicy, "np/gone/db np/shop/db")
	stop()
	w.kube.Delete(networkPolicy("gone", "db", ""), namespace("gone"))
	listed := w.kube.Calls("list networkpolicies")
	w.agent()
	w.inStep(api.KindPolicy, "np/shop/db")
	w.inStep(api.KindNamespace, "shop")
	if w.kube.Calls("list networkpolicies") == listed {
		t.Error("no second list was read")
	}
}

// TestInvalidPolicy: an event names the field.
func TestInvalidPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := networkPolicy("shop", "db", "db", "web")
	p.Spec.Ingress[0].From[0].PodSelector.MatchExpressions[0].Operator = "Gt"
	w.kube.Set(namespace("shop"), pod("shop", "here", "x", "n1"), p)
	w.agent()
	w.holds("Policy/np/shop/db", fmt.Sprintf(dbPolicy, ""))
	eventually(t, "an event", func() bool {
		for _, e := range w.kube.Events() {
			if e.InvolvedObject.Kind == "NetworkPolicy" && e.InvolvedObject.Namespace == "shop" && e.Reason == reasonInvalid &&
				strings.Contains(e.Message, "spec.ingress[0].from[0].podSelector.matchExpressions[0].operator") {
				return true
			}
		}
		return false
	})
}
