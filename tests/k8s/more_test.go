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

// TestHostPort: a pod is reached through a port of its node, from outside, other nodes and pods.
func TestHostPort(t *testing.T) {
	p := newSpace(t)
	for i, node := range []string{"node1", "node2"} {
		p.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: web%d, labels: {name: web%[1]d}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
    - name: web
      image: %s
      imagePullPolicy: Never
      args: [netexec, --http-port=8080, --udp-port=8081]
      ports: [{containerPort: 8080, hostPort: 54321}, {containerPort: 8081, hostPort: 54321, protocol: UDP}]
      readinessProbe: {httpGet: {path: /hostname, port: 8080}, periodSeconds: 1}`, i, node, testk8s.Agnhost))
	}
	p.ReadyPods(t, p.name, "name%3Dweb0", 1)
	p.ReadyPods(t, p.name, "name%3Dweb1", 1)
	inPod := p.pod("client", "node3", "role: client", "")
	for i, n := range p.Nodes[:2] {
		for _, ip := range n.IPs {
			at := netip.AddrPortFrom(ip, 54321)
			for _, c := range []client{p.outside(), on(p.Nodes[2]), p.inside(inPod)} {
				if name, err := c.get(at, "/hostname"); err != nil || name != fmt.Sprint("web", i) {
					t.Errorf("%s asks %s: %q, %v", c.name, at, name, err)
				}
				if name, err := c.ask(at, 0, "hostname"); err != nil || name != fmt.Sprint("web", i) {
					t.Errorf("%s asks %s by UDP: %q, %v", c.name, at, name, err)
				}
			}
		}
	}
}

// TestHostNetwork: a server in its node's network is reached through a Service.
func TestHostNetwork(t *testing.T) {
	p := newSpace(t)
	p.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: node2
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
    - {name: web, image: %s, imagePullPolicy: Never, args: [netexec, --http-port=18080, --udp-port=18081], readinessProbe: {httpGet: {path: /hostname, port: 18080}, periodSeconds: 1}}`, testk8s.Agnhost))
	p.ReadyPods(t, p.name, "app%3Dweb", 1)
	svc := p.service("web", "type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 18080}]")
	for _, c := range p.clients() {
		for _, at := range clusterIPs(svc, 0) {
			serves(t, c, at, 1)
		}
	}
	for _, n := range p.Nodes {
		for _, at := range nodePorts(n, svc, 0) {
			serves(t, p.outside(), at, 1)
		}
	}
}

