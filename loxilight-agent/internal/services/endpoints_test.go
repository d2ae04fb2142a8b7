// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Endpoints on this node and on another one.
const here, there, north = "10.244.3.5 @n3", "10.244.4.6 @n4", "zone=north"

// endpointCases are about which endpoints a cluster IP and an external IP lead to.
var endpointCases = []struct {
	name   string
	change []func(*corev1.Service)
	slices []*discoveryv1.EndpointSlice
	want   string
}{
	{"none at all", nil, nil, `
			shop/web: 10.96.0.7:80/tcp ->
			shop/web/external: 203.0.113.9:80/tcp -> source=snat
		`},
	{"absent conditions", nil, one(here, there), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 source=snat
		`},
	{"not ready", nil, one(here+" unready", there+" ready"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080(down) 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080(down) 10.244.4.6:8080 source=snat
		`},
	{"all not ready", nil, one(here+" unready", there+" unready serving"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080(down) 10.244.4.6:8080(down)
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080(down) 10.244.4.6:8080(down) source=snat
		`},
	{"on its way out beside a ready one", nil, one(here+" unready serving terminating", there), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080(draining) 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080(draining) 10.244.4.6:8080 source=snat
		`},
	{"on its way out, the others do not serve", nil, one(here+" unready serving terminating", there+" unready terminating"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(down)
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(down) source=snat
		`},
	{"on its way out, and called ready: published when it is not", nil, one(here+" ready terminating", there), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 source=snat
		`},
	{"external policy", fs(externalLocal), one(here, there), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining) source=keep ` + divertTo + `shop/web
		`},
	{"external policy, elsewhere only", fs(externalLocal), one(there), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.4.6:8080(down) source=keep noBackend=drop ` + divertTo + `shop/web
		`},
	{"external policy, none that serves", fs(externalLocal), one(there + " unready"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.4.6:8080(down)
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.4.6:8080(down) source=keep ` + divertTo + `shop/web
		`},
	{"external policy, here on its way out", fs(externalLocal), one(here+" unready serving terminating", there), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080(draining) 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining) source=keep ` + divertTo + `shop/web
		`},
	{"external policy, one here on its way out", fs(externalLocal), one(here+" unready serving terminating", "10.244.3.7 @n3"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080(draining) 10.244.3.7:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080(draining) 10.244.3.7:8080 source=keep ` + divertTo + `shop/web
		`},
	{"internal policy", fs(internalLocal), one(here, there), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining)
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 source=snat
		`},
	{"internal policy, elsewhere only", fs(internalLocal), one(there), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.4.6:8080(down) noBackend=drop
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.4.6:8080 source=snat
		`},
	{"internal policy, none", fs(internalLocal), one(), `
			shop/web: 10.96.0.7:80/tcp ->
			shop/web/external: 203.0.113.9:80/tcp -> source=snat
		`},
	{"both policies: clients of the cluster have all by external addresses", fs(internalLocal, externalLocal), one(here, there), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining)
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining) source=keep ` + divertTo + `shop/web/inside
			shop/web/inside: -> 10.244.3.5:8080 10.244.4.6:8080
		`},
	{"hints for zones", nil, one(here+" zone=east", there+" zone=north zone=east", "10.244.5.7 zone=north"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 10.244.5.7:8080(draining)
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 10.244.5.7:8080(draining) source=snat
		`},
	{"hints of some only are none", nil, one(here+" zone=east", there+" "+north, "10.244.5.7"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 10.244.5.7:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 10.244.5.7:8080 source=snat
		`},
	{"hints of those that are not ready do not count", nil, one(here+" zone=east", there+" "+north, "10.244.5.7 unready"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining) 10.244.5.7:8080(down)
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining) 10.244.5.7:8080(down) source=snat
		`},
	{"no endpoint for the zone", nil, one(here+" "+north, there+" zone=west"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 source=snat
		`},
	{"hints for nodes before those for zones", nil, one(here+" zone=east node=n3", there+" zone=east node=n4"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining)
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining) source=snat
		`},
	{"none for the node: its zone", nil, one(here+" zone=east node=n5", there+" zone=north node=n4"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining)
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining) source=snat
		`},
	{"hints mean nothing to those on their way out", nil, one(here+" unready serving terminating zone=north", there+" unready serving terminating zone=east"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 source=snat
		`},
	{"hints mean nothing to local policies", fs(externalLocal), one(here+" zone=north", there+" zone=east"), `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080(draining) 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining) source=keep ` + divertTo + `shop/web
		`},
	{"in two slices, one of which stays", nil, []*discoveryv1.EndpointSlice{
		slice("web-a", here+" unready serving terminating", there+" unready", "10.244.5.7 ready"),
		slice("web-b", here, there+" ready", "10.244.5.7 unready serving terminating"),
	}, `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 10.244.5.7:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 10.244.5.7:8080 source=snat
		`},
	{"of another pod with its address: not ready, but staying", nil, []*discoveryv1.EndpointSlice{
		slice("web-a", here+" ready terminating", there), slice("web-b", here+" unready"),
	}, `
			shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080(down) 10.244.4.6:8080
			shop/web/external: 203.0.113.9:80/tcp -> 10.244.3.5:8080(down) 10.244.4.6:8080 source=snat
		`},
}

func TestEndpoints(t *testing.T) {
	for _, c := range endpointCases {
		t.Run(c.name, func(t *testing.T) {
			service := change(clusterIP(), append(c.change, externalIPs("203.0.113.9"))...)
			got := TranslateService(thisNode(), service, c.slices, nil)
			want(t, render(t, got.Objects), c.want)
			if len(got.Problems) > 0 {
				t.Errorf("problems: %q", got.Problems)
			}
		})
	}
}

func one(texts ...string) []*discoveryv1.EndpointSlice {
	return []*discoveryv1.EndpointSlice{slice("web-a", texts...)}
}

func fs(changes ...func(*corev1.Service)) []func(*corev1.Service) { return changes }

func TestInvalidAddresses(t *testing.T) {
	fqdn := slice("web-c", "web.example.com")
	fqdn.AddressType = discoveryv1.AddressTypeFQDN
	wrong := slice("web-b", "2001:db8:3::5")
	wrong.AddressType = discoveryv1.AddressTypeIPv4
	empty := slice("web-d", "10.244.9.9")
	empty.Endpoints[0].Addresses = nil
	list := []*discoveryv1.EndpointSlice{
		slice("web-a", "10.244.3.5", "010.244.004.6", "10.244.4.300", "127.0.0.1", "224.0.0.7", "0.0.0.0"), wrong, fqdn, empty,
	}
	got := TranslateService(thisNode(), change(clusterIP(), externalIPs("203.0.113.9", "nonsense", "127.0.0.9", "::ffff:203.0.113.10")), list, nil)
	want(t, render(t, got.Objects), `
		shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080
		shop/web/external: 203.0.113.9:80/tcp 203.0.113.10:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080 source=snat
	`)
	problems := strings.Join(got.Problems, "\n")
	for _, text := range []string{`"nonsense"`, `"127.0.0.9"`, `"10.244.4.300" of EndpointSlice web-a`, `"127.0.0.1"`, `"224.0.0.7"`, `"0.0.0.0"`, `"2001:db8:3::5" of EndpointSlice web-b`} {
		if !strings.Contains(problems, text) {
			t.Errorf("%s is not reported in %q", text, problems)
		}
	}
	if strings.Contains(problems, "example.com") {
		t.Errorf("a name, which is no mistake, is reported: %q", problems)
	}
}

// TestManyInvalidAddresses: the message stays short enough for an event.
func TestManyInvalidAddresses(t *testing.T) {
	var texts []string
	for i := range 500 {
		texts = append(texts, fmt.Sprintf("127.0.1.%d", i))
	}
	got := TranslateService(thisNode(), clusterIP(), one(texts...), nil)
	if n := len(strings.Join(got.Problems, "")); n == 0 || n > 1000 {
		t.Errorf("problems of %d bytes", n)
	}
}

func TestHealth(t *testing.T) {
	balancer := func(s *corev1.Service) {
		loadBalancer("203.0.113.20")(s)
		s.Spec.HealthCheckNodePort = 32100
	}
	two := slice("web-b", "10.244.3.5 @n3", "10.244.3.6 @n3 unready serving terminating")
	two.Ports[0] = slicePort("metrics", corev1.ProtocolTCP, 9090)
	six := slice("web-c", "2001:db8:3::5 @n3")
	list := []*discoveryv1.EndpointSlice{slice("web-a", "10.244.3.5 @n3", "10.244.3.7 @n3", "10.244.4.6 @n4", "10.244.3.8 @n3 unready", "10.244.3.9"), two, six}
	for _, c := range []struct {
		name   string
		change []func(*corev1.Service)
		slices []*discoveryv1.EndpointSlice
		want   *Health
	}{
		{"policy Cluster", fs(balancer), list, nil},
		{"policy Local: each ready address of this node once", fs(balancer, externalLocal), list, &Health{32100, 2}},
		{"none here", fs(balancer, externalLocal), one("10.244.4.6 @n4"), &Health{32100, 0}},
		{"not a load balancer", fs(balancer, externalLocal, nodePort), list, nil},
		{"no port", fs(balancer, externalLocal, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 0 }), list, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := TranslateService(thisNode(), change(clusterIP(), c.change...), c.slices, nil).Health
			if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
