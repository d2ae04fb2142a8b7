// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// kubernetesSite is a site whose daemon is configured by an agent, from an API server.
type kubernetesSite struct {
	*site
	api   *testkube.Server
	agent *testnet.Process
	list  *libcni.NetworkConfigList
}

// newKubernetesSite starts a daemon and an agent with a configuration.
func newKubernetesSite(t *testing.T, agentConfig string, more ...string) *kubernetesSite {
	t.Helper()
	s := &kubernetesSite{site: newBareSite(t, more...), api: testkube.New(t)}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.73.3.0/24", "2001:db8:73::/64"}}}
	for _, a := range []string{"192.0.2.1", "2001:db8:2::1"} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	s.api.Define(testkube.ClusterPolicyVersion)
	s.api.Set(node)
	s.service("default", "kubernetes", 443, 6443, []string{"10.96.0.1"}, "192.0.2.100")
	s.Start()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"agent.yaml": "health: {listen: \"\"}\nmetrics: {listen: \"\"}\n" + agentConfig,
		"kubeconfig": fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}], "+
			"contexts: [{name: c, context: {cluster: c}}], current-context: c}", s.api.URL),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program, err := programs.Agent()
	if err != nil {
		t.Fatal(err)
	}
	s.agent = testnet.Here(t).Start(t, program, "--config", filepath.Join(dir, "agent.yaml"), "--kubeconfig", filepath.Join(dir, "kubeconfig"),
		"--node-name", "n1", "--socket", s.Socket)
	s.list = s.site.list("1.1.0", nil)
	s.has("podnetwork", "default", `required`)
	return s
}

// service creates a Service with a TCP port and the same UDP port, or replaces its endpoints.
func (s *kubernetesSite) service(namespace, name string, port, target int32, clusterIPs []string, endpoints ...string) {
	spec := corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIPs[0], ClusterIPs: clusterIPs, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}[:len(clusterIPs)]}
	slices := map[bool]*discoveryv1.EndpointSlice{}
	for is4, kind := range map[bool]discoveryv1.AddressType{true: discoveryv1.AddressTypeIPv4, false: discoveryv1.AddressTypeIPv6} {
		slices[is4] = &discoveryv1.EndpointSlice{AddressType: kind, ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name + "-" + strings.ToLower(string(kind)), Labels: map[string]string{discoveryv1.LabelServiceName: name},
		}}
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
			portName := strings.ToLower(string(protocol))
			slices[is4].Ports = append(slices[is4].Ports, discoveryv1.EndpointPort{Name: &portName, Port: &target, Protocol: &protocol})
		}
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: strings.ToLower(string(protocol)), Protocol: protocol, Port: port})
	}
	for _, a := range endpoints {
		is4, ready := netip.MustParseAddr(a).Is4(), true
		slices[is4].Endpoints = append(slices[is4].Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	s.api.Set(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u"}, Spec: spec}, slices[true], slices[false])
}

// has waits until the daemon has an object that contains a text, and is Ready.
func (s *kubernetesSite) has(kind, name, text string) {
	s.t.Helper()
	testnet.Eventually(s.t, 10*time.Second, fmt.Sprintf("%s %s has %s", kind, name, text), func() bool {
		out, code, err := s.TryLLCLI("get", kind, name, "-o", "json")
		return err == nil && code == 0 && strings.Contains(out, text) && strings.Contains(out, `"Ready"`)
	})
}

// newPod creates and attaches a pod.
func (s *kubernetesSite) newPod(namespace, name, app string) *pod {
	s.t.Helper()
	return s.attach(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodPending},
	})
}

func (s *kubernetesSite) attach(o *corev1.Pod) *pod {
	s.t.Helper()
	s.api.Set(o.DeepCopy())
	p := s.site.newPod(o.Name)
	p.rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", o.Namespace}, {"K8S_POD_NAME", o.Name}, {"K8S_POD_INFRA_CONTAINER_ID", o.Name}, {"K8S_POD_UID", string(o.UID)}}
	if err := s.tryAdd(s.list, p); err != nil {
		s.t.Fatalf("ADD %s: %v", o.Name, err)
	}
	o.Status.Phase = corev1.PodRunning
	o.Status.PodIPs = []corev1.PodIP{{IP: p.address(true).String()}, {IP: p.address(false).String()}}
	s.api.Set(o)
	return p
}

const nameTTL = 2

// serveDNS answers queries for the addresses of names: the address depends on the name.
func serveDNS(t *testing.T, ns *testnet.NS, at string) {
	t.Helper()
	l := ns.ListenUDP(t, at)
	t.Cleanup(func() { l.Close() })
	go func() {
		for b := make([]byte, 1000); ; {
			n, client, err := l.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = l.WriteToUDPAddrPort(testpkt.DNSResponse(b[:n], nameTTL, 0, nameTarget(testpkt.DNSKind(b[:n]))), client) // the client asks again
		}
	}()
}

// nameTarget returns the address of all names.
func nameTarget(kind uint16) netip.Addr {
	if kind == testpkt.DNSAAAA {
		return netip.MustParseAddr("2001:db8:2::77")
	}
	return netip.MustParseAddr("192.0.2.77")
}

