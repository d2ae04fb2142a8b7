// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// draw draws a random world.
func draw(d drawer) *world {
	w := &world{service: clusterIP(), nodeAddresses: []string{"192.0.2.13", "198.51.100.43", "2001:db8::13"}}
	s := w.service
	if w.isDual = d.yes("dual stack"); w.isDual {
		dualStack(s)
	}
	if w.internalLocal = d.yes("internal local"); w.internalLocal {
		internalLocal(s)
	}
	drawPorts(d, s)
	if d.yes("external") {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		if w.externalLocal = d.yes("external local"); w.externalLocal {
			externalLocal(s)
		}
		externalIPs("203.0.113.9", "2001:db8:113::9", "203.0.113.20")(s)
		loadBalancer("203.0.113.20", "2001:db8:113::20", "203.0.113.21")(s)
		if d.yes("proxy mode") {
			mode := corev1.LoadBalancerIPModeProxy
			s.Status.LoadBalancer.Ingress[2].IPMode = &mode
		}
		for range d.count("ranges", 2) {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, d.pick("range", "172.16.0.0/12", "192.0.2.0/24", "0.0.0.0/0", "2001:db8:3::/64", "2001:db8:77::/48"))
		}
	}
	for i := range d.count("slices", 4) {
		w.slices = append(w.slices, drawSlice(d, s, i))
	}
	return w
}

