// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testkube"
)

// service returns a Service of type ClusterIP with one port, 80.
func service(namespace, name, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u-1", CreationTimestamp: metav1.Unix(1700000000, 0)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

// slice returns a slice of a service, with endpoints that are ready at port 8080.
func slice(namespace, service, name string, addresses ...string) *discoveryv1.EndpointSlice {
	ready, port, protocol, unnamed := true, int32(8080), corev1.ProtocolTCP, ""
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &unnamed, Port: &port, Protocol: &protocol}},
	}
	for _, a := range addresses {
		node := "n2"
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

// apiServer adds the Service of the API server, which each cluster has.
func apiServer(k *testkube.Server) {
	s := slice("default", "kubernetes", "kubernetes", "192.0.2.100")
	k.Set(service("default", "kubernetes", "10.96.0.1"), s)
}

// backends counts the backends that are not down.
func backends(spec string) int {
	return strings.Count(spec, `"address":`) - strings.Count(spec, `"state":"down"`)
}

// down returns the addresses of the backends that are down.
func down(t *testing.T, spec string) (addresses []string) {
	t.Helper()
	var s api.ServiceSpec
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		t.Fatal(err)
	}
	for _, b := range s.Backends {
		if b.State == "down" {
			addresses = append(addresses, b.Address)
		}
	}
	return addresses
}

func TestServicesComeChangeAndGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindService, "default/kubernetes")
	w.kube.Set(service("shop", "web", "10.96.0.7"))
	w.inStep(api.KindService, "default/kubernetes shop/web")
	if spec := w.daemon.has()["Service/shop/web"]; backends(spec) != 0 || !strings.Contains(spec, `"10.96.0.7:80/tcp"`) {
		t.Errorf("without endpoints: %s", spec)
	} else if !strings.Contains(spec, `"idleTimeout":{"tcp":"24h0m0s"}`) {
		t.Errorf("connections end otherwise than with kube-proxy: %s", spec)
	}
	w.kube.Set(slice("shop", "web", "web-a", "10.244.2.5", "10.244.2.6"), slice("shop", "web", "web-b", "10.244.2.7"))
	eventually(t, "three backends", func() bool { return backends(w.daemon.has()["Service/shop/web"]) == 3 })
	w.kube.Set(slice("shop", "other", "web-a", "10.244.2.5")) // the slice now belongs to another service
	eventually(t, "one backend", func() bool { return backends(w.daemon.has()["Service/shop/web"]) == 1 })
	w.kube.Delete(service("shop", "web", ""))
	w.inStep(api.KindService, "default/kubernetes")
}

// sliceOfTwo returns a slice of shop/web with a TCP port and a UDP port.
func sliceOfTwo(name string, addresses ...string) *discoveryv1.EndpointSlice {
	sl := slice("shop", "web", name, addresses...)
	http, dns, port, udp := "http", "dns", int32(5353), corev1.ProtocolUDP
	sl.Ports[0].Name = &http
	sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &dns, Port: &port, Protocol: &udp})
	return sl
}

// TestEndpointsDepart: an endpoint that leaves the slices without terminating keeps its
// connections for a time, and gets no new ones. A terminating endpoint, or a UDP endpoint, is
// removed at once.
func TestEndpointsDepart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := service("shop", "web", "10.96.0.7")
	s.Spec.Ports[0].Name = "http"
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53})
	w.kube.Set(s, sliceOfTwo("web-a", "10.244.2.5", "10.244.2.6", "10.244.2.7"))
	w.agent()
	w.inStep(api.KindService, "default/kubernetes shop/web:dns shop/web:http")
	expect := func(what string, all int, addresses ...string) {
		t.Helper()
		eventually(t, what, func() bool {
			has := w.daemon.has()
			if spec := has["Service/shop/web:dns"]; backends(spec) != all || len(down(t, spec)) > 0 {
				return false
			}
			return backends(has["Service/shop/web:http"]) == all && slices.Equal(down(t, has["Service/shop/web:http"]), addresses)
		})
	}
	expect("three endpoints", 3)
	w.kube.Set(sliceOfTwo("web-a", "10.244.2.5", "10.244.2.6"))
	expect("one has departed", 2, "10.244.2.7:8080")
	w.kube.Set(sliceOfTwo("web-b", "10.244.2.7"))
	expect("it is back", 3)
	ending := sliceOfTwo("web-b", "10.244.2.7")
	ending.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)}
	w.kube.Set(ending)
	eventually(t, "one is terminating", func() bool { return backends(w.daemon.has()["Service/shop/web:dns"]) == 2 })
	w.kube.Delete(sliceOfTwo("web-b"))
	expect("it has ended", 2)
	moved := sliceOfTwo("web-a", "10.244.2.5", "10.244.2.6")
	*moved.Ports[0].Port = 9090
	w.kube.Set(moved)
	expect("the target port was changed", 2, "10.244.2.5:8080", "10.244.2.6:8080")
	w.kube.Delete(moved)
	expect("all have departed", 0, "10.244.2.5:8080", "10.244.2.5:9090", "10.244.2.6:8080", "10.244.2.6:9090")
	w.kube.Delete(service("shop", "web", ""))
	w.inStep(api.KindService, "default/kubernetes")
	w.kube.Set(s)
	w.inStep(api.KindService, "default/kubernetes shop/web:dns shop/web:http")
	expect("nothing is left of an earlier Service", 0)
}