// ask resolves a name.
func (p *pod) ask(t *testing.T, server, name string, kind uint16) {
	t.Helper()
	c, err := p.Dial("udp", "", server, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 10 {
		_, _ = c.Write(testpkt.DNSQuery(name, kind)) // if this fails, no answer arrives
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err = c.Read(make([]byte, 1000)); err == nil {
			return
		}
	}
	t.Fatalf("%s does not resolve %s: %v", server, name, err)
}

// connects reports whether a connection to the target of names is possible; it sends one SYN.
func (p *pod) connects(t *testing.T, kind uint16) bool {
	t.Helper()
	c, err := p.Dial("tcp", "", net.JoinHostPort(nameTarget(kind).String(), "4660"), 800*time.Millisecond)
	if err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) && !strings.Contains(err.Error(), "timeout") {
			t.Fatalf("%v", err)
		}
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second)) // if this fails, the read returns at once or never
	_, err = io.WriteString(c, "hello")
	if err == nil {
		_, err = c.Read(make([]byte, 100))
	}
	return err == nil
}

// TestDomainNames: a ClusterNetworkPolicy lets a pod reach the addresses that the cluster's DNS server
// has returned, at once. The DNS servers are those behind the Service kube-dns, which follow its
// EndpointSlices, and configured ones.
func TestDomainNames(t *testing.T) {
	s := newKubernetesSite(t, "resolvers: {addresses: [169.254.20.10]}", "policy: {nameGrace: 1s}")
	s.api.Set(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", Labels: map[string]string{"is": "system"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	s.outside.ServeTCP(t, "192.0.2.77:4660", "target")
	s.outside.ServeTCP(t, "[2001:db8:2::77]:4660", "target")
	s.node.Addr(t, "lo", "169.254.20.10/32")
	serveDNS(t, s.node, "169.254.20.10:53")
	serveDNS(t, s.outside, "192.0.2.77:53")
	var servers []*pod
	for i := range 2 {
		p := s.newPod("kube-system", fmt.Sprint("dns-", i), "dns")
		for _, is4 := range []bool{true, false} {
			serveDNS(t, p.NS, netip.AddrPortFrom(p.address(is4), 5353).String()) // behind the Service
			serveDNS(t, p.NS, netip.AddrPortFrom(p.address(is4), 53).String())
		}
		servers = append(servers, p)
	}
	client := s.newPod("shop", "client", "client")
	s.api.Set(testkube.NewClusterPolicy("names", `{"tier": "Admin", "priority": 7, "subject": {"pods": {"podSelector": {"matchLabels": {"app": "client"}}}}, "egress": [
		{"action": "Accept", "to": [{"namespaces": {"matchLabels": {"is": "system"}}}, {"networks": ["169.254.20.10/32"]}, {"nodes": {}}]},
		{"action": "Accept", "to": [{"networks": ["192.0.2.77/32"]}], "protocols": [{"udp": {"destinationPort": {"number": 53}}}]},
		{"action": "Accept", "to": [{"domainNames": ["www.example.org", "*.Wild.example.org"]}], "protocols": [{"tcp": {"destinationPort": {"number": 4660}}}]},
		{"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}]}]}`))
	s.has("policy", "cnp/names", "*.wild.example.org")

	kinds := []uint16{testpkt.DNSA, testpkt.DNSAAAA}
	wants := func(when string, kind uint16, want bool) {
		t.Helper()
		if got := client.connects(t, kind); got != want {
			t.Errorf("%s: to %s: %v, want %v", when, nameTarget(kind), got, want)
		}
	}
	expire := func(when string) {
		t.Helper()
		time.Sleep((nameTTL+1)*time.Second + 500*time.Millisecond)
		for _, kind := range kinds {
			wants("expired, "+when, kind, false)
		}
	}
	learns := func(when, server string, want bool) {
		t.Helper()
		for i, kind := range kinds {
			client.ask(t, server, []string{"www.Example.org", "a.b.wild.example.org"}[i], kind)
			wants(when, kind, want)
		}
		if want {
			expire(when)
		}
	}
	for _, kind := range kinds {
		wants("before a response", kind, false)
	}
	endpoint := func(i int, is4 bool) string { return netip.AddrPortFrom(servers[i].address(is4), 53).String() }
	learns("from an endpoint of no Service", endpoint(0, true), false)
	dns := func(i int) {
		s.service("kube-system", "kube-dns", 53, 5353, []string{"10.96.0.10", "2001:db8:96::a"}, servers[i].address(true).String(), servers[i].address(false).String())
		s.has("podnetwork", "default", servers[i].address(false).String())
		s.has("service", "kube-system/kube-dns:udp", servers[i].address(true).String())
	}
	dns(0)
	learns("from the Service", "10.96.0.10:53", true)
	learns("from the Service, IPv6", "[2001:db8:96::a]:53", true)
	learns("from an endpoint", endpoint(0, true), true)
	learns("from an endpoint, IPv6", endpoint(0, false), true)
	learns("from another server", "192.0.2.77:53", false)
	learns("from a configured server", "169.254.20.10:53", true)
	dns(1)
	learns("from the next endpoint", endpoint(1, true), true)
	learns("from the previous endpoint", endpoint(0, true), false)
	s.agent.Signal(syscall.SIGSTOP)
	s.Kill()
	learns("while agent and daemon do not run", "10.96.0.10:53", true)
	s.agent.Signal(syscall.SIGCONT)
	s.Start()
	s.has("policy", "cnp/names", "*.wild.example.org")
	learns("again", "[2001:db8:96::a]:53", true)
	s.api.Delete(testkube.NewClusterPolicy("names", "{}"))
	testnet.Eventually(t, 10*time.Second, "the policy is gone", func() bool { return client.connects(t, testpkt.DNSA) })
}
