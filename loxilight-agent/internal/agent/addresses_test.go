// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
	"github.com/loxilight/loxilight/loxilight-agent/internal/controller"
	"github.com/loxilight/loxilight/loxilight-agent/internal/pools"
)

func balancer(name, clusterIP string) *corev1.Service {
	s := service("shop", name, clusterIP)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	return s
}

func (w *world) ingress(name string) string {
	w.t.Helper()
	var words []string
	for _, a := range pools.Ingress(w.kube.Service("shop", name)) {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

// TestAddressesFromPools: one of two controllers assigns addresses; if it stops, the other one
// does. Agents alone assign none.
func TestAddressesFromPools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.LoadBalancer.Pools = []config.Pool{{Name: "lan", Addresses: []string{"203.0.113.16/30"}}}
	other := &world{t: t, kube: w.kube, daemon: newDaemon(t), config: w.config, log: w.log, name: "n2"}
	w.kube.Set(balancer("a", "10.96.0.7"))
	w.agent()
	w.inStep(api.KindService, "default/kubernetes shop/a")
	if w.ingress("a") != "" || w.kube.Calls("patch services") > 0 || w.kube.Calls("get leases") > 0 {
		t.Error("an agent gives out addresses")
	}
	stop := w.controller("c1")
	eventually(t, "a has an address", func() bool { return w.ingress("a") == "203.0.113.16" })
	other.agent()
	w.controller("c2")
	spec := func(d *daemon, name, address string) string {
		return d.has()["Service/shop/"+name+"/loadbalancer/"+address]
	}
	announced := func(name, address string) (by string) {
		for node, d := range map[string]*daemon{"n1": w.daemon, "n2": other.daemon} {
			if strings.Contains(spec(d, name, address), `"announce":true`) {
				by += node
			}
		}
		return by
	}
	want := pools.Announcer(netip.MustParseAddr("203.0.113.16"), []string{"n1", "n2"})
	eventually(t, "both daemons have it, and one announces it", func() bool {
		return spec(w.daemon, "a", "203.0.113.16") != "" && spec(other.daemon, "a", "203.0.113.16") != "" && announced("a", "203.0.113.16") == want
	})
	down := w.kube.Node(want)
	down.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	w.kube.Set(down)
	rest := map[string]string{"n1": "n2", "n2": "n1"}[want]
	eventually(t, "the other node announces it", func() bool { return announced("a", "203.0.113.16") == rest })
	stop()
	w.kube.Set(balancer("b", "10.96.0.8"))
	eventually(t, "b has an address, from the other controller", func() bool { return w.ingress("b") == "203.0.113.17" })
	greedy := balancer("c", "10.96.0.9")
	greedy.Spec.LoadBalancerIP = "192.0.2.77"
	w.kube.Set(greedy)
	eventually(t, "an event says why c has no address", func() bool { return w.hasEvent("c", "192.0.2.77") })
}

// hasEvent reports whether an event about the addresses of a Service contains text.
func (w *world) hasEvent(name, text string) bool {
	for _, e := range w.kube.Events() {
		if e.Reason == controller.ReasonAddresses && e.InvolvedObject.Name == name && strings.Contains(e.Message, text) {
			return true
		}
	}
	return false
}

// TestPoolMadeSmaller: an address that was assigned from the pool is reported; an address from
// another controller is not.
func TestPoolMadeSmaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.LoadBalancer.Pools = []config.Pool{{Name: "lan", Addresses: []string{"203.0.113.16/30"}}}
	foreign := balancer("cloud", "10.96.0.8")
	foreign.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.77"}}
	w.kube.Set(balancer("a", "10.96.0.7"), foreign)
	stop := w.controller("c1")
	eventually(t, "a has an address", func() bool { return w.ingress("a") == "203.0.113.16" })
	stop()
	w.config.LoadBalancer.Pools[0].Addresses = []string{"203.0.113.18-203.0.113.19"}
	w.controller("c1")
	eventually(t, "an event says that it is not announced", func() bool { return w.hasEvent("a", "203.0.113.16 is no longer in any pool") })
	w.kube.Set(balancer("b", "10.96.0.9"))
	eventually(t, "b has an address", func() bool { return w.ingress("b") == "203.0.113.18" })
	if got := w.ingress("a"); got != "203.0.113.16" {
		t.Errorf("a has %q", got)
	}
	if w.hasEvent("cloud", "") || w.ingress("cloud") != "192.0.2.77" {
		t.Errorf("an address of another controller was reported or changed: %q", w.ingress("cloud"))
	}
}

