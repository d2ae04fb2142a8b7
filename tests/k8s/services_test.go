// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testk8s"
)

// TestClusterIP: a Service is reached from pods and nodes, over TCP and UDP, and all of its
// servers, but no others, are used.
func TestClusterIP(t *testing.T) {
	p := newSpace(t)
	p.web("web", 3, "")
	svc := p.service("web", "selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}, {name: dns, port: 53, protocol: UDP, targetPort: dns}, {name: number, port: 81, targetPort: 8080}]")
	for _, c := range p.clients() {
		for _, at := range append(clusterIPs(svc, 0), clusterIPs(svc, 2)...) {
			serves(t, c, at, 3)
		}
		for _, at := range clusterIPs(svc, 1) {
			for range 4 {
				if name, err := c.ask(at, 0, "hostname"); err != nil || !strings.HasPrefix(name, "web-") {
					t.Errorf("%s asks %s: %q, %v", c.name, at, name, err)
				}
			}
		}
		nobody := netip.AddrPortFrom(clusterIP(svc, 0).Addr(), 82)
		if conn, err := c.connect(nobody); err == nil {
			_ = conn.Close() // it should not exist
			t.Errorf("%s reaches port 82 of the Service, which it does not have", c.name)
		}
	}
	// Changes in place take effect at once.
	p.service("web", "selector: {app: web}, ports: [{name: http, port: 8088, targetPort: http}]")
	c := on(p.Nodes[2])
	serves(t, c, netip.AddrPortFrom(clusterIP(svc, 0).Addr(), 8088), 3)
	soon(t, "the previous port serves no more", func() bool {
		_, err := c.get(clusterIP(svc, 0), "/hostname")
		return err != nil
	})
}

// TestSource: a server sees a pod with the pod's own address, wherever the two are.
func TestSource(t *testing.T) {
	p := newSpace(t)
	p.pod("web", "node2", "app: web", "")
	svc := p.service("web", "selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	for _, n := range p.Nodes {
		pod := p.pod("client-"+n.Name, n.Name, "role: client", "")
		for i, at := range clusterIPs(svc, 0) {
			serves(t, p.inside(pod), at, 1)
			who, err := p.inside(pod).get(at, "/clientip")
			if source, parseErr := netip.ParseAddrPort(who); err != nil || parseErr != nil || source.Addr() != pod.Status.PodIPs[i].IP {
				t.Errorf("the server sees the pod on %s as %q, %v by %s; want %s", n.Name, who, err, at, pod.Status.PodIPs[i].IP)
			}
		}
	}
}

// TestAPIServer: the Service of the API server itself is reached from pods and nodes.
func TestAPIServer(t *testing.T) {
	p := newSpace(t)
	at := netip.AddrPortFrom(p.Families[0].APIService, 443)
	for _, c := range p.clients() {
		conn, err := c.connect(at)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		_ = conn.Close() // only the connection counts
	}
}

// TestNodePort: a node port is reached from outside, nodes and pods, on each node, including from
// the node itself.
func TestNodePort(t *testing.T) {
	p := newSpace(t)
	p.web("web", 2, "")
	svc := p.service("web", "type: NodePort, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}, {name: dns, port: 53, protocol: UDP, targetPort: dns}]")
	for _, c := range append(p.clients(), p.outside()) {
		for _, n := range p.Nodes {
			for _, at := range nodePorts(n, svc, 0) {
				serves(t, c, at, 2)
			}
			for _, at := range nodePorts(n, svc, 1) {
				if name, err := c.ask(at, 0, "hostname"); err != nil || !strings.HasPrefix(name, "web-") {
					t.Errorf("%s asks %s by UDP: %q, %v", c.name, at, name, err)
				}
			}
		}
	}
}