// TestByHand: a Service with manually configured servers, outside the cluster.
func TestByHand(t *testing.T) {
	p := newSpace(t)
	svc := p.service("far", "ports: [{name: http, port: 80}]")
	for _, f := range p.Families {
		p.Outside.ServeHTTP(t, netip.AddrPortFrom(f.Outside, 8123).String(), "far")
		p.apply(fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far-%s, labels: {kubernetes.io/service-name: far}}
addressType: %s
ports: [{name: http, port: 8123, protocol: TCP}]
endpoints: [{addresses: [%q]}]`, f.Name, strings.Replace(f.Name, "ip", "IP", 1), f.Outside))
	}
	for _, c := range p.clients() {
		for _, at := range clusterIPs(svc, 0) {
			serves(t, c, at, 1)
		}
	}
}

// TestSameNode: a Service that prefers the node's own servers uses them, as long as there are any.
func TestSameNode(t *testing.T) {
	p := newSpace(t)
	p.web("web", 3, "")
	svc := p.service("web", "trafficDistribution: PreferSameNode, selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	pods := p.ReadyPods(t, p.name, "app%3Dweb", 3)
	for _, n := range p.Nodes {
		want := ""
		for _, o := range pods {
			if o.Spec.NodeName == n.Name {
				want = o.Metadata.Name
			}
		}
		if want == "" {
			t.Fatalf("%s has no server: the test shows nothing", n.Name)
		}
		soon(t, n.Name+" has its own server only", func() bool {
			for range 12 {
				if name, err := on(n).get(clusterIP(svc, 0), "/hostname"); err != nil || name != want {
					return false
				}
			}
			return true
		})
	}
}

// TestOtherProxy: a Service that another proxy serves is left to it.
func TestOtherProxy(t *testing.T) {
	p := newSpace(t)
	p.web("web", 1, "")
	p.apply("{apiVersion: v1, kind: Service, metadata: {name: web, labels: {service.kubernetes.io/service-proxy-name: other}}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}}")
	other := p.getService("web")
	ours := p.service("ours", "selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	serves(t, on(p.Nodes[0]), clusterIP(ours, 0), 1)
	if _, err := on(p.Nodes[0]).getWithin(time.Second, clusterIP(other, 0), "/hostname"); err == nil {
		t.Error("it is served")
	}
	p.apply("{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}}")
	if _, err := p.Kubectl("", "-n", p.name, "label", "service", "web", "service.kubernetes.io/service-proxy-name-"); err != nil && !strings.Contains(err.Error(), "not found") {
		t.Fatal(err)
	}
	serves(t, on(p.Nodes[0]), clusterIP(other, 0), 1)
}

// TestTypeChanges: a Service gets node ports, and loses them again.
func TestTypeChanges(t *testing.T) {
	p := newSpace(t)
	p.web("web", 1, "")
	p.service("web", "type: ClusterIP, selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	svc := p.service("web", "type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	at := nodePort(p.Nodes[2], svc, 0)
	serves(t, p.outside(), at, 1)
	p.service("web", "type: ClusterIP, selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	soon(t, "the node port is gone", func() bool {
		_, err := p.outside().connect(at)
		return err != nil && strings.Contains(err.Error(), "refused")
	})
	serves(t, on(p.Nodes[0]), clusterIP(svc, 0), 1)
}

// TestHealth: load balancers' health checks succeed for a node, and fail for a node that is about
// to be deleted.
func TestHealth(t *testing.T) {
	s := need(t)
	n := s.Nodes[2]
	at := netip.AddrPortFrom(n.IP(), 10256)
	for _, path := range []string{"/healthz", "/livez"} {
		if text, err := s.outside().get(at, path); err != nil {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	taint := func(word string) {
		if _, err := s.Kubectl("", "taint", "node", n.Name, "ToBeDeletedByClusterAutoscaler"+word); err != nil {
			t.Error(err)
		}
	}
	taint("=1:NoSchedule")
	t.Cleanup(func() {
		taint("-")
		soon(t, "the node is eligible again", func() bool { _, err := s.outside().get(at, "/healthz"); return err == nil })
	})
	soon(t, "the node is no longer eligible", func() bool {
		_, err := s.outside().get(at, "/healthz")
		return err != nil && strings.Contains(err.Error(), "503")
	})
	if _, err := s.outside().get(at, "/livez"); err != nil {
		t.Errorf("/livez: %v, want that the agent lives all the same", err)
	}
}

// TestManyPods: pods that are created and deleted together have unique addresses, and leave none
// behind.
func TestManyPods(t *testing.T) {
	p := newSpace(t)
	const count = 30
	pods := p.web("many", count, "")
	seen := map[netip.Addr]string{}
	for _, o := range pods {
		for _, ip := range o.Status.PodIPs {
			if other, ok := seen[ip.IP]; ok {
				t.Errorf("%s is %s's and %s's", ip.IP, other, o.Metadata.Name)
			}
			seen[ip.IP] = o.Metadata.Name
		}
	}
	svc := p.service("many", "selector: {app: many}, ports: [{port: 80, targetPort: http}]")
	serves(t, on(p.Nodes[0]), clusterIP(svc, 0), count)
	if _, err := p.Kubectl("", "-n", p.name, "scale", "deployment/many", "--replicas=0"); err != nil {
		t.Fatal(err)
	}
	testnet.Eventually(t, 90*time.Second, "no address is taken by them", func() bool {
		time.Sleep(200 * time.Millisecond)
		for _, n := range p.Nodes {
			if strings.Contains(p.llcli(n, "get", "endpoints", "-o", "json"), `"many-`) {
				return false
			}
		}
		return true
	})
}