// TestLocalAddressIsAnnouncedWhereEndpointsAre: nodes with serving endpoints announce the address
// until the endpoints are gone, so that their connections continue; without endpoints no node
// announces it.
func TestLocalAddressIsAnnouncedWhereEndpointsAre(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.LoadBalancer.Pools = []config.Pool{{Name: "lan", Addresses: []string{"203.0.113.16/30"}}}
	s := balancer("a", "10.96.0.7")
	s.Spec.ExternalTrafficPolicy, s.Spec.LoadBalancerIP = corev1.ServiceExternalTrafficPolicyLocal, "203.0.113.18"
	w.kube.Set(s)
	w.agent()
	w.controller("c1")
	local := func(node string) {
		of := slice("shop", "a", "a-1", "10.244.1.5")
		of.Endpoints[0].NodeName = &node
		w.kube.Set(of)
	}
	announced := func() bool {
		return strings.Contains(w.daemon.has()["Service/shop/a/loadbalancer/203.0.113.18"], `"announce":true`)
	}
	local("n1")
	eventually(t, "announced here", announced)
	local("n2")
	eventually(t, "not announced here", func() bool { return !announced() && w.ingress("a") == "203.0.113.18" })
	local("n1")
	eventually(t, "announced here again", announced)
	state := func(node string, ready, serving bool, address string) (e discoveryv1.Endpoint) {
		terminating := !ready
		e.NodeName, e.Addresses = &node, []string{address}
		e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
		return e
	}
	set := func(endpoints ...discoveryv1.Endpoint) {
		of := slice("shop", "a", "a-1")
		of.Endpoints = endpoints
		w.kube.Set(of)
	}
	set(state("n1", true, true, "10.244.1.5"), state("n2", false, false, "10.244.2.5"))
	eventually(t, "announced here as before", announced)
	set(state("n1", false, true, "10.244.1.5"), state("n2", false, false, "10.244.2.5"))
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if !announced() {
			t.Fatal("it moves before the last one here is gone")
		}
	}
	set(state("n1", false, false, "10.244.1.5"), state("n2", false, true, "10.244.2.5"))
	eventually(t, "the only serving endpoint is on another node", func() bool { return !announced() })
	set(state("n1", false, true, "10.244.1.5"), state("n3", true, true, "10.244.3.5"))
	eventually(t, "the ready endpoint is on a node that announces nothing", announced)
	w.kube.Delete(slice("shop", "a", "a-1"))
	eventually(t, "not announced", func() bool { return !announced() })
}

// TestAddressesWaitForTheAPIServer: a failed write is retried.
func TestAddressesWaitForTheAPIServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.LoadBalancer.Pools = []config.Pool{{Name: "lan", Addresses: []string{"203.0.113.16/30"}}}
	w.kube.Fault(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch && !strings.Contains(r.URL.Path, "/leases") {
			return false
		}
		rw.WriteHeader(http.StatusInternalServerError)
		return true
	})
	w.kube.Set(balancer("a", "10.96.0.7"))
	w.controller("c1")
	eventually(t, "the lease was asked for", func() bool { return w.kube.Calls("get leases") > 0 })
	w.kube.Fault(nil)
	eventually(t, "a has an address", func() bool { return w.ingress("a") == "203.0.113.16" })
}