// TestAffinity: a client stays with its server in all connections.
func TestAffinity(t *testing.T) {
	p := newSpace(t)
	p.web("web", 3, "")
	svc := p.service("web", "sessionAffinity: ClientIP, type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	first := map[string]bool{}
	for _, c := range append(p.clients(), p.outside()) {
		at := clusterIP(svc, 0)
		if c.ns == p.Outside {
			at = nodePort(p.Nodes[0], svc, 0)
		}
		soon(t, c.name+" is served", func() bool { _, err := c.get(at, "/hostname"); return err == nil })
		seen := c.names(t, at, 12)
		if len(seen) != 1 {
			t.Errorf("%s is served by %v, want one", c.name, seen)
		}
		first[keysOf(seen)[0]] = true
	}
	p.service("web", "sessionAffinity: None, type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	serves(t, on(p.Nodes[0]), clusterIP(svc, 0), 3)
}

// TestNoServers: without a server, connections are refused at once, and served as soon as a server
// exists; a UDP client continues with a different server.
func TestNoServers(t *testing.T) {
	p := newSpace(t)
	svc := p.service("web", "type: NodePort, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP, targetPort: 8081}]")
	clients := p.clients()
	soon(t, "the Service is refused", func() bool {
		_, err := clients[0].connect(clusterIP(svc, 0))
		return err != nil && strings.Contains(err.Error(), "refused")
	})
	for _, c := range clients {
		for _, at := range clusterIPs(svc, 0) {
			c.refused(t, at)
		}
	}
	for _, at := range nodePorts(p.Nodes[0], svc, 0) {
		p.outside().refused(t, at)
	}
	one := p.pod("one", "node1", "app: web", "")
	c := clients[2]
	serves(t, c, clusterIP(svc, 0), 1)
	ask := func() string { name, _ := c.ask(clusterIP(svc, 1), 5353, "hostname"); return name }
	soon(t, "one answers", func() bool { return ask() == "one" })
	two := p.pod("two", "node3", "app: web", "")
	if _, err := p.Kubectl("", "-n", p.name, "delete", "pod", one.Metadata.Name, "--wait=false"); err != nil {
		t.Fatal(err)
	}
	soon(t, "the client's datagrams, from the same port, go to the other one", func() bool { return ask() == "two" })
	if _, err := p.Kubectl("", "-n", p.name, "delete", "pod", two.Metadata.Name); err != nil {
		t.Fatal(err)
	}
	soon(t, "the Service is refused again", func() bool {
		_, err := c.connect(clusterIP(svc, 0))
		return err != nil && strings.Contains(err.Error(), "refused")
	})
}

// TestHairpin: a server reaches itself through its own Service, and through its node port.
func TestHairpin(t *testing.T) {
	p := newSpace(t)
	server := p.pod("web", "node3", "app: web", "")
	svc := p.service("web", "type: NodePort, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP, targetPort: 8081}]")
	c := p.inside(server)
	for _, at := range clusterIPs(svc, 0) {
		serves(t, c, at, 1)
	}
	for _, n := range p.Nodes {
		for _, at := range nodePorts(n, svc, 0) {
			serves(t, c, at, 1)
		}
	}
	if name, err := c.ask(clusterIP(svc, 1), 0, "hostname"); err != nil || name != "web" {
		t.Errorf("by UDP: %q, %v", name, err)
	}
}

// TestNotReady: servers that are not Ready serve only if the Service requests that.
func TestNotReady(t *testing.T) {
	p := newSpace(t)
	p.pod("ready", "node1", "app: web", "")
	p.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: unready, labels: {app: web}}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers:
    - {name: web, image: %s, imagePullPolicy: Never, args: [netexec], readinessProbe: {httpGet: {path: /hostname, port: 1}, periodSeconds: 1}}`, testk8s.Agnhost))
	soon(t, "both pods run", func() bool {
		pods, err := p.Pods(p.name, "app%3Dweb")
		return err == nil && len(pods) == 2 && pods[0].Status.PodIP.IsValid() && pods[1].Status.PodIP.IsValid()
	})
	ready := p.service("web", "selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	all := p.service("all", "publishNotReadyAddresses: true, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	serves(t, on(p.Nodes[2]), clusterIP(all, 0), 2)
	if seen := on(p.Nodes[2]).names(t, clusterIP(ready, 0), 20); len(seen) != 1 || seen["ready"] == 0 {
		t.Errorf("served by %v, want the one that is Ready", seen)
	}
}
