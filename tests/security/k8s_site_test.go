// SPDX-License-Identifier: Apache-2.0

package security

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/internal/testnet"
)

// kubeNode is a Kubernetes node with a real daemon and a real agent, and a LAN with clients and
// servers. The API server accepts everything, as the attacker writes it.
//
//	lan                                     node
//	192.0.2.77  clients ──────── eth0  192.0.2.1, fd00:2::1
//	192.0.2.50… servers          route of 203.0.113.0/24, 198.51.100.0/24 and the like
type kubeNode struct {
	t      *testing.T
	kube   *testkube.Server
	node   *testnet.NS
	lan    *testnet.NS
	daemon *testdaemon.Daemon
	agent  *testnet.Process
}

// newKubeNode starts all of it; config is added to agent.yaml.
func newKubeNode(t *testing.T, config string) *kubeNode {
	t.Helper()
	testnet.RequireRoot(t)
	if programs.Daemon == "" {
		t.Skip("builds the programs: not with -short")
	}
	program, err := programs.Agent()
	if err != nil {
		t.Fatal(err)
	}
	k := &kubeNode{t: t, kube: testkube.New(t), node: testnet.New(t, "knode"), lan: testnet.New(t, "klan")}
	testnet.Veth(t, testnet.Port{NS: k.node, Name: "eth0", Addrs: []string{"192.0.2.1/24", "fd00:2::1/64"}},
		testnet.Port{NS: k.lan, Name: "eth0", Addrs: []string{
			"192.0.2.77/24", "192.0.2.50/24", "192.0.2.51/24", "fd00:2::77/64", "fd00:2::50/64", "fd00:2::51/64",
		}})
	k.node.Forward(t)
	for _, prefix := range []string{"203.0.113.0/24", "198.51.100.0/24", "10.244.0.0/16", "169.254.0.0/16", "192.0.2.2/32"} {
		k.lan.Route(t, prefix, "192.0.2.1")
	}
	for _, prefix := range []string{"2001:db8:113::/64", "2001:db8:9::/64", "fd00:244::/32", "fd00:2::2/128"} {
		k.lan.Route(t, prefix, "fd00:2::1")
	}
	k.kube.Set(kubeNodeObject("n1", 1), kubeNodeObject("n2", 2),
		kubeService("default", "kubernetes", time.Hour, "10.96.0.1"), kubeSlices("default", "kubernetes", "192.0.2.100")[0])
	k.daemon = testdaemon.New(t, k.node, programs)
	k.daemon.Start()
	dir := t.TempDir()
	files := map[string]string{
		"agent.yaml": "tunnel: {type: none}\nmasquerade: {enabled: false}\nmetrics: {listen: \"\"}\n" + config,
		"kubeconfig": fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}], "+
			"contexts: [{name: c, context: {cluster: c}}], current-context: c}", k.kube.URL),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k.agent = testnet.Here(t).Start(t, program, "--config", filepath.Join(dir, "agent.yaml"), "--kubeconfig", filepath.Join(dir, "kubeconfig"),
		"--node-name", "n1", "--socket", k.daemon.Socket)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent:\n%s", k.agent.Output())
		}
	})
	k.told("default/kubernetes")
	return k
}

// told waits until the daemon has applied a Service by that name. Hosts that are its backends need
// not exist.
func (k *kubeNode) told(name string) {
	k.t.Helper()
	testnet.Eventually(k.t, time.Minute, "the daemon has Service/"+name, func() bool {
		o, err := k.daemon.Client.Get(context.Background(), api.KindService, name)
		return err == nil && (strings.Contains(string(o.Status), `"Ready"`) || strings.Contains(string(o.Status), "is unreachable"))
	})
}

// holder returns the names of the objects that have an address as a frontend.
func (k *kubeNode) holder(address string) (names []string) {
	k.t.Helper()
	for o, err := range k.daemon.Client.List(context.Background(), api.ListParams{Kind: api.KindService}) {
		if err != nil {
			k.t.Fatal(err)
		}
		if strings.Contains(string(o.Spec), `"`+address+`/tcp"`) {
			names = append(names, o.Name)
		}
	}
	return names
}

// ask connects from the LAN, and returns the name of the server that answers; empty: none.
func (k *kubeNode) ask(to string) string {
	conn, err := k.lan.Dial("tcp", "", to, time.Second)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second)) // of an open connection
	name := make([]byte, 64)
	n, _ := conn.Read(name)
	return strings.TrimSpace(string(name[:n]))
}

// eventOf waits for an event about a Service; the event must contain text.
func (k *kubeNode) eventOf(service, text string) {
	k.t.Helper()
	testnet.Eventually(k.t, time.Minute, "an event of "+service+" says "+text, func() bool {
		for _, e := range k.kube.Events() {
			if e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name == service && strings.Contains(e.Message, text) {
				return true
			}
		}
		return false
	})
}

// kubeNodeObject returns the Node with number i.
func kubeNodeObject(name string, i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{
		PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:%d::/64", i)},
	}}
	for _, a := range []string{fmt.Sprintf("192.0.2.%d", i), fmt.Sprintf("fd00:2::%d", i)} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// kubeService returns a Service with port 443, of the given age.
func kubeService(namespace, name string, age time.Duration, clusterIPs ...string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIPs[0], ClusterIPs: clusterIPs,
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 443}},
		},
	}
	return s
}

// kubeSlices returns a slice of each family with one endpoint, at port 8080.
func kubeSlices(namespace, service string, addresses ...string) (all []*discoveryv1.EndpointSlice) {
	for i, a := range addresses {
		ready, port, protocol, unnamed := true, int32(8080), corev1.ProtocolTCP, ""
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: fmt.Sprint(service, "-", i), Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &unnamed, Port: &port, Protocol: &protocol}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
		if netip.MustParseAddr(a).Is6() {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		all = append(all, s)
	}
	return all
}