// TestDepartedStayWithTheDaemon: a restarted agent learns from the daemon which endpoints had
// departed before, and which departed while no agent ran.
func TestDepartedStayWithTheDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, gone := service("shop", "web", "10.96.0.7"), service("shop", "gone", "10.96.0.8")
	s.Spec.ClusterIPs, s.Spec.IPFamilies = append(s.Spec.ClusterIPs, "fd96::7"), append(s.Spec.IPFamilies, corev1.IPv6Protocol)
	s.Spec.Ports[0].Name, s.Spec.Ports[0].NodePort, s.Spec.Type = "http", 30080, corev1.ServiceTypeNodePort
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53})
	six := sliceOfTwo("web-6", "fd00:2::5", "fd00:2::6")
	six.AddressType = discoveryv1.AddressTypeIPv6
	w.kube.Set(s, sliceOfTwo("web-a", "10.244.2.5", "10.244.2.6", "10.244.2.7"), six, gone, slice("shop", "gone", "gone-a", "10.244.2.8"))
	_, stop := w.agent()
	w.inStep(api.KindService, "default/kubernetes shop/gone shop/web:dns shop/web:http shop/web:http/nodeport")
	w.kube.Set(sliceOfTwo("web-a", "10.244.2.5", "10.244.2.6"))
	expect := func(what string, all int, addresses ...string) {
		t.Helper()
		eventually(t, what, func() bool {
			has := w.daemon.has()
			for _, name := range []string{"shop/web:http", "shop/web:http/nodeport"} {
				if spec := has["Service/"+name]; backends(spec) != all || !slices.Equal(down(t, spec), addresses) {
					return false
				}
			}
			spec := has["Service/shop/web:dns"]
			return backends(spec) == all && len(down(t, spec)) == 0
		})
	}
	expect("one has departed", 4, "10.244.2.7:8080")
	stop()
	six = sliceOfTwo("web-6", "fd00:2::5")
	six.AddressType = discoveryv1.AddressTypeIPv6
	w.kube.Set(sliceOfTwo("web-a", "10.244.2.5"), six)
	w.kube.Delete(gone)
	_, stop = w.agent()
	expect("two more have while there was no agent", 2, "10.244.2.6:8080", "10.244.2.7:8080", "[fd00:2::6]:8080")
	w.inStep(api.KindService, "default/kubernetes shop/web:dns shop/web:http shop/web:http/nodeport")
	stop()
	w.kube.Set(sliceOfTwo("web-a", "10.244.2.5", "10.244.2.7"))
	w.stay = 3 * time.Second
	w.agent()
	expect("one is back", 3, "10.244.2.6:8080", "[fd00:2::6]:8080")
	expect("all others are forgotten", 3)
}

// TestDepartedAreForgotten: departed endpoints are forgotten after a time.
func TestDepartedAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stay = time.Second
	w.kube.Set(service("shop", "web", "10.96.0.7"), slice("shop", "web", "web-a", "10.244.2.5", "10.244.2.6"))
	w.agent()
	w.inStep(api.KindService, "default/kubernetes shop/web")
	w.kube.Set(slice("shop", "web", "web-a", "10.244.2.5"))
	eventually(t, "one is left, and none is remembered", func() bool {
		spec := w.daemon.has()["Service/shop/web"]
		return strings.Count(spec, `"address":`) == 1
	})
}

