// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// withPool returns thisNode with a pool of 203.0.113.0/28, and external IPs only in the pool and
// in 198.51.100.64/26.
func withPool() *Node {
	n := thisNode()
	n.Policy.InPool = netip.MustParsePrefix("203.0.113.0/28").Contains
	n.Policy.ExternalIPs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28"), netip.MustParsePrefix("198.51.100.64/26")}
	return n
}

func port(p int32, proto corev1.Protocol) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port, s.Spec.Ports[0].Protocol = p, proto }
}

// TestPoolAddressBelongsToItsHolder: on all ports, even if an older Service claims it.
func TestPoolAddressBelongsToItsHolder(t *testing.T) {
	n, c := withPool(), &Claims{}
	holds := func(frontend string, proto corev1.Protocol, want string) {
		t.Helper()
		if got, _ := c.Holder(netip.MustParseAddrPort(frontend), proto); got.Name != want {
			t.Errorf("%s %s belongs to %q, want %q", frontend, proto, got.Name, want)
		}
	}
	affects := func(what string, got []Key, want string) {
		t.Helper()
		if text := keys(got); text != want {
			t.Errorf("%s affects %q, want %q", what, text, want)
		}
	}
	const tcp, udp = corev1.ProtocolTCP, corev1.ProtocolUDP
	// An older Service has a different port of a free pool address, and loses it.
	squatter := named("squatter", "10.96.0.21", 9*time.Hour, externalIPs("203.0.113.5"), port(443, tcp))
	affects("an external IP", c.Set(n, squatter), "")
	holds("203.0.113.5:443", tcp, "squatter")
	victim := named("victim", "10.96.0.22", time.Hour, loadBalancer("203.0.113.5"))
	affects("the address given out", c.Set(n, victim), "shop/squatter")
	holds("203.0.113.5:80", tcp, "victim")
	holds("203.0.113.5:443", tcp, "victim")

	thief := named("thief", "10.96.0.23", 99*time.Hour, externalIPs("203.0.113.5"))
	affects("the same port of an older one", c.Set(n, thief), "")
	holds("203.0.113.5:80", tcp, "victim")
	dns := named("dns", "10.96.0.24", 99*time.Hour, externalIPs("203.0.113.5"), port(53, udp))
	affects("another protocol", c.Set(n, dns), "")
	holds("203.0.113.5:53", udp, "victim")
	copied := named("copied", "10.96.0.25", time.Minute, loadBalancer("203.0.113.5"), port(8080, tcp))
	affects("a younger one with the same status", c.Set(n, copied), "")
	holds("203.0.113.5:8080", tcp, "victim")

	got := TranslateService(n, thief, one("10.244.4.6"), c)
	want(t, render(t, got.Objects), "shop/thief: 10.96.0.23:80/tcp -> 10.244.4.6:8080\n")
	if len(got.Problems) != 1 || got.Problems[0] != "203.0.113.5:80/tcp belongs to service shop/victim" {
		t.Errorf("problems: %q", got.Problems)
	}
	affects("the end of the victim", c.Delete(Key{Namespace: "shop", Name: "victim"}), "shop/copied")
	holds("203.0.113.5:8080", tcp, "copied")
	holds("203.0.113.5:80", tcp, "copied")
	affects("the end of its copy", c.Delete(Key{Namespace: "shop", Name: "copied"}), "shop/dns shop/squatter shop/thief")
	holds("203.0.113.5:80", tcp, "thief")
	for _, name := range []string{"squatter", "thief", "dns"} {
		c.Delete(Key{Namespace: "shop", Name: name})
	}
	if len(c.services)+len(c.holders)+len(c.rivals)+len(c.at) > 0 {
		t.Errorf("left: %v %v %v %v", c.services, c.holders, c.rivals, c.at)
	}
}

