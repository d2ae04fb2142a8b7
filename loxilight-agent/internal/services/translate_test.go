// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// divertTo is how the clients within the cluster are sent to a different object.
const divertTo = "divert=10.244.3.0/24,2001:db8:3::/64,192.0.2.13/32,198.51.100.43/32,2001:db8::13/128>"

// both are the endpoints of the cases below.
const both = "10.244.3.5:8080 10.244.4.6:8080"

type frontendCase struct {
	name    string
	service *corev1.Service
	want    string
}

func TestFrontends(t *testing.T) {
	testFrontends(t, []frontendCase{
		{"cluster IP", clusterIP(), "shop/web: 10.96.0.7:80/tcp -> " + both + "\n"},
		{
			"without the list of cluster IPs", change(clusterIP(), func(s *corev1.Service) { s.Spec.ClusterIPs, s.Spec.IPFamilies = nil, nil }),
			"shop/web: 10.96.0.7:80/tcp -> " + both + "\n",
		},
		{
			"no protocol is TCP", change(clusterIP(), func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "" }),
			"shop/web: 10.96.0.7:80/tcp -> " + both + "\n",
		},
		{"node port", change(clusterIP(), nodePort), `
			shop/web: 10.96.0.7:80/tcp -> ` + both + `
			shop/web/nodeport: 192.0.2.13:30080/tcp 198.51.100.43:30080/tcp -> ` + both + " source=snat\n"},
		{"external IPs", change(clusterIP(), externalIPs("203.0.113.9", "203.0.113.9")), `
			shop/web: 10.96.0.7:80/tcp -> ` + both + `
			shop/web/external: 203.0.113.9:80/tcp -> ` + both + " source=snat\n"},
		{
			"addresses of a family that the service is not of", change(clusterIP(), nodePort, loadBalancer("2001:db8:113::20"), externalIPs("2001:db8:113::9")), `
			shop/web: 10.96.0.7:80/tcp -> ` + both + `
			shop/web/nodeport: 192.0.2.13:30080/tcp 198.51.100.43:30080/tcp -> ` + both + " source=snat\n",
		},
	})
}

func TestBalancerFrontends(t *testing.T) {
	proxy, vip := corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP
	testFrontends(t, []frontendCase{
		{"load balancer", change(clusterIP(), nodePort, loadBalancer("203.0.113.20")), `
			shop/web: 10.96.0.7:80/tcp -> ` + both + `
			shop/web/loadbalancer: 203.0.113.20:80/tcp -> ` + both + ` source=snat
			shop/web/nodeport: 192.0.2.13:30080/tcp 198.51.100.43:30080/tcp -> ` + both + " source=snat\n"},
		{"load balancer without node ports", change(clusterIP(), loadBalancer("203.0.113.20")), `
			shop/web: 10.96.0.7:80/tcp -> ` + both + `
			shop/web/loadbalancer: 203.0.113.20:80/tcp -> ` + both + " source=snat\n"},
		{"load balancer without an address yet", change(clusterIP(), loadBalancer()), "shop/web: 10.96.0.7:80/tcp -> " + both + "\n"},
		{"modes of ingress addresses", change(clusterIP(), func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
				{IP: "203.0.113.21", IPMode: &proxy}, {IP: "203.0.113.22", IPMode: &vip}, {Hostname: "lb.example.com"},
			}
		}), `
			shop/web: 10.96.0.7:80/tcp -> ` + both + `
			shop/web/loadbalancer: 203.0.113.22:80/tcp -> ` + both + " source=snat\n"},
		{
			// The stricter one counts: source ranges apply to load balancers.
			"an external IP that is the load balancer's", change(clusterIP(), loadBalancer("203.0.113.20"), externalIPs("203.0.113.20")), `
			shop/web: 10.96.0.7:80/tcp -> ` + both + `
			shop/web/loadbalancer: 203.0.113.20:80/tcp -> ` + both + " source=snat\n",
		},
	})
}

