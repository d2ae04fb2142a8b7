// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// many makes services with node ports, each with the given number of endpoints, on ten nodes.
func many(services, endpoints int) (list []*corev1.Service, slices [][]*discoveryv1.EndpointSlice) {
	for i := range services {
		s := named(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250), 0, nodePort)
		s.Spec.Ports[0].NodePort = int32(30000 + i)
		var texts []string
		for j := range endpoints {
			node := (i + j) % 10
			texts = append(texts, fmt.Sprintf("10.244.%d.%d @n%d", node, 2+(i*7+j)%250, node))
		}
		list = append(list, s)
		slices = append(slices, []*discoveryv1.EndpointSlice{slice(s.Name+"-a", texts...)})
	}
	return list, slices
}

// maxAllocations is the limit for a service of two objects with 20 endpoints: two strings for each
// endpoint's address, one for each frontend's, and a constant number for each object.
const maxAllocations = 2*20 + 40

func TestAllocations(t *testing.T) {
	n, claims := thisNode(), &Claims{}
	list, slices := many(1, 20)
	claims.Set(n, list[0])
	if got := testing.AllocsPerRun(100, func() { TranslateService(n, list[0], slices[0], claims) }); got > maxAllocations {
		t.Errorf("%v allocations, at most %d", got, maxAllocations)
	}
	if got := testing.AllocsPerRun(100, func() { claims.Set(n, list[0]) }); got > 20 {
		t.Errorf("%v allocations for claims that are as they were", got)
	}
}

// BenchmarkTranslate translates 5,000 services with 20 endpoints each, as the agent does when it
// starts.
func BenchmarkTranslate(b *testing.B) {
	n := thisNode()
	list, slices := many(5000, 20)
	b.ReportAllocs()
	for b.Loop() {
		claims := &Claims{}
		for _, s := range list {
			claims.Set(n, s)
		}
		objects := 0
		for i, s := range list {
			objects += len(TranslateService(n, s, slices[i], claims).Objects)
		}
		if objects != 2*len(list) {
			b.Fatalf("%d objects", objects)
		}
	}
}

// BenchmarkOne translates one of them: the cost of a change to an EndpointSlice.
func BenchmarkOne(b *testing.B) {
	n, claims := thisNode(), &Claims{}
	list, slices := many(5000, 20)
	for _, s := range list {
		claims.Set(n, s)
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(claims.Set(n, list[7])) > 0 || len(TranslateService(n, list[7], slices[7], claims).Objects) != 2 {
			b.Fatal("not as it was")
		}
	}
}
