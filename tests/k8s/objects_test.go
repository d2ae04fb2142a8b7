// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testk8s"
	"github.com/loxilight/loxilight/internal/testnet"
)

// space is a namespace of the cluster that a test has for itself.
type space struct {
	*site
	t    *testing.T
	name string
}

// spaces counts the namespaces of each test.
var spaces = map[string]int{}

// newSpace creates a namespace that is deleted with the test.
func newSpace(t *testing.T) *space {
	t.Helper()
	return newSpaceNamed(t, strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")))
}

func newSpaceNamed(t *testing.T, name string) *space {
	t.Helper()
	s := need(t)
	if spaces[name]++; spaces[name] > 1 {
		name = fmt.Sprint(name, "-", spaces[name]) // go test -count: the previous one may exist
	}
	p := &space{site: s, t: t, name: name}
	s.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", name))
	t.Cleanup(func() {
		if t.Failed() {
			p.explain()
		}
		if _, err := s.Kubectl("", "delete", "namespace", name, "--wait=false"); err != nil {
			t.Errorf("%v", err)
		}
	})
	testnet.Eventually(t, 20*time.Second, "the namespace has its account", func() bool {
		return s.API.Get(fmt.Sprintf("/api/v1/namespaces/%s/serviceaccounts/default", name), &struct{}{}) == nil
	})
	return p
}

// web creates a Deployment of servers that answer with their names: HTTP on 8080, UDP on 8081.
func (p *space) web(name string, replicas int, more string) []testk8s.Object {
	p.t.Helper()
	p.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 5
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: %[1]s}}}]
      containers:
        - name: web
          image: %[3]s
          imagePullPolicy: Never
          args: [netexec, --http-port=8080, --udp-port=8081, --delay-shutdown=2]
          ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 8081, protocol: UDP}]
          readinessProbe: {httpGet: {path: /hostname, port: 8080}, periodSeconds: 1}
%[4]s`, name, replicas, testk8s.Agnhost, more))
	return p.ReadyPods(p.t, p.name, "app%3D"+name, replicas)
}

// pod runs one server on a node.
func (p *space) pod(name, node, labels, more string) *testk8s.Object {
	p.t.Helper()
	p.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {name: %[1]s, %[3]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers:
    - name: web
      image: %[4]s
      imagePullPolicy: Never
      args: [netexec, --http-port=8080, --udp-port=8081]
      readinessProbe: {httpGet: {path: /hostname, port: 8080}, periodSeconds: 1}
%[5]s`, name, node, labels, testk8s.Agnhost, more))
	return &p.ReadyPods(p.t, p.name, "name%3D"+name, 1)[0]
}

// apply applies objects in the namespace.
func (p *space) apply(objects string) {
	p.t.Helper()
	if out, err := p.Kubectl(objects, "-n", p.name, "apply", "-f", "-"); err != nil {
		p.t.Fatalf("%v\n%s%s", err, out, objects)
	}
}

// service applies a Service and returns the resulting object.
func (p *space) service(name, spec string) *testk8s.Object {
	p.t.Helper()
	p.apply(fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {ipFamilyPolicy: PreferDualStack, %s}}", name, spec))
	return p.getService(name)
}

func (p *space) getService(name string) *testk8s.Object {
	p.t.Helper()
	var o testk8s.Object
	if err := p.API.Get(fmt.Sprintf("/api/v1/namespaces/%s/services/%s", p.name, name), &o); err != nil {
		p.t.Fatal(err)
	}
	return &o
}

// clusterIP is the address of a Service inside the cluster, with its n-th port.
func clusterIP(o *testk8s.Object, n int) netip.AddrPort { return clusterIPs(o, n)[0] }

// clusterIPs returns the addresses of a Service inside the cluster, in all its families.
func clusterIPs(o *testk8s.Object, n int) (all []netip.AddrPort) {
	for _, ip := range o.Spec.ClusterIPs {
		all = append(all, netip.AddrPortFrom(netip.MustParseAddr(ip), o.Spec.Ports[n].Port))
	}
	return all
}

// nodePort is the n-th port of a Service on a node.
func nodePort(node *testk8s.Node, o *testk8s.Object, n int) netip.AddrPort {
	return nodePorts(node, o, n)[0]
}

// nodePorts returns the n-th ports of a Service on a node, in all its families.
func nodePorts(node *testk8s.Node, o *testk8s.Object, n int) (all []netip.AddrPort) {
	for _, cluster := range clusterIPs(o, n) {
		all = append(all, netip.AddrPortFrom(node.IPLike(cluster.Addr()), o.Spec.Ports[n].NodePort))
	}
	return all
}

// inside is a client in a pod.
func (p *space) inside(pod *testk8s.Object) client {
	p.t.Helper()
	return client{name: "pod " + pod.Metadata.Name + " on " + pod.Spec.NodeName, ns: p.Inside(p.t, pod)}
}

// outside is a client on the machine behind the router.
func (s *site) outside() client { return client{name: "outside", ns: s.Outside} }

// on is a client on a node, in the same network namespace.
func on(n *testk8s.Node) client { return client{name: n.Name, ns: n.NS} }

// clients are a pod on each node, and each node.
func (p *space) clients() (all []client) {
	p.t.Helper()
	for _, n := range p.Nodes {
		pod := p.pod("client-"+n.Name, n.Name, "role: client", "")
		all = append(all, p.inside(pod), on(n))
	}
	return all
}

// soon waits until a condition holds; the data plane follows with a short delay.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testnet.Eventually(t, 15*time.Second, what, ok)
}

// serves waits until count servers of a service have answered.
func serves(t *testing.T, c client, server netip.AddrPort, count int) {
	t.Helper()
	seen := map[string]int{}
	var err error
	defer func() {
		if len(seen) < count {
			t.Logf("%s asks %s: %v, last %v", c.name, server, seen, err)
		}
	}()
	soon(t, fmt.Sprintf("%s reaches %d servers at %s", c.name, count, server), func() bool {
		var name string
		if name, err = c.getWithin(time.Second, server, "/hostname"); err == nil {
			seen[name]++
		}
		return len(seen) >= count
	})
}

// explain logs the state of the test's objects, if it failed.
func (p *space) explain() {
	out, err := p.Kubectl("", "-n", p.name, "get", "pods,services,endpointslices", "-o", "wide")
	p.t.Logf("%s %v", out, err)
	for _, n := range p.Nodes {
		p.t.Logf("%s\n%s\n%s", n.Name, p.llcli(n, "health"), p.llcli(n, "k8s", "services", "-o", "wide"))
	}
}