func testFrontends(t *testing.T, cases []frontendCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := TranslateService(thisNode(), c.service, one(here, there), nil)
			want(t, render(t, got.Objects), c.want)
			if len(got.Problems) > 0 {
				t.Errorf("problems: %q", got.Problems)
			}
			for _, o := range got.Objects {
				if o.Labels["namespace"] != "shop" || o.Labels["service"] != "web" || o.Labels["port"] != "80" {
					t.Errorf("labels %v", o.Labels)
				}
			}
		})
	}
}

func TestDualStack(t *testing.T) {
	v4, v6 := slice("web-a", "10.244.3.5", "10.244.4.6"), slice("web-b", "2001:db8:3::5", "2001:db8:4::6")
	got := TranslateService(thisNode(), change(clusterIP(), nodePort, dualStack), []*discoveryv1.EndpointSlice{v4, v6}, nil)
	const all = "10.244.3.5:8080 10.244.4.6:8080 [2001:db8:3::5]:8080 [2001:db8:4::6]:8080"
	want(t, render(t, got.Objects), `
		shop/web: 10.96.0.7:80/tcp [2001:db8:96::7]:80/tcp -> `+all+`
		shop/web/nodeport: 192.0.2.13:30080/tcp 198.51.100.43:30080/tcp [2001:db8::13]:30080/tcp -> `+all+" source=snat\n")

	// A family whose endpoints are all terminating falls back independently.
	v6 = slice("web-b", "2001:db8:3::5 unready serving terminating")
	v4 = slice("web-a", "10.244.3.5 unready serving terminating", "10.244.4.6")
	got = TranslateService(thisNode(), change(clusterIP(), dualStack), []*discoveryv1.EndpointSlice{v4, v6}, nil)
	want(t, render(t, got.Objects), "shop/web: 10.96.0.7:80/tcp [2001:db8:96::7]:80/tcp -> 10.244.3.5:8080(draining) 10.244.4.6:8080 [2001:db8:3::5]:8080\n")
}

func TestIgnored(t *testing.T) {
	label := func(key, value string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Labels = map[string]string{key: value} }
	}
	for _, c := range []struct {
		name    string
		proxy   string
		service *corev1.Service
		done    bool
	}{
		{"ordinary", "", clusterIP(), true},
		{"headless", "", change(clusterIP(), func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }), false},
		{"no address yet", "", change(clusterIP(), func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }), false},
		{"external name", "", change(clusterIP(), func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), false},
		{"headless by its label", "", change(clusterIP(), label("service.kubernetes.io/headless", "")), false},
		{"another proxy's", "", change(clusterIP(), label("service.kubernetes.io/service-proxy-name", "other")), false},
		{"a proxy's without a name", "", change(clusterIP(), label("service.kubernetes.io/service-proxy-name", "")), false},
		{"ours by its label", "loxilight", change(clusterIP(), label("service.kubernetes.io/service-proxy-name", "loxilight")), true},
		{"not ours by its label", "loxilight", change(clusterIP(), label("service.kubernetes.io/service-proxy-name", "other")), false},
		{"not ours without a label", "loxilight", clusterIP(), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := thisNode()
			n.ProxyName = c.proxy
			got := TranslateService(n, change(c.service, externalIPs("203.0.113.9")), []*discoveryv1.EndpointSlice{slice("web-a", "10.244.3.5")}, nil)
			if done := len(got.Objects) > 0; done != c.done {
				t.Errorf("done: %v\n%s", done, render(t, got.Objects))
			}
			claims := &Claims{}
			claims.Set(n, c.service)
			if _, held := claims.Holder(netip.MustParseAddrPort("203.0.113.9:80"), corev1.ProtocolTCP); held != c.done {
				t.Errorf("holds its frontend: %v", held)
			}
		})
	}
}

