// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testk8s"
)

// TestNodes: the nodes became Ready with loxilight alone, and report that.
func TestNodes(t *testing.T) {
	s := need(t)
	nodes, err := s.List("/api/v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if !n.Is("NetworkUnavailable", "False") {
			t.Errorf("%s: conditions %+v, want NetworkUnavailable False", n.Metadata.Name, n.Status.Conditions)
		}
		if out, err := s.Node(n.Metadata.Name).Run("sh", "-c", "nft list tables; iptables-save | grep -c KUBE-SVC"); strings.Contains(out, "kube-proxy") {
			t.Errorf("%s has rules of kube-proxy: %s %v", n.Metadata.Name, out, err)
		}
	}
}

// TestPods: pods on all nodes reach each other with their own addresses, and the machine outside
// with their node's; nodes reach pods.
func TestPods(t *testing.T) {
	p := newSpace(t)
	var pods []*testk8s.Object
	for _, n := range p.Nodes {
		for i := range 2 {
			pods = append(pods, p.pod(fmt.Sprintf("pod%d-%s", i, n.Name), n.Name, "role: any", ""))
		}
	}
	for _, from := range pods {
		c := p.inside(from)
		for _, to := range pods {
			for i, ip := range to.Status.PodIPs {
				server := netip.AddrPortFrom(ip.IP, 8080)
				if name, err := c.get(server, "/hostname"); err != nil || name != to.Metadata.Name {
					t.Errorf("%s asks %s at %s: %q, %v", c.name, to.Metadata.Name, server, name, err)
				}
				who, err := c.get(server, "/clientip")
				if source, parseErr := netip.ParseAddrPort(who); err != nil || parseErr != nil || source.Addr() != from.Status.PodIPs[i].IP {
					t.Errorf("%s sees %s as %q, %v; want its own address", to.Metadata.Name, c.name, who, err)
				}
				if name, err := c.ask(netip.AddrPortFrom(ip.IP, 8081), 0, "hostname"); err != nil || name != to.Metadata.Name {
					t.Errorf("%s asks %s at %s by UDP: %q, %v", c.name, to.Metadata.Name, ip.IP, name, err)
				}
			}
		}
	}
	for _, n := range p.Nodes {
		for _, to := range pods {
			for _, ip := range to.Status.PodIPs {
				if name, err := on(n).get(netip.AddrPortFrom(ip.IP, 8080), "/hostname"); err != nil || name != to.Metadata.Name {
					t.Errorf("%s asks %s at %s: %q, %v", n.Name, to.Metadata.Name, ip.IP, name, err)
				}
			}
		}
	}
	for _, f := range p.Families {
		p.leaveBy(f, pods)
	}
}

// leaveBy checks that the machine outside sees packets from pods with the addresses of their nodes.
func (p *space) leaveBy(f *testk8s.Family, pods []*testk8s.Object) {
	p.t.Helper()
	far := netip.AddrPortFrom(f.Outside, 4711)
	server := p.Outside.ServeUDP(p.t, far.String(), "outside")
	var want []string
	for _, from := range pods {
		c := p.inside(from)
		if _, err := c.ns.TryRun("ping", "-c", "1", "-W", "3", f.Outside.String()); err != nil {
			p.t.Errorf("%s pings %s, outside: %v", c.name, f.Outside, err)
		}
		if _, err := c.ask(far, 0, "who"); err != nil {
			p.t.Errorf("%s asks %s, outside: %v", c.name, far, err)
		}
		want = append(want, p.Node(from.Spec.NodeName).IPLike(f.Outside).String())
	}
	var got []string
	for _, a := range server.Clients() {
		got = append(got, a.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(got, want) {
		p.t.Errorf("outside sees pods as %s, want their nodes %s", got, want)
	}
}

// TestDNS: names of services and pods are resolved by CoreDNS through its own Service.
func TestDNS(t *testing.T) {
	p := newSpace(t)
	web := p.web("web", 3, "")
	p.service("web", "selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	p.service("headless", "clusterIP: None, selector: {app: web}, ports: [{port: 8080, targetPort: http}]")
	for _, from := range web {
		c := p.inside(&from)
		for _, name := range []string{"web:80", "web." + p.name + ":80", "web." + p.name + ".svc.cluster.local:80", "headless:8080"} {
			host, port, _ := strings.Cut(name, ":")
			query := "/dial?" + url.Values{"host": {host}, "port": {port}, "protocol": {"http"}, "request": {"hostname"}, "tries": {"1"}}.Encode()
			var text string
			var err error
			soon(t, c.name+" reaches "+name, func() bool {
				text, err = c.get(netip.AddrPortFrom(from.Status.PodIP, 8080), query)
				return err == nil && strings.Contains(text, `"responses":["web-`)
			})
		}
	}
}
