// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// thisNode is a node with both families in zone "east".
func thisNode() *Node {
	n := NewNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n3", Labels: map[string]string{corev1.LabelTopologyZone: "east"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.3.0/24", PodCIDRs: []string{"10.244.3.0/24", "2001:db8:3::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "n3"},
			{Type: corev1.NodeInternalIP, Address: "192.0.2.13"},
			{Type: corev1.NodeInternalIP, Address: "2001:db8::13"},
			{Type: corev1.NodeExternalIP, Address: "198.51.100.43"},
		}},
	}, nil)
	n.Policy.ExternalIPs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	return n
}

// clusterIP is shop/web on 10.96.0.7:80.
func clusterIP() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0))},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

// change applies changes to a service.
func change(s *corev1.Service, changes ...func(*corev1.Service)) *corev1.Service {
	for _, c := range changes {
		c(s)
	}
	return s
}

func nodePort(s *corev1.Service) {
	s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
}

func loadBalancer(addresses ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, a := range addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
	}
}

func externalIPs(addresses ...string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = addresses }
}

func dualStack(s *corev1.Service) {
	s.Spec.ClusterIPs = []string{"10.96.0.7", "2001:db8:96::7"}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
}

func externalLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func internalLocal(s *corev1.Service) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &local
}

// slice makes an EndpointSlice of shop/web for the unnamed TCP port 8080. Each text is an address
// followed by words: @node, unready, serving, terminating, zone=…, node=….
func slice(name string, texts ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{slicePort("", corev1.ProtocolTCP, 8080)},
	}
	for _, text := range texts {
		s.Endpoints = append(s.Endpoints, parseEndpoint(text))
	}
	if len(texts) > 0 && strings.Contains(texts[0], ":") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

func slicePort(name string, proto corev1.Protocol, port int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Protocol: &proto, Port: &port}
}

func parseEndpoint(text string) discoveryv1.Endpoint {
	yes, no := true, false
	words := strings.Fields(text)
	e := discoveryv1.Endpoint{Addresses: []string{words[0]}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch {
		case w[0] == '@':
			node := w[1:]
			e.NodeName = &node
		case w == "ready":
			e.Conditions.Ready = &yes
		case w == "unready":
			e.Conditions.Ready = &no
			if e.Conditions.Serving == nil {
				e.Conditions.Serving = &no
			}
		case w == "serving":
			e.Conditions.Serving = &yes
		case w == "terminating":
			e.Conditions.Terminating = &yes
		case key == "zone":
			hints(&e).ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: value})
		case key == "node":
			hints(&e).ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: value})
		default:
			panic("no such word: " + w)
		}
	}
	return e
}

func hints(e *discoveryv1.Endpoint) *discoveryv1.EndpointHints {
	if e.Hints == nil {
		e.Hints = &discoveryv1.EndpointHints{}
	}
	return e.Hints
}

// render writes objects as lines: name, frontends, ->, backends, and other fields.
func render(t *testing.T, objects []api.Object) string {
	t.Helper()
	var b strings.Builder
	for i := range objects {
		spec := specOf(t, &objects[i])
		b.WriteString(objects[i].Name + ":")
		for _, f := range spec.Frontends {
			if !strings.HasPrefix(f, "[100::") && !strings.HasPrefix(f, "0.") { // nowhere
				b.WriteString(" " + f)
			}
		}
		b.WriteString(" ->")
		for _, e := range spec.Backends {
			b.WriteString(" " + e.Address)
			if e.State != "" {
				b.WriteString("(" + e.State + ")")
			}
		}
		word := func(name, value string) {
			if value != "" {
				b.WriteString(" " + name + "=" + value)
			}
		}
		word("source", spec.Source)
		word("noBackend", spec.NoBackend)
		word("ranges", strings.Join(spec.SourceRanges, ","))
		if spec.Affinity != nil {
			word("affinity", time.Duration(spec.Affinity.Timeout).String())
		}
		for _, d := range spec.Divert {
			word("divert", strings.Join(d.Sources, ",")+">"+d.Service)
		}
		if isBase := strings.Count(objects[i].Name, "/") == 1; isBase != (spec.OtherPorts == "reject") {
			t.Errorf("%s: otherPorts %q", objects[i].Name, spec.OtherPorts)
		}
		if spec.Announce {
			b.WriteString(" announce")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// specOf decodes a spec as strictly as the daemon does.
func specOf(t testing.TB, o *api.Object) *api.ServiceSpec {
	t.Helper()
	if o.Kind != api.KindService || o.Owner != "k8s" {
		t.Fatalf("%s/%s of %s", o.Kind, o.Name, o.Owner)
	}
	spec := &api.ServiceSpec{}
	dec := json.NewDecoder(strings.NewReader(string(o.Spec)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(spec); err != nil {
		t.Fatalf("%s: %v", o.Name, err)
	}
	return spec
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// want compares the rendered translation.
func want(t *testing.T, got, want string) {
	t.Helper()
	want = strings.TrimLeft(strings.ReplaceAll(want, "\t", ""), "\n")
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