// TestDepartedAreBounded: the number of remembered endpoints is limited.
func TestDepartedAreBounded(t *testing.T) {
	d := newDeparted()
	var addresses []string
	for i := range departedMax - 1 {
		addresses = append(addresses, fmt.Sprintf("10.244.%d.%d", i/250, i%250+1))
	}
	pack := func(addresses ...string) *packed {
		p, _ := pack(slice("shop", "web", "web-a", addresses...))
		return p
	}
	count := func(what string, web, mail, all int) {
		t.Helper()
		if w, m := len(d.with("shop/web", nil)), len(d.with("shop/mail", nil)); w != web || m != mail || d.count != all {
			t.Errorf("%s: %d and %d, %d in all, want %d, %d and %d", what, w, m, d.count, web, mail, all)
		}
	}
	d.note("shop/web", pack(addresses...), nil)
	d.note("shop/mail", pack("10.245.0.1", "10.245.0.2"), nil)
	count("one place is left", departedMax-1, 1, departedMax)
	d.note("shop/web", pack(addresses[0]), nil)
	count("again", departedMax-1, 1, departedMax)
	d.with("shop/web", []*discoveryv1.EndpointSlice{pack(addresses[1:]...).slice()})
	count("all but one are back", 1, 1, 2)
	d.forget("shop/web")
	d.note("shop/mail", pack("10.245.0.3", "10.245.0.2"), pack("10.245.0.2"))
	count("one more", 0, 2, 2)
}

// TestDepartedByPorts: an endpoint is recorded with the ports with which it left.
func TestDepartedByPorts(t *testing.T) {
	d := newDeparted()
	with := func(terminating bool, numbers ...int32) *packed {
		s := slice("shop", "web", "web-a", "fd00:0:0::5")
		s.AddressType = discoveryv1.AddressTypeIPv6
		s.Endpoints[0].Conditions.Terminating = &terminating
		s.Ports = nil
		for i := range numbers {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", numbers[i])), Port: &numbers[i]})
		}
		p, _ := pack(s)
		return p
	}
	expect := func(what string, want ...int32) {
		t.Helper()
		var got []int32
		for _, s := range d.with("shop/web", nil) {
			if s.AddressType != discoveryv1.AddressTypeIPv6 || s.Endpoints[0].Addresses[0] != "fd00::5" {
				t.Errorf("%s: %+v", what, s)
			}
			for _, p := range s.Ports {
				got = append(got, *p.Port)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	d.note("shop/web", with(false, 80), with(false, 80, 443))
	expect("a port was added")
	d.note("shop/web", with(false, 80, 443), with(false, 443))
	expect("one is no more", 80)
	d.note("shop/web", with(false, 443), nil)
	expect("it has left", 80, 443)
	d.with("shop/web", []*discoveryv1.EndpointSlice{with(false, 80).slice()})
	expect("it is back by one", 443)
	d.note("shop/web", with(true, 80), nil)
	expect("it has ended")
	port := &corev1.ServicePort{Name: "p443", Protocol: corev1.ProtocolTCP}
	backends := []api.Backend{{Address: "[fd00::5]:443"}, {Address: "[fd00::6]:443"}}
	d.adopt("shop/web", port, backends, nil)
	if all := d.with("shop/web", nil); len(all) != 1 || all[0].Endpoints[0].Addresses[0] != "fd00::6" {
		t.Errorf("adopted are %v, want the running one", all)
	}
}

// TestProxyNameIsOfServices: a Service's own label decides whether it is ours. Slices made by
// people or other controllers need not have the label.
func TestProxyNameIsOfServices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.ServiceProxyName = "edge"
	ours := service("shop", "web", "10.96.0.7")
	ours.Labels = map[string]string{labelProxyName: "edge"}
	mirrored := slice("shop", "web", "web-a", "10.244.2.6")
	mirrored.Labels[labelProxyName] = "edge"
	w.kube.Set(ours, mirrored, slice("shop", "web", "by-hand", "10.244.2.5"))
	w.kube.Set(service("shop", "other", "10.96.0.8"), slice("shop", "other", "other-a", "10.244.2.7"))
	a, _ := w.agent()
	w.inStep(api.KindService, "shop/web")
	eventually(t, "both endpoints", func() bool { return backends(w.daemon.has()["Service/shop/web"]) == 2 })
	w.kube.Set(slice("shop", "other", "other-a", "10.244.2.8"), slice("shop", "web", "by-hand", "10.244.2.5", "10.244.2.9"))
	eventually(t, "one more", func() bool { return backends(w.daemon.has()["Service/shop/web"]) == 3 })
	w.inStep(api.KindService, "shop/web")
	if servers := a.servers(); len(servers) != 1 || servers[0] != "192.0.2.100:8080" {
		t.Errorf("the API servers are at %q", servers)
	}
}

// TestPortIsRenamed: the frontend moves from one object to another, in one transaction.
func TestPortIsRenamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := service("shop", "web", "10.96.0.7")
	s.Spec.Ports[0].Name = "http"
	w.kube.Set(s)
	w.agent()
	w.inStep(api.KindService, "default/kubernetes shop/web:http")
	before, err := w.daemon.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s = service("shop", "web", "10.96.0.7")
	s.Spec.Ports[0].Name = "www"
	w.kube.Set(s)
	w.inStep(api.KindService, "default/kubernetes shop/web:www")
	changes, err := w.daemon.Changes(t.Context(), before.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if len(changes.Changes) != 2 || changes.Changes[0].Revision != changes.Changes[1].Revision {
		t.Errorf("not one transaction: %+v", changes.Changes)
	}
}

// TestUnnamedPortIsRenumbered: the object of a port without a name stays the same when its number
// changes, with or without a running agent, and so do departed endpoints.
func TestUnnamedPortIsRenumbered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := service("shop", "web", "10.96.0.7")
	s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
	set := func(port int32, addresses ...string) {
		s = s.DeepCopy()
		s.Spec.Ports[0].Port = port
		w.kube.Set(s, slice("shop", "web", "web-a", addresses...))
	}
	expect := func(what string, port, all int, addresses ...string) {
		t.Helper()
		eventually(t, what, func() bool {
			has := w.daemon.has()
			for name, frontend := range map[string]string{"shop/web": fmt.Sprintf(`"10.96.0.7:%d/tcp"`, port), "shop/web/nodeport": ":30080/tcp"} {
				if spec := has["Service/"+name]; !strings.Contains(spec, frontend) || backends(spec) != all || !slices.Equal(down(t, spec), addresses) {
					return false
				}
			}
			return true
		})
	}
	set(80, "10.244.2.5", "10.244.2.6", "10.244.2.7")
	_, stop := w.agent()
	expect("three endpoints", 80, 3)
	before, err := w.daemon.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set(81, "10.244.2.5", "10.244.2.6")
	expect("another number, and one has departed", 81, 2, "10.244.2.7:8080")
	stop()
	set(82, "10.244.2.5")
	w.agent()
	expect("the same while there was no agent", 82, 1, "10.244.2.6:8080", "10.244.2.7:8080")
	w.inStep(api.KindService, "default/kubernetes shop/web shop/web/nodeport")
	changes, err := w.daemon.Changes(t.Context(), before.Revision)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes.Changes {
		if c.Kind == api.KindService && c.Action != api.ActionUpdated {
			t.Errorf("%s %s is %s: its connections end", c.Kind, c.Name, c.Action)
		}
	}
}

// TestBurstIsFewTransactions: simultaneous changes are sent together.
func TestBurstIsFewTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindService, "default/kubernetes")
	before, err := w.daemon.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const count = 300
	for i := range count {
		name := fmt.Sprintf("s%d", i)
		w.kube.Set(service("shop", name, fmt.Sprintf("10.96.%d.%d", 1+i/200, 1+i%200)), slice("shop", name, name, fmt.Sprintf("10.244.2.%d", 1+i%200)))
	}
	eventually(t, "all services", func() bool { return len(strings.Fields(w.daemon.names(api.KindService))) == count+1 })
	eventually(t, "all backends", func() bool {
		for ref, spec := range w.daemon.has() {
			if strings.HasPrefix(ref, "Service/") && backends(spec) != 1 {
				return false
			}
		}
		return true
	})
	after, err := w.daemon.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := after.Revision - before.Revision; n > 60 {
		t.Errorf("%d transactions for %d services", n, count)
	} else {
		t.Logf("%d transactions for %d services", n, count)
	}
}

