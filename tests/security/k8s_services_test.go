// SPDX-License-Identifier: Apache-2.0

package security

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestS4PoolAddressStaysWithItsHolder: an older Service writes the address of another Service's
// load balancer into its externalIPs, at the same port and at a different one, even if the operator
// allows external IPs of these prefixes. Clients reach the holder, or nothing.
func TestS4PoolAddressStaysWithItsHolder(t *testing.T) {
	t.Run("allowed", func(t *testing.T) {
		testTheft(t, "externalIPs: {allowed: [203.0.113.0/24, \"2001:db8:113::/64\"]}\n", "belongs to service shop/web")
	})
	t.Run("default", func(t *testing.T) { testTheft(t, "", "externalIPs.allowed") })
}

func testTheft(t *testing.T, config, why string) {
	const vip4, vip6 = "203.0.113.20", "2001:db8:113::20"
	k := newKubeNode(t, config+"loadBalancer: {pools: [{name: lan, addresses: [203.0.113.16/28, \"2001:db8:113::/124\", \"2001:db8:113::20/124\"]}]}\nhealth: {listen: \"\"}\n")
	k.lan.ServeTCP(t, "192.0.2.50:8080", "web")
	k.lan.ServeTCP(t, "[fd00:2::50]:8080", "web")
	k.lan.ServeTCP(t, "192.0.2.51:8080", "EVIL")
	k.lan.ServeTCP(t, "[fd00:2::51]:8080", "EVIL")
	web := kubeService("shop", "web", time.Minute, "10.96.0.50", "2001:db8:96::50")
	web.Spec.Type = corev1.ServiceTypeLoadBalancer
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vip4}, {IP: vip6}}
	for _, s := range kubeSlices("shop", "web", "192.0.2.50", "fd00:2::50") {
		k.kube.Set(s)
	}
	k.kube.Set(web)
	k.told("shop/web/loadbalancer/" + netip.MustParseAddr(vip6).StringExpanded())
	k.told("shop/web/loadbalancer/" + vip4)
	for _, vip := range []string{"203.0.113.20:443", "[2001:db8:113::20]:443"} {
		if got := k.ask(vip); got != "web" {
			t.Fatalf("%s before: %q answers", vip, got)
		}
	}
	old := kubeService("evil", "old", 24*time.Hour, "10.96.0.66", "2001:db8:96::66")
	old.Spec.ExternalIPs = []string{vip4, vip6}
	old.Spec.Ports = append(old.Spec.Ports, corev1.ServicePort{Name: "more", Protocol: corev1.ProtocolTCP, Port: 8443})
	old.Spec.Ports[0].Name = "https"
	for _, s := range kubeSlices("evil", "old", "192.0.2.51", "fd00:2::51") {
		for _, name := range []string{"https", "more"} {
			p := s.Ports[0]
			p.Name = &name
			s.Ports = append(s.Ports, p)
		}
		k.kube.Set(s)
	}
	k.kube.Set(old)
	k.told("evil/old:more")
	for vip, want := range map[string]string{
		"203.0.113.20:443": "web", "[2001:db8:113::20]:443": "web", "203.0.113.20:8443": "", "[2001:db8:113::20]:8443": "",
	} {
		if got := k.ask(vip); got != want {
			t.Errorf("%s: %q answers, want %q; frontend of %v", vip, got, want, k.holder(vip))
		}
	}
	if strings.Contains(why, "belongs") || config == "" {
		k.eventOf("evil/old", why)
	}
}

// TestS4ForeignAddresses: addresses of nodes and pods, of metadata services and of other hosts on
// the internet are rejected in externalIPs (CVE-2020-8554), and all but the last in a status.
func TestS4ForeignAddresses(t *testing.T) {
	k := newKubeNode(t, "health: {listen: \"\"}\n")
	k.lan.ServeTCP(t, "192.0.2.51:8080", "EVIL")
	k.lan.ServeTCP(t, "[fd00:2::51]:8080", "EVIL")
	for _, s := range kubeSlices("evil", "old", "192.0.2.51", "fd00:2::51") {
		k.kube.Set(s)
	}
	elsewhere := []string{"198.51.100.7", "2001:db8:9::7"}
	addresses := append([]string{
		"192.0.2.1", "192.0.2.2", "10.244.1.3", "10.244.2.3", "169.254.169.254", "127.0.0.1", "224.0.0.251", "0.0.0.0",
		"fd00:2::1", "fd00:2::2", "fd00:244:1::3", "fd00:244:2::3", "fe80::254", "::1", "ff02::fb", "::", "::ffff:192.0.2.1",
	}, elsewhere...)
	for i, kind := range []string{"externalIPs", "status"} {
		old := kubeService("evil", "old", 24*time.Hour, "10.96.0.66", "2001:db8:96::66")
		refused := addresses
		if kind == "externalIPs" {
			old.Spec.ExternalIPs = addresses
		} else {
			// Writers of a status are trusted with foreign addresses, if there is no pool.
			refused = slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return slices.Contains(elsewhere, a) })
			old.Spec.Type = corev1.ServiceTypeLoadBalancer
			for _, a := range refused {
				old.Status.LoadBalancer.Ingress = append(old.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
			}
		}
		old.Spec.Ports[0].Port = int32(4430 + i) // so that the daemon's object differs in each round
		k.kube.Set(old)
		port := map[string]string{"externalIPs": ":4430", "status": ":4431"}[kind]
		k.told("evil/old")
		k.awaitFrontend("10.96.0.66" + port)
		k.awaitFrontend("[2001:db8:96::66]" + port)
		for _, a := range refused {
			at := net.JoinHostPort(a, port[1:])
			if names := k.holder(at); len(names) > 0 {
				t.Errorf("%s: %s is a frontend of %v", kind, at, names)
			}
		}
		for _, a := range []string{"192.0.2.1", "192.0.2.2", "10.244.2.3", "169.254.169.254", "fd00:2::1", "fd00:2::2", "fd00:244:2::3"} {
			if got := k.ask(net.JoinHostPort(a, port[1:])); got != "" {
				t.Errorf("%s: port %s of %s is answered by %q", kind, port[1:], a, got)
			}
		}
	}
	k.eventOf("evil/old", "external IP 169.254.169.254 is refused: it is a link-local address")
	k.eventOf("evil/old", "ingress address 192.0.2.2 is refused: it is an address of Node n2")
	k.eventOf("evil/old", "ingress address fd00:2::2 is refused: it is an address of Node n2")
}

// awaitFrontend waits until some object has a frontend.
func (k *kubeNode) awaitFrontend(address string) {
	k.t.Helper()
	for end := time.Now().Add(time.Minute); len(k.holder(address)) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			k.t.Fatalf("no object has %s", address)
		}
	}
}