func TestPorts(t *testing.T) {
	service := change(clusterIP(), func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53},
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
			{Name: "assoc", Protocol: corev1.ProtocolSCTP, Port: 3868},
		}
	})
	// Pods of one version serve a port at a different number than pods of the next version.
	a := slice("web-a", "10.244.3.5")
	a.Ports = []discoveryv1.EndpointPort{
		slicePort("dns-tcp", corev1.ProtocolTCP, 1053), slicePort("dns", corev1.ProtocolUDP, 1053), slicePort("assoc", corev1.ProtocolSCTP, 3868),
		slicePort("dns", corev1.ProtocolTCP, 7777), // not this protocol
		slicePort("other", corev1.ProtocolTCP, 7778),
	}
	b := slice("web-b", "10.244.4.6")
	b.Ports = []discoveryv1.EndpointPort{slicePort("dns", corev1.ProtocolUDP, 2053), {Port: a.Ports[0].Port}, {Name: a.Ports[0].Name}}
	got := TranslateService(thisNode(), service, []*discoveryv1.EndpointSlice{a, b}, nil)
	want(t, render(t, got.Objects), `
		shop/web:assoc: 10.96.0.7:3868/sctp -> 10.244.3.5:3868
		shop/web:dns: 10.96.0.7:53/udp -> 10.244.3.5:1053 10.244.4.6:2053
		shop/web:dns-tcp: 10.96.0.7:53/tcp -> 10.244.3.5:1053
	`)
	if got := got.Objects[0].Labels["port"]; got != "assoc" {
		t.Errorf("label port %q", got)
	}
}

// TestPortOf finds the port to which an object belongs by its name, regardless of its number.
func TestPortOf(t *testing.T) {
	named := change(clusterIP(), func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "ab", Port: 81}, {Name: "80", Port: 82}}
	})
	unnamed := change(clusterIP(), func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{{Port: 83}} })
	for _, c := range []struct {
		service *corev1.Service
		object  string
		port    int32 // 0: none
	}{
		{named, "shop/web:a", 80}, {named, "shop/web:ab/nodeport", 81}, {named, "shop/web:80/loadbalancer/203.0.113.20", 82},
		{named, "shop/web", 0}, {named, "shop/web/nodeport", 0}, {named, "shop/web:abc", 0},
		{unnamed, "shop/web", 83}, {unnamed, "shop/web/inside", 83}, {unnamed, "shop/web:a", 0},
	} {
		var got int32
		if p := PortOf(c.service, c.object); p != nil {
			got = p.Port
		}
		if got != c.port {
			t.Errorf("%s is of port %d, want %d", c.object, got, c.port)
		}
	}
}

// TestIdleTimeouts: each object has the timeout of its protocol, including objects without
// frontends: connections diverted to them use their timeout.
func TestIdleTimeouts(t *testing.T) {
	service := change(clusterIP(), externalIPs("203.0.113.9"), externalLocal, internalLocal, func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 53}, {Name: "b", Protocol: corev1.ProtocolUDP, Port: 53}, {Name: "c", Protocol: corev1.ProtocolSCTP, Port: 53}}
	})
	n := thisNode()
	for _, o := range TranslateService(n, service, nil, nil).Objects {
		if spec := specOf(t, &o); spec.IdleTimeout != nil {
			t.Errorf("%s has %+v", o.Name, *spec.IdleTimeout)
		}
	}
	n.IdleTimeout = api.IdleTimeout{TCP: api.Duration(7 * time.Hour), UDP: api.Duration(8 * time.Minute), SCTP: api.Duration(9 * time.Hour)}
	objects := TranslateService(n, service, nil, nil).Objects
	for _, o := range objects {
		want := map[string]api.IdleTimeout{"a": {TCP: n.IdleTimeout.TCP}, "b": {UDP: n.IdleTimeout.UDP}, "c": {SCTP: n.IdleTimeout.SCTP}}[o.Labels["port"]]
		if spec := specOf(t, &o); spec.IdleTimeout == nil || *spec.IdleTimeout != want {
			t.Errorf("%s has %+v, want %+v", o.Name, spec.IdleTimeout, want)
		}
	}
	if len(objects) != 9 {
		t.Errorf("%d objects, want one for the cluster IP, the external addresses and the inside of each port", len(objects))
	}
}

