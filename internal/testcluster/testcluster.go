// SPDX-License-Identifier: Apache-2.0

// Package testcluster runs Kubernetes nodes for tests: real daemons and agents, each in a network
// namespace, an API server of [testkube], and the CNI plugin as a container runtime calls it.
package testcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/internal/testnet"
)

// Node is a node with a daemon and an agent.
type Node struct {
	*testdaemon.Daemon
	Number int // from 1
	NS     *testnet.NS
	Agent  *testnet.Process
	cni    *libcni.CNIConfig
}

// Name is the name of the node in the cluster.
func (n *Node) Name() string { return fmt.Sprint("n", n.Number) }

// Cluster is some nodes and an API server.
//
//	pods 10.244.1.5 … ── [switch] ══ [n1] eth0 192.0.2.1 ─┐
//	pods 10.244.2.5 … ── [switch] ══ [n2] eth0 192.0.2.2 ─┴─ lan
//
// IPv6 likewise: fd00:244:1::5 and fd00:2::1. The nodes reach each other's pods through a tunnel.
type Cluster struct {
	API   *testkube.Server
	Nodes []*Node
	LAN   *testnet.NS // with a bridge, br0
	t     *testing.T
}

// New starts a cluster, which ends with the test. The agent is built if necessary.
func New(t *testing.T, programs testdaemon.Programs, nodes int) *Cluster {
	t.Helper()
	testnet.RequireRoot(t)
	agent, err := programs.Agent()
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{t: t, API: testkube.New(t), LAN: testnet.New(t, "lan")}
	var ports []string
	var daemons []*testdaemon.Daemon
	for i := 1; i <= nodes; i++ {
		n := c.newNode(programs, i)
		c.Nodes, daemons, ports = append(c.Nodes, n), append(daemons, n.Daemon), append(ports, n.Name())
		c.API.Set(nodeObject(i))
	}
	c.API.Set(apiService()...)
	c.LAN.Bridge(t, "br0", ports...)
	testdaemon.StartAll(daemons...)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"agent.yaml": "health: {listen: \"\"}\nmetrics: {listen: \"\"}\n",
		"kubeconfig": fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}], "+
			"contexts: [{name: c, context: {cluster: c}}], current-context: c}", c.API.URL),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		n.Agent = testnet.Here(t).Start(t, agent, "--config", filepath.Join(dir, "agent.yaml"), "--kubeconfig", filepath.Join(dir, "kubeconfig"),
			"--node-name", n.Name(), "--socket", n.Socket)
	}
	if err := c.Holds(map[string]string{"PodNetwork default": `"policy":"required"`}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *Cluster) newNode(programs testdaemon.Programs, i int) *Node {
	c.t.Helper()
	n := &Node{Number: i, NS: testnet.New(c.t, fmt.Sprint("node", i))}
	testnet.Veth(c.t, testnet.Port{NS: c.LAN, Name: n.Name()}, testnet.Port{
		NS: n.NS, Name: "eth0",
		Addrs: []string{fmt.Sprintf("192.0.2.%d/24", i), fmt.Sprintf("fd00:2::%d/64", i)},
	})
	n.NS.Forward(c.t)
	name := testnet.UniqueName("switch")
	n.Daemon = testdaemon.New(c.t, n.NS, programs, "switch: {namespace: "+name+"}",
		"tables: {connections: 262144, services: 1024, backends: 4096, affinity: 64, ranges: 64}")
	c.t.Cleanup(func() {
		if _, err := os.Stat("/run/netns/" + name); err == nil {
			testnet.DeleteNamed(c.t, name)
		}
	})
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(programs.CNI)}, c.t.TempDir(), nil)
	return n
}

func nodeObject(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Spec: corev1.NodeSpec{
		PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:%d::/64", i)},
	}}
	for _, a := range []string{fmt.Sprintf("192.0.2.%d", i), fmt.Sprintf("fd00:2::%d", i)} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// apiService returns the Service of the API server, which each cluster has.
func apiService() []metav1.Object {
	protocol, port, ready := corev1.ProtocolTCP, int32(6443), true
	single := corev1.IPFamilyPolicySingleStack
	return []metav1.Object{
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single,
			Ports: []corev1.ServicePort{{Protocol: protocol, Port: 443}},
		}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "kubernetes-0", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.100"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
			Ports:       []discoveryv1.EndpointPort{{Protocol: &protocol, Port: &port}},
		},
	}
}

// list is the network configuration of a node.
func (n *Node) list() (*libcni.NetworkConfigList, error) {
	text, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "pods", "plugins": []map[string]any{{
		"type": "loxilight-cni", "socket": n.Socket, "stateDir": n.StateDir(), "capabilities": map[string]bool{"ips": true},
	}}})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(text)
}

// Add attaches a pod, as a container runtime does.
func (n *Node) Add(rt *libcni.RuntimeConf) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := n.list()
	if err != nil {
		return err
	}
	_, err = n.cni.AddNetworkList(ctx, list, rt)
	return err
}

// Del detaches a pod.
func (n *Node) Del(rt *libcni.RuntimeConf) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := n.list()
	if err != nil {
		return err
	}
	return n.cni.DelNetworkList(ctx, list, rt)
}

// Holds waits until the daemon of each node has applied an object, by kind and name, whose
// specification contains a text, and everything that decides about packets is in force.
func (c *Cluster) Holds(marks map[string]string) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.Nodes))
	for i, n := range c.Nodes {
		wg.Go(func() {
			for end := time.Now().Add(testnet.OnThisMachine(10 * time.Second)); ; {
				if errs[i] = n.held(marks); errs[i] == nil || time.Now().After(end) {
					return
				}
				time.Sleep(3 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("%s: %w", c.Nodes[i].Name(), err)
		}
	}
	return nil
}

// held reports an object that the daemon does not have, or that is not in force.
func (n *Node) held(marks map[string]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for name, text := range marks {
		kind, name, _ := strings.Cut(name, " ")
		o, err := n.Client.Get(ctx, kind, name)
		if err != nil {
			return err
		}
		if !strings.Contains(string(o.Spec), text) {
			return fmt.Errorf("%s %s lacks %s: %s", kind, name, text, o.Spec)
		}
	}
	status, err := n.Client.Status(ctx)
	if err != nil {
		return err
	}
	for _, o := range status.NotReady {
		// The endpoints of these Services do not exist.
		if !strings.HasPrefix(o.Object, "Service/mark/") && !strings.HasPrefix(o.Object, "Service/default/") {
			return fmt.Errorf("%s is %s: %s", o.Object, o.State, o.Message)
		}
	}
	return nil
}
