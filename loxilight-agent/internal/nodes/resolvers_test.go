// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
)

func dnsService(addresses ...string) *corev1.Service {
	return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: addresses[0], ClusterIPs: addresses}}
}

func dnsEndpoints(addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// TestResolvers: cluster IPs come first, then configured addresses, then endpoints, each once.
func TestResolvers(t *testing.T) {
	cfg := config.Default()
	if list, _ := Resolvers(cfg, nil, nil); len(list) != 0 {
		t.Errorf("without DNS servers: %v", list)
	}
	cfg.Resolvers.Addresses = []string{"169.254.20.10", "10.96.0.10"}
	list, left := Resolvers(cfg, []*corev1.Service{dnsService("10.96.0.10", "2001:db8:96::a"), dnsService("None")},
		[]*discoveryv1.EndpointSlice{dnsEndpoints("10.244.2.9", "0.0.0.0", "10.244.1.7"), dnsEndpoints("2001:db8:1::7", "10.244.1.7", "dns.example.org")})
	if got, want := strings.Join(list, " "), "10.96.0.10 2001:db8:96::a 169.254.20.10 10.244.1.7 10.244.2.9 2001:db8:1::7"; got != want || left != 0 {
		t.Errorf("%s, %d left, want %s", got, left, want)
	}
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("10.244.1.%d", 100+i))
	}
	list, left = Resolvers(cfg, []*corev1.Service{dnsService("10.96.0.10")}, []*discoveryv1.EndpointSlice{dnsEndpoints(many...)})
	if len(list) != 64 || left != 38 || list[0] != "10.96.0.10" || list[1] != "169.254.20.10" || list[63] != "10.244.1.161" {
		t.Errorf("%v, %d left", list, left)
	}
}
