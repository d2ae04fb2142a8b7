// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testk8s"
)

// TestExternal: external addresses and load balancer addresses from the pool, which a node
// announces, are reached from everywhere.
func TestExternal(t *testing.T) {
	p := newSpace(t)
	p.web("web", 2, "")
	var doors []netip.AddrPort
	var words []string
	for _, f := range p.Families {
		external := map[*testk8s.Family]string{testk8s.IPv4: "198.51.100.7", testk8s.IPv6: "2001:db8:7::7"}[f]
		addr := netip.MustParseAddr(external)
		p.Switch.Run(t, "ip", "route", "replace", external, "via", p.Nodes[1].IPLike(addr).String())
		t.Cleanup(func() { p.Switch.Run(t, "ip", "route", "del", external) })
		doors, words = append(doors, netip.AddrPortFrom(addr, 80)), append(words, fmt.Sprintf("%q", external))
	}
	p.service("web", "type: LoadBalancer, externalIPs: ["+strings.Join(words, ", ")+"], selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	doors = append(doors, p.balancers("web")...)
	for _, c := range append(p.clients(), p.outside()) {
		for _, at := range doors {
			serves(t, c, at, 2)
		}
	}
}

// TestSourceRanges: a load balancer serves only clients in its source ranges.
func TestSourceRanges(t *testing.T) {
	p := newSpace(t)
	p.web("web", 1, "")
	p.service("web", "type: LoadBalancer, loadBalancerSourceRanges: [198.51.100.0/24, '2001:db8:9::/64'], selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	at := p.balancers("web")
	for _, at := range at {
		if _, err := p.outside().getWithin(1500*time.Millisecond, at, "/hostname"); err == nil {
			t.Errorf("%s serves a client that is in none of the ranges", at)
		}
	}
	p.service("web", "type: LoadBalancer, loadBalancerSourceRanges: [198.51.100.0/24, "+testk8s.IPv4.Outside.String()+"/32, '"+testk8s.IPv6.Outside.String()+"/128'], selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	for _, at := range at {
		serves(t, p.outside(), at, 1)
	}
}

// balancers waits for the addresses of a load balancer, one of each family, from the pool.
func (p *space) balancers(name string) (all []netip.AddrPort) {
	p.t.Helper()
	soon(p.t, "the load balancer has addresses of the pool", func() bool {
		svc := p.getService(name)
		all = nil
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			a, err := netip.ParseAddr(ingress.IP)
			if err == nil && slices.ContainsFunc(p.Families, func(f *testk8s.Family) bool { return netip.MustParsePrefix(pools[f]).Contains(a) }) {
				all = append(all, netip.AddrPortFrom(a, svc.Spec.Ports[0].Port))
			}
		}
		return len(all) == len(svc.Spec.ClusterIPs)
	})
	return all
}

// TestLocalBalancer: with policy Local, the server sees the address of a load balancer's client.
func TestLocalBalancer(t *testing.T) {
	p := newSpace(t)
	p.pod("web", "node2", "app: web", "")
	p.service("balanced", "type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	for _, at := range p.balancers("balanced") {
		serves(t, p.outside(), at, 1)
		who, err := p.outside().get(at, "/clientip")
		source, parseErr := netip.ParseAddrPort(who)
		if err != nil || parseErr != nil || !slices.Contains(p.Outsides(), source.Addr()) {
			t.Errorf("the server sees %q, %v by %s; want the client's own address", who, err, at)
		}
	}
}