// TestStatusGoesBeforeExternalIPs, even for addresses from other controllers.
func TestStatusGoesBeforeExternalIPs(t *testing.T) {
	n, c := withPool(), &Claims{}
	c.Set(n, named("thief", "10.96.0.23", 99*time.Hour, externalIPs("198.51.100.70")))
	if got := keys(c.Set(n, named("victim", "10.96.0.22", time.Hour, loadBalancer("198.51.100.70")))); got != "shop/thief" {
		t.Errorf("affects %q", got)
	}
	if got, _ := c.Holder(netip.MustParseAddrPort("198.51.100.70:80"), corev1.ProtocolTCP); got.Name != "victim" {
		t.Errorf("it belongs to %s", got)
	}
}

// TestAddressesThatAreRefused: external IPs that are not allowed, and addresses that no Service
// may have.
func TestAddressesThatAreRefused(t *testing.T) {
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n9"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.9.0/24", "2001:db8:9::/64"}}}
	other.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.19"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::19"}}
	reserved := NewReserved([]*corev1.Node{other})
	for _, tt := range []struct {
		address, external, ingress string // why it is refused; empty: it is served
	}{
		{"198.51.100.70", "", ""},
		{"198.51.100.7", "externalIPs.allowed", ""},
		{"203.0.113.200", "externalIPs.allowed", ""},
		{"2001:db8:ff::7", "externalIPs.allowed", ""},
		{"192.0.2.13", "address of Node n3", "address of Node n3"},
		{"2001:db8::13", "address of Node n3", "address of Node n3"},
		{"192.0.2.19", "address of Node n9", "address of Node n9"},
		{"2001:db8::19", "address of Node n9", "address of Node n9"},
		{"10.244.3.77", "pod subnet 10.244.3.0/24", "pod subnet 10.244.3.0/24"},
		{"10.244.9.3", "pod subnet 10.244.9.0/24 of Node n9", "pod subnet 10.244.9.0/24 of Node n9"},
		{"2001:db8:9::3", "pod subnet 2001:db8:9::/64", "pod subnet 2001:db8:9::/64"},
		{"169.254.169.254", "link-local", "link-local"},
		{"fe80::1", "link-local", "link-local"},
		{"::ffff:169.254.169.254", "link-local", "link-local"},
		{"127.0.0.1", "not valid addresses", "not valid addresses"},
		{"::1", "not valid addresses", "not valid addresses"},
		{"0.0.0.0", "not valid addresses", "not valid addresses"},
		{"0.1.2.3", "this network", "this network"},
		{"224.0.0.251", "not valid addresses", "not valid addresses"},
		{"ff02::1", "not valid addresses", "not valid addresses"},
		{"255.255.255.255", "not valid addresses", "not valid addresses"},
	} {
		for kind, why := range map[string]string{"external": tt.external, "loadbalancer": tt.ingress} {
			n := withPool()
			n.Policy.Reserved = reserved.Of
			s := change(clusterIP(), dualStack, externalIPs(tt.address))
			if kind == "loadbalancer" {
				s = change(clusterIP(), dualStack, loadBalancer(tt.address))
			}
			got := TranslateService(n, s, one("10.244.4.6"), nil)
			served := strings.Contains(render(t, got.Objects), "shop/web/"+kind+":")
			problems := strings.Join(got.Problems, "; ")
			if served != (why == "") || why != "" && !strings.Contains(problems, why) || why == "" && problems != "" {
				t.Errorf("%s %s: served %t, %q; want %q", kind, tt.address, served, problems, why)
			}
		}
	}
}

// TestDefaultPolicyHasNoExternalIPs: a node without a configured policy allows none.
func TestDefaultPolicyHasNoExternalIPs(t *testing.T) {
	n := thisNode()
	n.Policy = Policy{}
	got := TranslateService(n, change(clusterIP(), externalIPs("203.0.113.9")), one("10.244.4.6"), nil)
	if len(got.Objects) != 1 || len(got.Problems) != 1 || !strings.Contains(got.Problems[0], "external IP 203.0.113.9 is refused") {
		t.Errorf("%d objects, %q", len(got.Objects), got.Problems)
	}
}
