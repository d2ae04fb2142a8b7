// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
	"github.com/loxilight/loxilight/loxilight-agent/internal/policies"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

// chaos changes a cluster at random while everything between it and the daemon fails.
type chaos struct {
	*world
	r        *rand.Rand
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	nodes    map[string]*corev1.Node
	pods     map[string]*corev1.Pod
	policies map[string]*networkingv1.NetworkPolicy
	cluster  map[string]string // of ClusterNetworkPolicies: the label of their subjects
	defined  bool              // the cluster has ClusterNetworkPolicies
	stop     func()
	running  bool // the daemon
	counts   map[string]int
}

// stable is a service without changes: it has all its backends at all times.
const stable = "Service/shop/stable"

const stableBackends = 6

// TestChaos: whatever happens to the API server, the daemon and the agent, the final state
// matches the cluster, and objects that did not change existed throughout.
func TestChaos(t *testing.T) {
	t.Parallel()
	duration := 10 * time.Second
	if text := os.Getenv("LOXILIGHT_CHAOS"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := &chaos{
		world: newWorld(t), r: rand.New(rand.NewPCG(seed, 1)), running: true, counts: map[string]int{},
		services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{}, nodes: map[string]*corev1.Node{},
		pods: map[string]*corev1.Pod{}, policies: map[string]*networkingv1.NetworkPolicy{}, cluster: map[string]string{},
	}
	c.kube.Set(namespace("shop"))
	c.setNode(node("n1", "192.0.2.1", "10.244.1.0/24"))
	c.setNode(node("n2", "192.0.2.2", "10.244.2.0/24"))
	c.setService(service("default", "kubernetes", "10.96.0.1"))
	c.setSlice(slice("default", "kubernetes", "kubernetes", "192.0.2.100"))
	c.setService(service("shop", "stable", "10.96.0.2"))
	c.setSlice(slice("shop", "stable", "stable-a", "10.244.2.1", "10.244.2.2", "10.244.2.3"))
	c.setSlice(slice("shop", "stable", "stable-b", "10.244.2.4", "10.244.2.5", "10.244.2.6"))
	_, c.stop = c.agent()
	eventually(t, "the stable service", func() bool { return backends(c.daemon.has()[stable]) == stableBackends })
	for end := time.Now().Add(duration); time.Now().Before(end); {
		c.step()
		c.check()
	}
	c.calm()
	var diff string
	defer func() { t.Logf("%v; %s", c.counts, diff) }()
	eventually(t, "the daemon is as the model is", func() bool { diff = c.differs(); return diff == "" })
}

func (c *chaos) setNode(n *corev1.Node) { c.nodes[n.Name] = n; c.kube.Set(n) }

func (c *chaos) setService(s *corev1.Service) { c.services[s.Name] = s; c.kube.Set(s) }

func (c *chaos) setSlice(s *discoveryv1.EndpointSlice) { c.slices[s.Name] = s; c.kube.Set(s) }

// participantStep makes one random change of a pod or a NetworkPolicy.
func (c *chaos) participantStep() {
	i := c.r.IntN(20)
	c.counts["pod or policy"]++
	switch c.r.IntN(7) {
	case 5:
		c.clusterStep(fmt.Sprint("c", i))
	case 0:
		p := networkPolicy("shop", fmt.Sprint("p", i), fmt.Sprint("a", c.r.IntN(3)), fmt.Sprint("a", c.r.IntN(3)))
		c.policies[p.Name] = p
		c.kube.Set(p)
	case 1:
		name := fmt.Sprint("p", i)
		delete(c.policies, name)
		c.kube.Delete(networkPolicy("shop", name, ""))
	case 2:
		name := fmt.Sprint("d", i)
		delete(c.pods, name)
		c.kube.Delete(pod("shop", name, "", ""))
	default:
		n := 1 + c.r.IntN(3)
		p := pod("shop", fmt.Sprint("d", i), fmt.Sprint("a", c.r.IntN(3)), fmt.Sprint("n", n), fmt.Sprintf("10.244.%d.%d", n, 1+c.r.IntN(10)))
		p.UID, p.CreationTimestamp = types.UID(fmt.Sprint("u", c.r.IntN(1000))), metav1.Unix(1700000000+int64(c.r.IntN(1000)), 0)
		p.Status.Phase = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodRunning, corev1.PodFailed}[c.r.IntN(4)]
		c.pods[p.Name] = p
		c.kube.Set(p)
	}
}

// clusterStep makes one random change of a ClusterNetworkPolicy, or of the definition of the resource,
// which ends with its objects.
func (c *chaos) clusterStep(name string) {
	if c.r.IntN(5) == 0 {
		if c.defined = !c.defined; c.defined {
			c.kube.Define(testkube.ClusterPolicyVersion)
			return
		}
		for name := range c.cluster {
			c.kube.Delete(clusterPolicy(name, ""))
		}
		clear(c.cluster)
		c.kube.Define("")
		if c.r.IntN(2) == 0 {
			c.kube.CutWatches()
		}
		return
	}
	if !c.defined {
		return
	}
	if c.r.IntN(3) == 0 {
		delete(c.cluster, name)
		c.kube.Delete(clusterPolicy(name, ""))
		return
	}
	c.cluster[name] = fmt.Sprint("a", c.r.IntN(3))
	c.kube.Set(clusterPolicy(name, c.cluster[name]))
}