func drawPorts(d drawer, s *corev1.Service) {
	s.Spec.Ports = nil
	for i, p := range []corev1.ServicePort{
		{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}, {Name: "quic", Protocol: corev1.ProtocolUDP, Port: 80}, {Name: "sip", Protocol: corev1.ProtocolSCTP, Port: 5060},
	} {
		if i > 0 && !d.yes("port") {
			continue
		}
		if d.yes("node port") {
			p.NodePort = 30080 + int32(i)
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
}

func drawSlice(d drawer, s *corev1.Service, i int) *discoveryv1.EndpointSlice {
	var texts []string
	prefix := d.pick("slice of", "10.244.4.", "2001:db8:4::")
	for host := range 4 {
		if !d.yes("endpoint") {
			continue
		}
		text := fmt.Sprint(prefix, 5+host)
		if d.yes("on a node") {
			text += d.pick("node", " @n3", " @n4")
		}
		for _, word := range []string{"ready", "serving", "terminating"} {
			if d.yes(word) {
				text += " " + word
			}
		}
		if d.count("unready", 2) == 0 {
			text += " unready"
		}
		text += drawHints(d)
		texts = append(texts, text)
	}
	slice := slice(fmt.Sprint("web-", i), texts...)
	if strings.Contains(prefix, ":") {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	slice.Ports = nil
	for _, p := range s.Spec.Ports {
		if d.count("serves the port", 5) > 0 {
			slice.Ports = append(slice.Ports, slicePort(p.Name, p.Protocol, 8080+int32(d.count("target", 1))))
		}
	}
	return slice
}

func drawHints(d drawer) (text string) {
	if d.count("hints", 4) > 0 {
		text += d.pick("zone", " zone=east", " zone=north", " zone=north zone=east")
		if d.yes("hint for a node") {
			text += d.pick("node", " node=n3", " node=n4", " node=n4 node=n3")
		}
	}
	return text
}

// TestModel compares the answers of model and objects.
func TestModel(t *testing.T) {
	asked := map[string]int{}
	rapidCheck(t, func(d drawer) {
		w := draw(d)
		got := TranslateService(thisNode(), w.service, w.slices, nil)
		specs := map[string]*api.ServiceSpec{}
		for i := range got.Objects {
			specs[got.Objects[i].Name] = specOf(t, &got.Objects[i])
		}
		for _, q := range questions(w.service) {
			want, got := w.answer(q), enforce(specs, q)
			if w.isDual && (want == "drop" || want == "reject") && (got == "drop" || got == "reject") {
				want, got = "", "" // both families have the same setting
			}
			if got != want {
				d.Fatalf("%s to %s/%s: %q, want %q\n%s%s", q.client, q.to, q.proto, got, want, w, render(t, TranslateService(thisNode(), w.service, w.slices, nil).Objects))
			}
			asked[strings.Fields(want + " both")[0]]++
		}
		for _, name := range slices.Sorted(keysOf(specs)) {
			checkKept(d, w, name, specs[name])
		}
	})
	for _, kind := range []string{"auto", "snat", "keep", "pass", "drop", "reject"} {
		if asked[kind] < 20 && !testing.Short() {
			t.Errorf("hardly any answer was %s: %v", kind, asked)
		}
	}
}

func keysOf(m map[string]*api.ServiceSpec) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// questions returns all kinds of clients for all addresses of a service, and for some that the
// service does not have.
func questions(s *corev1.Service) (list []question) {
	for _, to := range []string{
		"10.96.0.7", "192.0.2.13", "198.51.100.43", "203.0.113.9", "203.0.113.20", "203.0.113.21", "203.0.113.99",
		"2001:db8:96::7", "2001:db8::13", "2001:db8:113::9", "2001:db8:113::20",
	} {
		clients := []string{"10.244.3.9", "192.0.2.13", "172.16.5.5", "203.0.113.200", "203.0.113.20"}
		if strings.Contains(to, ":") {
			clients = []string{"2001:db8:3::9", "2001:db8::13", "2001:db8:77::5", "2001:db8:88::5"}
		}
		for _, p := range s.Spec.Ports {
			for _, number := range []int32{p.Port, p.NodePort} {
				if number == 0 {
					continue
				}
				for _, client := range clients {
					list = append(list, question{addr(client), netip.AddrPortFrom(addr(to), uint16(number)), p.Protocol})
				}
			}
		}
	}
	return list
}

// checkKept: connections continue as long as an endpoint is known, whatever policies apply to new
// ones, and UDP connections end if the endpoint no longer serves.
func checkKept(d drawer, w *world, name string, spec *api.ServiceSpec) {
	states := map[string]string{}
	for _, b := range spec.Backends {
		if _, twice := states[b.Address]; twice {
			d.Fatalf("%s has %s twice", name, b.Address)
		}
		states[b.Address] = b.State
	}
	for i := range w.service.Spec.Ports {
		p := &w.service.Spec.Ports[i]
		if !strings.HasPrefix(name+"/", "shop/web:"+p.Name+"/") {
			continue
		}
		known := 0
		for _, s := range w.servers(p) {
			known++
			state, ok := states[s.address]
			if !ok {
				d.Fatalf("%s does not know %s\n%s", name, s.address, w)
			}
			if !s.ready && !s.serving && state != "down" {
				d.Fatalf("%s has %s as %q, which does not serve\n%s", name, s.address, state, w)
			}
		}
		if known != len(spec.Backends) {
			d.Fatalf("%s has %d backends of %d\n%s", name, len(spec.Backends), known, w)
		}
	}
}

// TestSameAgain: the order of the input has no effect.
func TestSameAgain(t *testing.T) {
	rapidCheck(t, func(d drawer) {
		w := draw(d)
		first := TranslateService(thisNode(), w.service, w.slices, nil)
		var list []*discoveryv1.EndpointSlice
		for _, s := range w.slices {
			s = s.DeepCopy()
			slices.Reverse(s.Endpoints)
			list = slices.Insert(list, d.count("place", len(list)), s)
		}
		second := TranslateService(thisNode(), w.service.DeepCopy(), list, nil)
		if len(first.Objects) != len(second.Objects) {
			d.Fatalf("%d objects, then %d", len(first.Objects), len(second.Objects))
		}
		for i := range first.Objects {
			a, b := &first.Objects[i], &second.Objects[i]
			if a.Name != b.Name || !bytes.Equal(a.Spec, b.Spec) {
				d.Fatalf("%s: %s, then %s: %s", a.Name, a.Spec, b.Name, b.Spec)
			}
		}
	})
}

// TestSameOfEquals is about an endpoint in two slices whose contents differ, but not in the fields
// that decide which slice is used.
func TestSameOfEquals(t *testing.T) {
	a, b := slice("web-a", "10.244.3.5 zone=east", "10.244.4.6 zone=north"), slice("web-b", "10.244.3.5 zone=north", "10.244.4.6 zone=east")
	const expected = "shop/web: 10.96.0.7:80/tcp -> 10.244.3.5:8080 10.244.4.6:8080(draining)\n"
	for _, list := range [][]*discoveryv1.EndpointSlice{{a, b}, {b, a}} {
		want(t, render(t, TranslateService(thisNode(), clusterIP(), list, nil).Objects), expected)
	}
}