// TestRefusedServiceDoesNotHoldUpOthers: a rejected service is reported in an event, and delays no
// others.
func TestRefusedServiceDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent()
	w.inStep(api.KindService, "default/kubernetes")
	if _, err := w.daemon.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{{
		Kind: api.KindService, Name: "by-hand", Spec: raw(t, api.ServiceSpec{Frontends: []string{"10.96.0.7:80/tcp"}}),
	}}}); err != nil {
		t.Fatal(err)
	}
	w.kube.Set(service("shop", "taken", "10.96.0.7"), service("shop", "web", "10.96.0.8"))
	w.inStep(api.KindService, "default/kubernetes shop/web")
	eventually(t, "an event reports it", func() bool {
		for _, e := range w.kube.Events() {
			if e.InvolvedObject.Kind == "Service" && e.InvolvedObject.Name == "taken" && e.InvolvedObject.UID == "u-1" && strings.Contains(e.Message, "by-hand") {
				return true
			}
		}
		return false
	})
	if _, err := w.daemon.Delete(t.Context(), api.DeleteParams{Objects: []api.ObjectRef{{Kind: api.KindService, Name: "by-hand"}}}); err != nil {
		t.Fatal(err)
	}
	w.inStep(api.KindService, "default/kubernetes shop/taken shop/web") // it is retried automatically
}