// participants returns what the daemon should have of pods and policies.
func (c *chaos) participants() []api.Object {
	objects := append(policies.Tiers(), policies.Namespace(namespace("shop")))
	here := policies.Node{Name: "n1"}
	cidrs, err := nodes.PodCIDRs(c.nodes["n1"])
	if err != nil {
		c.t.Fatal(err)
	}
	for _, text := range cidrs {
		here.Subnets = append(here.Subnets, netip.MustParsePrefix(text))
	}
	for name, app := range c.cluster {
		p := clusterPolicy(name, app)
		objects = append(objects, policies.TranslateCluster(&policies.ClusterPolicy{Name: name, Spec: raw(c.t, p.Object["spec"])}, &here).Object)
	}
	var nodeAddresses policies.NodeAddresses
	for _, n := range c.nodes {
		nodeAddresses.Set(n.Name, n)
	}
	for _, n := range c.nodes {
		objects = append(objects, here.NodeEntities(n, &nodeAddresses, nil)...)
	}
	var addresses policies.Addresses
	var all []*policies.Pod
	for _, p := range c.pods {
		all = append(all, policies.NewPod(p))
		addresses.Set(all[len(all)-1].Key(), all[len(all)-1])
	}
	for _, p := range all {
		if o := here.Entity(p, &addresses); o != nil {
			objects = append(objects, *o)
		}
	}
	isHere := func(p *policies.Pod) bool { return p.Participates() && p.On("n1") }
	for _, p := range c.policies {
		if !slices.ContainsFunc(all, isHere) {
			break
		}
		objects = append(objects, policies.Translate(p, nil).Object)
	}
	return objects
}

// step makes one random change.
func (c *chaos) step() {
	if c.r.IntN(3) == 0 {
		c.participantStep()
		return
	}
	i := c.r.IntN(40)
	name := fmt.Sprintf("s%d", i)
	do := func(what string, f func()) { c.counts[what]++; f() }
	switch p := c.r.IntN(1000); {
	case p < 250:
		do("service", func() {
			s := service("shop", name, fmt.Sprintf("10.96.1.%d", i+1))
			if c.r.IntN(3) == 0 {
				s.Spec.Ports[0].Name = []string{"http", "www"}[c.r.IntN(2)]
			}
			if c.r.IntN(3) == 0 {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			}
			c.setService(s)
		})
	case p < 600:
		do("slice", func() { c.setSlice(c.randomSlice(name)) })
	case p < 700:
		do("delete service", func() { c.kube.Delete(service("shop", name, "")); delete(c.services, name) })
	case p < 800:
		do("delete slice", func() {
			of := fmt.Sprintf("%s-%d", name, c.r.IntN(2))
			c.kube.Delete(slice("shop", name, of))
			delete(c.slices, of)
		})
	case p < 880:
		do("node", func() {
			n := fmt.Sprintf("x%d", i)
			if c.r.IntN(3) == 0 {
				c.kube.Delete(node(n, ""))
				delete(c.nodes, n)
				return
			}
			c.setNode(node(n, fmt.Sprintf("192.0.2.%d", 10+i), fmt.Sprintf("10.244.%d.0/24", 10+i)))
		})
	default:
		c.fault(do)
	}
	if c.r.IntN(4) == 0 {
		time.Sleep(time.Duration(c.r.IntN(30)) * time.Millisecond) // the pace is part of the chaos
	}
}

func (c *chaos) randomSlice(service string) *discoveryv1.EndpointSlice {
	var addresses []string
	for range c.r.IntN(6) {
		addresses = append(addresses, fmt.Sprintf("10.244.%d.%d", 2+c.r.IntN(3), 10+c.r.IntN(200)))
	}
	s := slice("shop", service, fmt.Sprintf("%s-%d", service, c.r.IntN(2)), addresses...)
	yes, no := true, false
	for i := range s.Endpoints {
		switch c.r.IntN(4) {
		case 0:
			s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: &no}
		case 1:
			s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		}
	}
	return s
}

// fault breaks something, or repairs it.
func (c *chaos) fault(do func(string, func())) {
	switch c.r.IntN(12) {
	case 0, 1:
		do("watches are cut", c.kube.CutWatches)
	case 2:
		do("410 Gone", func() { c.kube.Forget(); c.kube.CutWatches() })
	case 3:
		do("API server is restarted", func() { c.kube.Stop(); c.kube.Start() })
	case 4:
		do("API server fails", func() { c.kube.Fault(c.bad()) })
	case 5, 6:
		do("API server is well", func() { c.kube.Fault(nil) })
	case 7:
		do("no streamed lists", func() { c.kube.NoStreams(c.r.IntN(2) == 0) })
	case 8:
		if c.running {
			do("daemon is killed", func() { c.daemon.kill(); c.running = false })
		}
	case 9, 10:
		if !c.running {
			do("daemon is started", func() { c.daemon.start(); c.running = true })
		} else {
			do("another client deletes", func() {
				ref := api.ObjectRef{Kind: api.KindService, Name: fmt.Sprintf("shop/s%d", c.r.IntN(40))}
				_, _ = c.daemon.Delete(context.Background(), api.DeleteParams{Objects: []api.ObjectRef{ref}}) // it may not exist
			})
		}
	case 11:
		do("agent is restarted", func() { c.stop(); _, c.stop = c.agent() })
	}
}

