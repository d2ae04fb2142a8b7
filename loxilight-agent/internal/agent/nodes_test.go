// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
)

func TestNodesComeChangeAndGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.agent()
	w.inStep(api.KindPeer, "n2")
	got := w.daemon.has()
	for ref, want := range map[string]string{
		"PodNetwork/default": `"subnets":["10.244.1.0/24"]`,
		"Tunnel/overlay":     `"device":"hsvxlan100"`,
		"Peer/n2":            `"prefixes":["10.244.2.0/24"]`,
	} {
		if !strings.Contains(got[ref], want) {
			t.Errorf("%s is %q, want %s in it", ref, got[ref], want)
		}
	}
	w.kube.Set(node("n3", "192.0.2.3", "10.244.3.0/24"), node("n4", "192.0.2.4"))
	w.inStep(api.KindPeer, "n2 n3")
	w.kube.Set(node("n2", "192.0.2.22", "10.244.2.0/24"))
	eventually(t, "n2 has its new address", func() bool { return strings.Contains(w.daemon.has()["Peer/n2"], "192.0.2.22") })
	w.kube.Delete(node("n2", ""))
	w.inStep(api.KindPeer, "n3")
	eventually(t, "the agent is ready", func() bool { ready, _ := a.Readiness(); return ready })
}

// TestAddressMovesToAnotherNode: an address moves from one object to another in one transaction;
// otherwise the daemon would reject it.
func TestAddressMovesToAnotherNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindPeer, "n2")
	w.kube.Set(node("n2b", "192.0.2.2", "10.244.2.0/24"))
	eventually(t, "the daemon has refused it", func() bool { return strings.Contains(w.log.String(), "refuses an object") })
	w.kube.Delete(node("n2", ""))
	w.inStep(api.KindPeer, "n2b")
}

// TestThisNodeIsNotTakenAway: the objects that pods need stay when the node's object is deleted.
func TestThisNodeIsNotTakenAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindPodNetwork, nodes.Network)
	w.kube.Delete(node("n1", ""))
	w.kube.Set(node("n3", "192.0.2.3", "10.244.3.0/24"))
	w.inStep(api.KindPeer, "n2 n3")
	w.inStep(api.KindPodNetwork, nodes.Network)
	w.kube.Set(node("n1", "192.0.2.1", "10.244.1.0/24"))
	w.kube.Delete(node("n3", ""))
	w.inStep(api.KindPeer, "n2")
}

func TestConditionOfTheNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	condition := func() (c corev1.NodeCondition) {
		for _, c := range w.kube.Node("n1").Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable {
				return c
			}
		}
		return c
	}
	eventually(t, "the condition is reported", func() bool { return condition().Status == corev1.ConditionFalse })
	if c := condition(); c.Reason != reasonReady || c.LastTransitionTime.IsZero() {
		t.Errorf("%+v", c)
	}
	patches := w.kube.Calls("patch nodes")
	n := w.kube.Node("n1")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NodeInitialization",
		LastTransitionTime: metav1.NewTime(time.Now().Add(-48 * time.Hour))}}
	w.kube.Set(n)
	eventually(t, "the condition is reported again", func() bool { return condition().Status == corev1.ConditionFalse })
	if now := w.kube.Calls("patch nodes"); now > patches+2 {
		t.Errorf("%d patches for one change", now-patches)
	}
	if at := condition().LastTransitionTime; time.Since(at.Time) > time.Hour {
		t.Errorf("the status changed at %s", at)
	}

	long := metav1.NewTime(time.Now().Add(-48 * time.Hour).Truncate(time.Second))
	n = w.kube.Node("n1")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated", LastTransitionTime: long}}
	w.kube.Set(n)
	eventually(t, "the reason is reported", func() bool { return condition().Reason == reasonReady })
	if at := condition().LastTransitionTime; !at.Equal(&long) {
		t.Errorf("another reason for the same status changed the time from %s to %s", long, at)
	}
}

// TestNetworkIsReadyWithoutAnEvent: the agent read the state while the pod network was being
// recreated. When the network is Ready again, the daemon sends no event.
func TestNetworkIsReadyWithoutAnEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.agent()
	ready := func() bool { is, _ := a.Readiness(); return is }
	eventually(t, "ready", ready)
	for range 3 { // a late event may help once
		a.state.network(api.StatePending, "not applied yet")
		a.queue.poke() // as after the event that caused the read
		eventually(t, "ready again", ready)
	}
}

// TestNodeGetsItsSubnetsLater: a node joins the cluster before it has podCIDRs.
func TestNodeGetsItsSubnetsLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(node("n1", "192.0.2.1"))
	a, _ := w.agent()
	w.inStep(api.KindService, "default/kubernetes")
	eventually(t, "the agent says which part is missing", func() bool {
		ready, why := a.Readiness()
		return !ready && strings.Contains(why, "podCIDRs")
	})
	if got := w.daemon.names(api.KindPodNetwork); got != "" {
		t.Errorf("there is a PodNetwork, %s, without subnets", got)
	}
	status, reason, _ := a.state.condition(time.Now().Add(podsGrace))
	if status != corev1.ConditionTrue || reason != reasonNotReady {
		t.Errorf("condition %s %s", status, reason)
	}
	w.kube.Set(node("n1", "192.0.2.1", "10.244.1.0/24"))
	eventually(t, "the agent is ready", func() bool { ready, _ := a.Readiness(); return ready })
	w.inStep(api.KindPodNetwork, nodes.Network)
}

func TestWrongAnnotationIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := node("n3", "192.0.2.3", "10.244.3.0/24")
	bad.Annotations = map[string]string{nodes.AnnotationUnderlay: "nowhere"}
	w.kube.Set(bad)
	w.agent()
	w.inStep(api.KindPeer, "n2")
	eventually(t, "an event reports it", func() bool {
		for _, e := range w.kube.Events() {
			if e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == "n3" && strings.Contains(e.Message, nodes.AnnotationUnderlay) {
				return true
			}
		}
		return false
	})
}

// TestOtherSubnetsThanPodsHave: a node that was registered again with different podCIDRs gets no
// pods while pods with addresses from the earlier ones exist.
func TestOtherSubnetsThanPodsHave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := w.agent()
	ready := func() bool { ready, _ := a.Readiness(); return ready }
	eventually(t, "the agent is ready", ready)
	if _, err := w.daemon.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{{
		Kind: api.KindEndpoint, Name: "pod", Spec: raw(t, map[string]any{"device": "hs7", "network": nodes.Network, "addresses": []string{"10.244.1.9"}, "mac": "0a:58:0a:f4:01:09"}),
	}}}); err != nil {
		t.Fatal(err)
	}
	w.kube.Set(node("n1", "192.0.2.1", "10.244.9.0/24"))
	eventually(t, "not ready, and why", func() bool {
		ready, why := a.Readiness()
		return !ready && strings.Contains(why, "podCIDRs") && strings.Contains(why, "new pods")
	})
	eventually(t, "the node says so", func() bool {
		for _, c := range w.kube.Node("n1").Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable {
				return c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "podCIDRs")
			}
		}
		return false
	})
	time.Sleep(7 * time.Second) // it is retried 2, 6 and 14 s after the first attempt
	if _, err := w.daemon.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindEndpoint, Name: "pod"}}}); err != nil {
		t.Fatal(err)
	}
	testnet.Eventually(t, 5*time.Second, "without them it is ready", ready)
	if got := w.daemon.has()["PodNetwork/default"]; !strings.Contains(got, "10.244.9.0/24") {
		t.Errorf("PodNetwork/default is %s", got)
	}
}

// TestUnknownConfigurationStays: the last known configuration of a node stays while its object is
// invalid, or, for this node, is gone, even across restarts of the daemon and the agent.
func TestUnknownConfigurationStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ports := service("shop", "web", "10.96.0.7")
	ports.Spec.Type, ports.Spec.ExternalTrafficPolicy, ports.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal, 30080
	w.kube.Set(node("n3", "192.0.2.3", "10.244.3.0/24"), ports, slice("shop", "web", "web-a", "10.244.1.5"))
	_, stop := w.agent()
	started := false // an agent that never received this node's addresses has started
	var door string
	all := func(when string) {
		t.Helper()
		if spec := w.daemon.has()["Service/shop/web/nodeport"]; spec != door && door != "" && !started {
			t.Errorf("%s: the node's port is %s, want %s", when, spec, door)
		}
		for kind, names := range map[string]string{
			api.KindPeer: "n2 n3", api.KindInterface: nodes.Uplink, api.KindPodNetwork: nodes.Network, api.KindTunnel: nodes.Overlay,
		} {
			if got := w.daemon.names(kind); got != names {
				t.Errorf("%s: %s: the daemon has %q, want %q", when, kind, got, names)
			}
		}
	}
	w.inStep(api.KindPeer, "n2 n3")
	w.inStep(api.KindService, "default/kubernetes shop/web shop/web/nodeport")
	all("at first")
	door = w.daemon.has()["Service/shop/web/nodeport"]
	if !strings.Contains(door, "192.0.2.1:30080") || !strings.Contains(door, "10.244.1.0/24") {
		t.Errorf("the node's port is %s", door)
	}
	// A node with a valid object shows that the rest was processed.
	n := 3
	wantStays := func(when string) {
		t.Helper()
		n++
		name := fmt.Sprintf("z%d", n)
		w.kube.Set(node(name, fmt.Sprintf("192.0.2.%d", n), fmt.Sprintf("10.244.%d.0/24", n)))
		w.inStep(api.KindPeer, "n2 n3 "+name)
		w.kube.Delete(node(name, ""))
		w.inStep(api.KindPeer, "n2 n3")
		all(when)
	}
	n1, n2, n3 := node("n1", "192.0.2.1", "10.244.1.0/24"), node("n2", "192.0.2.2", "10.244.2.0/24"), node("n3", "", "10.244.3.0/24")
	n1.Annotations = map[string]string{nodes.AnnotationUplink: ","}
	n2.Annotations = map[string]string{nodes.AnnotationUnderlay: "garbage"}
	n3.Status.Addresses = nil
	w.kube.Set(n1, n2, n3)
	wantStays("with wrong annotations, and without addresses")
	w.daemon.kill()
	w.daemon.start()
	wantStays("to a daemon that has started")
	w.kube.Set(node("n1", ""))
	wantStays("without this node's addresses and podCIDRs")
	w.daemon.kill()
	w.daemon.start()
	wantStays("without them, to a daemon that has started")
	stop()
	started = true
	w.agent()
	wantStays("by an agent that has started")
	w.kube.Delete(node("n1", ""))
	wantStays("without this node")
	w.daemon.kill()
	w.daemon.start()
	wantStays("without this node, to a daemon that has started")
}