func TestAffinity(t *testing.T) {
	seconds := func(n int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &n}}
		}
	}
	for want, service := range map[string]*corev1.Service{
		"1h1m1s":  change(clusterIP(), seconds(3661)),
		"24h0m0s": change(clusterIP(), seconds(86400)),
		"3h0m0s":  change(clusterIP(), func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }),
		"":        clusterIP(),
	} {
		got := render(t, TranslateService(thisNode(), change(service, nodePort), nil, nil).Objects)
		if want != "" && strings.Count(got, "affinity="+want+"\n") != 2 || want == "" && strings.Contains(got, "affinity") {
			t.Errorf("want %q in each of\n%s", want, got)
		}
	}
}

func TestSourceRanges(t *testing.T) {
	ranges := func(list ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = list }
	}
	const ends = "10.244.4.6:8080"
	for _, c := range []struct {
		name    string
		service *corev1.Service
		want    string
		problem string
	}{
		{name: "only those of the load balancer", service: change(clusterIP(), nodePort, loadBalancer("203.0.113.20"), externalIPs("203.0.113.9"), ranges("10.1.2.3/8", " 172.16.0.0/12 ", "10.0.0.0/8")), want: `
			shop/web: 10.96.0.7:80/tcp -> ` + ends + `
			shop/web/external: 203.0.113.9:80/tcp -> ` + ends + ` source=snat
			shop/web/loadbalancer: 203.0.113.20:80/tcp -> ` + ends + ` source=snat ranges=10.0.0.0/8,172.16.0.0/12
			shop/web/nodeport: 192.0.2.13:30080/tcp 198.51.100.43:30080/tcp -> ` + ends + " source=snat\n"},
		{name: "the node is within: it may come from the balancer's address", service: change(clusterIP(), loadBalancer("203.0.113.20"), ranges("192.0.2.0/24")), want: `
			shop/web: 10.96.0.7:80/tcp -> ` + ends + `
			shop/web/loadbalancer: 203.0.113.20:80/tcp -> ` + ends + " source=snat ranges=192.0.2.0/24,203.0.113.20/32\n"},
		{name: "all", service: change(clusterIP(), loadBalancer("203.0.113.20"), ranges("192.0.2.0/24", "0.0.0.0/0")), want: `
			shop/web: 10.96.0.7:80/tcp -> ` + ends + `
			shop/web/loadbalancer: 203.0.113.20:80/tcp -> ` + ends + " source=snat\n"},
		{name: "of the other family only", service: change(clusterIP(), loadBalancer("203.0.113.20"), ranges("2001:db8:9::/48")), want: `
			shop/web: 10.96.0.7:80/tcp -> ` + ends + `
			shop/web/loadbalancer: 203.0.113.20:80/tcp -> ` + ends + " source=snat\n"},
		{name: "of one family of two", service: change(clusterIP(), dualStack, loadBalancer("203.0.113.20", "2001:db8:113::20"), ranges("2001:db8:9::/48")), want: `
			shop/web: 10.96.0.7:80/tcp [2001:db8:96::7]:80/tcp -> ` + ends + `
			shop/web/loadbalancer: 203.0.113.20:80/tcp [2001:db8:113::20]:80/tcp -> ` + ends + " source=snat ranges=0.0.0.0/0,2001:db8:9::/48\n"},
		{name: "unreadable: closed, not open", service: change(clusterIP(), loadBalancer("203.0.113.20"), ranges("10.0.0.0/33")), want: `
			shop/web: 10.96.0.7:80/tcp -> ` + ends + "\n", problem: `source range "10.0.0.0/33"`},
		{name: "one of two unreadable", service: change(clusterIP(), loadBalancer("203.0.113.20"), ranges("10.0.0.0/33", "010.0.0.0/8")), want: `
			shop/web: 10.96.0.7:80/tcp -> ` + ends + `
			shop/web/loadbalancer: 203.0.113.20:80/tcp -> ` + ends + " source=snat ranges=10.0.0.0/8\n", problem: `source range "10.0.0.0/33"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := TranslateService(thisNode(), c.service, []*discoveryv1.EndpointSlice{slice("web-a", "10.244.4.6")}, nil)
			want(t, render(t, got.Objects), c.want)
			if c.problem == "" && len(got.Problems) > 0 || !strings.Contains(strings.Join(got.Problems, "\n"), c.problem) {
				t.Errorf("problems %q, want %q", got.Problems, c.problem)
			}
		})
	}
}

func TestPools(t *testing.T) {
	n := thisNode()
	n.Pool = func(a netip.Addr) (ours, here bool) {
		return a == addr("203.0.113.20") || a == addr("2001:db8:113::20"), a == addr("203.0.113.20")
	}
	service := change(clusterIP(), dualStack, loadBalancer("203.0.113.20", "2001:db8:113::20", "198.51.100.7"))
	got := TranslateService(n, service, []*discoveryv1.EndpointSlice{slice("web-a", "10.244.4.6")}, nil)
	want(t, render(t, got.Objects), `
		shop/web: 10.96.0.7:80/tcp [2001:db8:96::7]:80/tcp -> 10.244.4.6:8080
		shop/web/loadbalancer: 198.51.100.7:80/tcp -> 10.244.4.6:8080 source=snat
		shop/web/loadbalancer/2001:0db8:0113:0000:0000:0000:0000:0020: [2001:db8:113::20]:80/tcp -> 10.244.4.6:8080 source=snat
		shop/web/loadbalancer/203.0.113.20: 203.0.113.20:80/tcp -> 10.244.4.6:8080 source=snat announce
	`)
}

func TestNodePortAddresses(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.13"}, {Type: corev1.NodeExternalIP, Address: "198.51.100.43"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::13"}, {Type: corev1.NodeHostName, Address: "10.9.9.9"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.13"},
	}}}
	for _, c := range []struct{ prefixes, want string }{
		{"", "192.0.2.13 198.51.100.43 203.0.113.77 2001:db8::13"},
		{"198.51.100.0/24", "198.51.100.43 2001:db8::13"},
		{"203.0.113.0/24 2001:db8:ffff::/48", "203.0.113.77"},
		{"0.0.0.0/0", "192.0.2.13 198.51.100.43 203.0.113.77 2001:db8::13"},
	} {
		var prefixes []netip.Prefix
		for _, p := range strings.Fields(c.prefixes) {
			prefixes = append(prefixes, netip.MustParsePrefix(p))
		}
		var got []string
		for _, a := range NewNode(node, prefixes, addr("203.0.113.77")).NodePorts {
			got = append(got, a.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q: %v, want %s", c.prefixes, got, c.want)
		}
	}
}

// TestNowhere: the unreachable frontends of an object are unique to it.
func TestNowhere(t *testing.T) {
	seen := map[string]string{}
	for i := range 2000 {
		name := fmt.Sprintf("shop/web-%d:http/inside", i)
		for _, f := range nowhere(name) {
			a := netip.MustParseAddrPort(strings.TrimSuffix(f, "/tcp"))
			if !netip.MustParsePrefix("0.0.0.0/8").Contains(a.Addr()) && !netip.MustParsePrefix("100::/64").Contains(a.Addr()) || a.Addr().IsUnspecified() || a.Port() == 0 {
				t.Errorf("%s: %s is somewhere", name, f)
			}
			if other := seen[f]; other != "" {
				t.Errorf("%s and %s both have %s", name, other, f)
			}
			seen[f] = name
		}
	}
}
