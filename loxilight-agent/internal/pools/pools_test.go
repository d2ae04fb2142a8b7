// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
)

func newPools(t *testing.T) *Pools {
	t.Helper()
	p, err := New([]config.Pool{
		{Name: "lan", Addresses: []string{"203.0.113.16/30", "2001:db8:113::10-2001:db8:113::11"}},
		{Name: "dmz", Addresses: []string{"198.51.100.7"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

type change func(*corev1.Service)

func balancer(name string, age int64, changes ...change) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.Unix(1700000000+age, 0), Annotations: map[string]string{}}}
	s.Spec.Type, s.Spec.IPFamilies = corev1.ServiceTypeLoadBalancer, []corev1.IPFamily{corev1.IPv4Protocol}
	for _, c := range changes {
		c(s)
	}
	return s
}

func has(addresses ...string) change {
	return func(s *corev1.Service) {
		for _, a := range addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
	}
}

func annotated(name, value string) change {
	return func(s *corev1.Service) { s.Annotations[name] = value }
}

func asks(address string) change { return func(s *corev1.Service) { s.Spec.LoadBalancerIP = address } }

func class(name string) change { return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name } }

func dual(s *corev1.Service) {
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
}

func dual4(s *corev1.Service) {
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
}

func hostname(s *corev1.Service) {
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example"}}
}

func deleted(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{} }

// given marks an address as assigned by this controller, not by a different one.
func given(s *corev1.Service) {
	s.ManagedFields = append(s.ManagedFields, metav1.ManagedFieldsEntry{Manager: Manager, Subresource: "status", FieldsV1: written})
}

func plain(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }

// assignments are Services' requests, and the addresses that they get.
var assignments = map[string]struct {
	services []*corev1.Service
	want     string
}{
	"in the order of their age": {
		[]*corev1.Service{balancer("b", 2), balancer("a", 3), balancer("c", 1)},
		"c 203.0.113.16, b 203.0.113.17, a 203.0.113.18",
	},
	"what it has stays": {
		[]*corev1.Service{balancer("old", 1), balancer("new", 2, has("203.0.113.16"))},
		"old 203.0.113.17, new 203.0.113.16",
	},
	"both families, in its order": {
		[]*corev1.Service{balancer("a", 1, dual)}, "a 2001:db8:113::10 203.0.113.16",
	},
	"both families, IPv4 first": {
		[]*corev1.Service{balancer("a", 1, dual4)}, "a 203.0.113.16 2001:db8:113::10",
	},
	"in its order, whatever the status says": {
		[]*corev1.Service{balancer("a", 1, dual4, has("2001:db8:113::10", "203.0.113.18"))}, "a 203.0.113.18 2001:db8:113::10",
	},
	"a second family": {
		[]*corev1.Service{balancer("a", 1, dual, has("203.0.113.18"))}, "a 2001:db8:113::10 203.0.113.18",
	},
	"asks for one": {
		[]*corev1.Service{balancer("a", 1, asks("203.0.113.19"), has("203.0.113.16")), balancer("b", 2, asks("203.0.113.1"), annotated(AnnotationAddresses, "203.0.113.18"))},
		"a 203.0.113.19, b 203.0.113.18",
	},
	"from a pool": {
		[]*corev1.Service{balancer("a", 1, annotated(AnnotationPool, "dmz")), balancer("b", 2, annotated(AnnotationPool, "dmz"))},
		"a 198.51.100.7, b - no pool has a free address of IPv4",
	},
	"asks for what it may not have": {
		[]*corev1.Service{balancer("a", 1, asks("192.0.2.1")), balancer("b", 2, annotated(AnnotationAddresses, "nowhere")), balancer("c", 3, asks("203.0.113.17"), annotated(AnnotationPool, "dmz"))},
		`a - 192.0.2.1 is in no pool available to this service, b - "nowhere" is not an address, c - 203.0.113.17 is in no pool available to this service`,
	},
	"two ask for the same": {
		[]*corev1.Service{balancer("a", 2, asks("203.0.113.17"), has("203.0.113.17")), balancer("b", 1, asks("203.0.113.17"))},
		"b - 203.0.113.17 belongs to Service shop/a, a 203.0.113.17",
	},
	"two ask for the same free address": {
		[]*corev1.Service{balancer("a", 2, asks("203.0.113.17")), balancer("b", 1, asks("203.0.113.17"))},
		"b 203.0.113.17, a - 203.0.113.17 belongs to Service shop/b",
	},
	"a wrong wish takes nothing away": {
		[]*corev1.Service{
			balancer("a", 1, annotated(AnnotationAddresses, "203.0.113.1"), has("203.0.113.18")),
			balancer("b", 2, annotated(AnnotationAddresses, "203.0.113,19"), asks("203.0.113.17"), has("203.0.113.17")),
			balancer("c", 3, asks("nowhere"), has("203.0.113.16")),
			balancer("d", 4, annotated(AnnotationPool, "dmv"), has("203.0.113.19")),
			balancer("e", 5, annotated(AnnotationPool, "dmv"), dual),
		},
		`a 203.0.113.18 - 203.0.113.1 is in no pool available to this service; the service keeps 203.0.113.18, ` +
			`b 203.0.113.17 - "203.0.113" is not an address; "19" is not an address; the service keeps 203.0.113.17, c 203.0.113.16 - "nowhere" is not an address; the service keeps 203.0.113.16, ` +
			`d 203.0.113.19 - there is no pool "dmv"; the service keeps 203.0.113.19, e - there is no pool "dmv"`,
	},
	"a wish that is wrong in part": {
		[]*corev1.Service{
			balancer("a", 1, dual4, annotated(AnnotationAddresses, "203.0.113.19,2001:db8:113::zz"), has("203.0.113.18", "2001:db8:113::10")),
			balancer("b", 2, dual4, annotated(AnnotationAddresses, "203.0.113.16,2001:db8:113::zz"), has("2001:db8:113::11")),
		},
		`a 203.0.113.18 2001:db8:113::10 - "2001:db8:113::zz" is not an address; the service keeps 203.0.113.18, 2001:db8:113::10, b 203.0.113.16 2001:db8:113::11 - "2001:db8:113::zz" is not an address; the service keeps 2001:db8:113::11`,
	},
	"asks for what another one has": {
		[]*corev1.Service{balancer("a", 1, asks("203.0.113.17"), has("203.0.113.16")), balancer("b", 2, has("203.0.113.17"))},
		"a 203.0.113.16 - 203.0.113.17 belongs to Service shop/b; the service keeps 203.0.113.16, b 203.0.113.17",
	},
	"what is left is free when it is left": {
		[]*corev1.Service{balancer("a", 2, asks("203.0.113.17"), has("203.0.113.16")), balancer("b", 1)},
		"b 203.0.113.18, a 203.0.113.17",
	},
	"another pool": {
		[]*corev1.Service{balancer("a", 1, annotated(AnnotationPool, "dmz"), has("203.0.113.16")), balancer("b", 2, annotated(AnnotationPool, "dmz"), has("203.0.113.17"))},
		"a 198.51.100.7, b 203.0.113.17 - no pool has a free address of IPv4; the service keeps 203.0.113.17",
	},
	"what one in deletion has": {
		[]*corev1.Service{balancer("old", 1, has("203.0.113.16"), deleted), balancer("a", 2), balancer("b", 3, asks("203.0.113.16"))},
		"a 203.0.113.17, b - 203.0.113.16 belongs to Service shop/old",
	},
	"what others have given out": {
		[]*corev1.Service{balancer("class", 3, class("example.com/lb"), has("203.0.113.16")), balancer("cloud", 3, has("192.0.2.1", "203.0.113.17")), balancer("a", 2)},
		"a 203.0.113.18",
	},
	"what others have given out as well": {
		[]*corev1.Service{balancer("class", 1, class("example.com/lb"), has("203.0.113.16")), balancer("a", 2, has("203.0.113.16"))},
		"a 203.0.113.16",
	},
	"a pool made smaller": {
		[]*corev1.Service{balancer("a", 1, given, dual4, has("192.0.2.1", "2001:db8:113::10")), balancer("b", 2, given, deleted, has("192.0.2.2"))},
		"a 192.0.2.1 2001:db8:113::10 - 192.0.2.1 is no longer in any pool: no node announces it, and the service keeps it until it is removed from its status",
	},
	"two have the same": {
		[]*corev1.Service{balancer("a", 2, has("203.0.113.16")), balancer("b", 1, has("203.0.113.16"))},
		"b 203.0.113.16, a 203.0.113.17",
	},
	"the pool is gone": {
		[]*corev1.Service{balancer("a", 1, has("192.0.2.1"), class(Class))}, "a 203.0.113.16 - 192.0.2.1 is no longer in any pool",
	},
	"not ours": {
		[]*corev1.Service{balancer("cloud", 1, has("192.0.2.1")), balancer("dns", 2, hostname), balancer("class", 3, class("example.com/lb")), balancer("plain", 4, plain)}, "",
	},
	"full": {
		[]*corev1.Service{balancer("a", 1), balancer("b", 2), balancer("c", 3), balancer("d", 4), balancer("e", 5), balancer("f", 6)},
		"a 203.0.113.16, b 203.0.113.17, c 203.0.113.18, d 203.0.113.19, e 198.51.100.7, f - no pool has a free address of IPv4",
	},
}

func TestAssign(t *testing.T) {
	for name, test := range assignments {
		var got []string
		for _, a := range newPools(t).Assign(test.services) {
			text := a.Service.Name
			for _, address := range a.Addresses {
				text += " " + address.String()
			}
			if a.Problem != "" {
				text += " - " + a.Problem
			}
			got = append(got, text)
		}
		if strings.Join(got, ", ") != test.want {
			t.Errorf("%s: %s\nwant %s", name, strings.Join(got, ", "), test.want)
		}
	}
}

// TestAnnouncer: nodes share the addresses, and a node that leaves moves only its own.
func TestAnnouncer(t *testing.T) {
	nodes := []string{"n1", "n2", "n3", "n4"}
	counts, moved := map[string]int{}, 0
	a := netip.MustParseAddr("203.0.113.0")
	const count = 400
	for range count {
		a = a.Next()
		before, after := Announcer(a, nodes), Announcer(a, nodes[1:])
		counts[before]++
		if before != after {
			moved++
			if before != "n1" {
				t.Fatalf("%s moved from %s to %s when n1 went", a, before, after)
			}
		}
		if again := Announcer(a, []string{"n4", "n2", "n1", "n3"}); again != before {
			t.Fatalf("%s: %s or %s, by the order of the nodes", a, before, again)
		}
	}
	for _, n := range nodes {
		if counts[n] < count/8 || counts[n] > count/2 {
			t.Errorf("%s has %d of %d addresses: %s", n, counts[n], count, fmt.Sprint(counts))
		}
	}
	if Announcer(a, nil) != "" {
		t.Error("an address is announced without nodes")
	}
}