// leftover creates in the daemon an object from an earlier agent.
func (w *world) leftover(name string) {
	w.t.Helper()
	_, err := w.daemon.Apply(w.t.Context(), api.ApplyParams{Objects: []api.Object{{
		Kind: api.KindPeer, Name: name, Owner: nodes.Owner, Spec: raw(w.t, api.PeerSpec{Underlay: api.Words{"192.0.2.99"}, Prefixes: api.Words{"10.244.99.0/24"}}),
	}}})
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestNothingIsTakenAwayBeforeListsAreWhole: a failing API server is no reason to delete anything.
func TestNothingIsTakenAwayBeforeListsAreWhole(t *testing.T) {
	t.Parallel()
	answer := func(code int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body)) // the client may be gone
			return true
		}
	}
	for name, fault := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"error":      answer(http.StatusInternalServerError, `{}`),
		"empty list": answer(http.StatusOK, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`),
		"no JSON":    answer(http.StatusOK, `{"kind":"NodeL`),
		"gone":       answer(http.StatusGone, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`),
		"hang up":    func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.leftover("old")
			w.kube.NoStreams(true)
			w.kube.Fault(func(rw http.ResponseWriter, r *http.Request) bool {
				return strings.HasSuffix(r.URL.Path, "/"+testkube.Nodes) && fault(rw, r)
			})
			a, _ := w.agent()
			eventually(t, "the nodes were asked for six times", func() bool {
				return w.kube.Calls("list nodes")+w.kube.Calls("watch nodes") >= 6
			})
			if got := w.daemon.names(api.KindPeer); got != "old" {
				t.Errorf("the daemon has %q, want old", got)
			}
			eventually(t, "the agent says why it waits", func() bool {
				ready, why := a.Readiness()
				return !ready && why == "the API server has not listed all nodes yet"
			})
			w.kube.Fault(nil)
			w.inStep(api.KindPeer, "n2")
		})
	}
}

func TestDaemonIsKilledAndForgets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindPeer, "n2")
	w.daemon.kill()
	w.kube.Set(node("n3", "192.0.2.3", "10.244.3.0/24"))
	w.kube.Delete(node("n2", ""))
	w.daemon.start()
	w.inStep(api.KindPeer, "n3")
}

// TestExternalChangesAreRepaired: changes that other clients make to our objects are repaired.
func TestExternalChangesAreRepaired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindPeer, "n2")
	if _, err := w.daemon.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindPeer, Name: "n2"}}}); err != nil {
		t.Fatal(err)
	}
	w.inStep(api.KindPeer, "n2")
}

func TestWatchIsTooOld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindPeer, "n2")
	w.kube.Fault(func(rw http.ResponseWriter, r *http.Request) bool { panic(http.ErrAbortHandler) })
	w.kube.CutWatches()
	w.kube.Delete(node("n2", ""))
	w.kube.Set(node("n3", "192.0.2.3", "10.244.3.0/24"))
	w.kube.Forget()
	w.kube.Fault(nil)
	w.inStep(api.KindPeer, "n3")
}

// TestLostEvents: changes by another client are noticed although their events did not fit in the
// daemon's queue.
func TestLostEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindPeer, "n2")
	flood := func(value int) {
		t.Helper()
		var objects []api.Object
		for i := range 6000 {
			objects = append(objects, api.Object{Kind: api.KindAddressGroup, Name: fmt.Sprintf("g%d", i), Spec: raw(t, map[string]any{"members": []string{fmt.Sprintf("192.0.2.%d", value)}})})
		}
		if _, err := w.daemon.Apply(t.Context(), api.ApplyParams{Objects: objects}); err != nil {
			t.Fatal(err)
		}
	}
	lost := 0
	for i := 0; lost == 0 && i < 10; i++ {
		sub, err := w.daemon.Subscribe(t.Context(), api.TopicChanges) // reads as late as the agent
		if err != nil {
			t.Fatal(err)
		}
		flood(2*i + 1)
		if _, err := w.daemon.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindPeer, Name: "n2"}}}); err != nil {
			t.Fatal(err)
		}
		flood(2*i + 2)
		for seen := 0; seen < 12001 && lost == 0; seen++ {
			e, err := sub.Next(t.Context())
			if err != nil {
				break // the daemon has closed the connection
			}
			lost += int(e.Lost)
		}
		sub.Close()
		w.inStep(api.KindPeer, "n2")
	}
	if lost == 0 {
		t.Error("no event was lost: the test shows nothing")
	}
}