// TestServiceTooLarge: a Service with more endpoints than an object can have is reported, delays no
// other, and is in force once it has fewer. Endpoints come in slices.
func TestServiceTooLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const count, each = 8, 1000 // half of them fit, even with those remembered after they left
	for i := range count {
		addresses := make([]string, each)
		for k := range addresses {
			addresses[k] = fmt.Sprintf("10.%d.%d.%d", 200+i, k>>8, k&0xff)
		}
		w.kube.Set(slice("shop", "large", fmt.Sprint("large-", i), addresses...))
	}
	w.kube.Set(service("shop", "large", "10.96.0.7"))
	w.agent()
	w.inStep(api.KindService, "default/kubernetes")
	eventually(t, "an event reports it", func() bool {
		return slices.ContainsFunc(w.kube.Events(), func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "large" && strings.Contains(e.Message, "at most")
		})
	})
	w.kube.Set(service("shop", "web", "10.96.0.8"))
	w.inStep(api.KindService, "default/kubernetes shop/web")
	for i := range count / 2 {
		w.kube.Delete(slice("shop", "large", fmt.Sprint("large-", i)))
	}
	w.inStep(api.KindService, "default/kubernetes shop/large shop/web")
	if spec := w.daemon.has()["Service/shop/large"]; !strings.Contains(spec, "10.207.3.231:8080") || backends(spec) < count/2*each {
		t.Errorf("%d backends, want those of all slices: %.200s", backends(spec), spec)
	}
}

// TestRefusedChangeKeepsState: a service stays unchanged if the daemon rejects a change to
// it, even across restarts of agent and daemon.
func TestRefusedChangeKeepsState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kube.Set(service("shop", "web", "10.96.0.7"), slice("shop", "web", "a", "10.244.2.5"))
	_, stop := w.agent()
	eventually(t, "the backend", func() bool { return backends(w.daemon.has()["Service/shop/web"]) == 1 })
	if _, err := w.daemon.Apply(t.Context(), api.ApplyParams{Objects: []api.Object{{
		Kind: api.KindService, Name: "by-hand", Spec: raw(t, api.ServiceSpec{Frontends: []string{"10.96.0.9:80/tcp"}}),
	}}}); err != nil {
		t.Fatal(err)
	}
	w.kube.Set(service("shop", "web", "10.96.0.9"))
	eventually(t, "it is refused", func() bool { return strings.Contains(w.log.String(), "refuses an object") })
	there := func() bool { return strings.Contains(w.daemon.has()["Service/shop/web"], "10.96.0.7:80/tcp") }
	if !there() {
		t.Error("the service is not as it was")
	}
	w.daemon.kill()
	w.daemon.start()
	w.kube.Set(service("shop", "new", "10.96.0.10"))
	eventually(t, "another service", func() bool { return w.daemon.has()["Service/shop/new"] != "" })
	if !there() {
		t.Error("the service is not as it was after the daemon was killed")
	}
	stop()
	w.agent()
	w.kube.Delete(service("shop", "new", ""))
	w.inStep(api.KindService, "default/kubernetes shop/web")
	if !there() {
		t.Error("the service is not as it was for another agent")
	}
}

// TestTriggered: latency is measured from the change of the pods, not from the agent's
// notification.
func TestTriggered(t *testing.T) {
	at := time.Now().Add(-3 * time.Second).UTC()
	plain, annotated := slice("a", "b", "c"), slice("a", "b", "c")
	annotated.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}
	old, _ := pack(plain)
	now, _ := pack(annotated)
	if got := triggered(old, now); !got.Equal(at) {
		t.Errorf("%s, want %s", got, at)
	}
	if got := triggered(now, now); !got.IsZero() {
		t.Errorf("reported before: %s", got)
	}
	if got := triggered(nil, old); !got.IsZero() {
		t.Errorf("not reported: %s", got)
	}
}

func TestPackedSliceIsTheSame(t *testing.T) {
	ready, no, node := true, false, "n2"
	s := slice("shop", "web", "web-a", "10.244.2.5", "10.244.2.6")
	s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &ready, Terminating: &ready}
	s.Endpoints[1].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}, ForNodes: []discoveryv1.ForNode{{Name: node}}}
	p, ok := pack(s.DeepCopy())
	if !ok {
		t.Fatal("not packed")
	}
	if again, ok := pack(p); !ok || again != p {
		t.Error("packed twice")
	}
	if got := p.slice(); !reflect.DeepEqual(got, s) {
		t.Errorf("got %+v\nwant %+v", got, s)
	}
}