// bad returns a random way to fail.
func (c *chaos) bad() func(http.ResponseWriter, *http.Request) bool {
	kind, each := c.r.IntN(5), 1+c.r.Int64N(3)
	var asked atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) bool {
		if asked.Add(1)%each != 0 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		switch kind {
		case 0:
			w.WriteHeader(http.StatusInternalServerError)
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			if r.URL.Query().Get("watch") != "" {
				return false
			}
			resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
			list := map[string]string{"nodes": `"NodeList","apiVersion":"v1"`, "services": `"ServiceList","apiVersion":"v1"`, "endpointslices": `"EndpointSliceList","apiVersion":"discovery.k8s.io/v1"`}[resource]
			if list == "" {
				return false
			}
			fmt.Fprintf(w, `{"kind":%s,"metadata":{"resourceVersion":"1"},"items":[]}`, list)
		case 3:
			_, _ = w.Write([]byte(`{"kind":"ServiceLi`)) // the client may be gone
		case 4:
			time.Sleep(20 * time.Millisecond) // slow
			return false
		}
		return true
	}
}

// check verifies that the stable service is complete.
func (c *chaos) check() {
	c.t.Helper()
	if !c.running {
		return
	}
	o, err := c.daemon.Get(context.Background(), api.KindService, strings.TrimPrefix(stable, "Service/"))
	if err != nil {
		c.t.Fatalf("the stable service: %v; %v", err, c.counts)
	}
	if n := backends(string(o.Spec)); n != stableBackends {
		c.t.Fatalf("the stable service has %d backends; %v\n%s", n, c.counts, o.Spec)
	}
}

// calm ends all faults.
func (c *chaos) calm() {
	c.kube.Fault(nil)
	if !c.running {
		c.daemon.start()
		c.running = true
	}
}

// differs returns the differences between the daemon's objects and a translation of the whole
// cluster; empty: none.
func (c *chaos) differs() string {
	want := map[string]string{}
	put := func(objects ...api.Object) {
		for _, o := range objects {
			want[o.Kind+"/"+o.Name] = string(o.Spec)
		}
	}
	put(nodes.Tunnel(c.config)...)
	put(c.participants()...)
	network, err := nodes.PodNetwork(c.config, c.nodes["n1"], nil)
	if err != nil {
		c.t.Fatal(err)
	}
	put(*network)
	uplinks, err := nodes.Uplinks(c.nodes["n1"])
	if err != nil {
		c.t.Fatal(err)
	}
	put(uplinks...)
	for name, n := range c.nodes {
		if name == "n1" {
			continue
		}
		peer, err := nodes.Peer(c.config, n)
		if err != nil {
			c.t.Fatal(err)
		}
		put(*peer)
	}
	this, claims := services.NewNode(c.nodes["n1"], nil), &services.Claims{}
	this.IdleTimeout = api.IdleTimeout{TCP: api.Duration(24 * time.Hour), UDP: api.Duration(2 * time.Minute), SCTP: api.Duration(2 * time.Hour)}
	for _, s := range c.services {
		claims.Set(this, s)
	}
	for _, s := range c.services {
		var of []*discoveryv1.EndpointSlice
		for _, sl := range c.slices {
			if sl.Namespace == s.Namespace && sl.Labels[discoveryv1.LabelServiceName] == s.Name {
				of = append(of, sl)
			}
		}
		put(services.TranslateService(this, s, of, claims).Objects...)
	}
	has := c.daemon.has()
	var wrong []string
	for ref, spec := range want {
		if withoutDeparted(c.t, has[ref], spec) != spec && !strings.HasPrefix(ref, api.KindInterface+"/") {
			wrong = append(wrong, fmt.Sprintf("%s: %s, want %s", ref, has[ref], spec))
		}
	}
	for ref := range has {
		if want[ref] == "" {
			wrong = append(wrong, ref+": exists")
		}
	}
	return strings.Join(wrong, "\n")
}

// withoutDeparted removes from a Service the down backends that the model does not know: they are
// kept for their existing connections.
func withoutDeparted(t *testing.T, has, want string) string {
	t.Helper()
	var is, should api.ServiceSpec
	if !strings.Contains(has, `"down"`) || json.Unmarshal([]byte(has), &is) != nil || json.Unmarshal([]byte(want), &should) != nil {
		return has
	}
	is.Backends = slices.DeleteFunc(is.Backends, func(b api.Backend) bool {
		return b.State == "down" && !slices.Contains(should.Backends, b)
	})
	text, err := json.Marshal(is)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
