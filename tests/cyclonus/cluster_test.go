// SPDX-License-Identifier: Apache-2.0

package cyclonus

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testkube"
	"github.com/loxilight/loxilight/internal/testnet"
)

var programs testdaemon.Programs

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "cyclonus-programs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := 1
	if err := build(dir); err == nil {
		code = testdaemon.Main(m, "cyclonus", &programs)
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir) // the next run makes another
	os.Exit(code)
}

// build builds the programs, in their module, unless LOXILIGHT_BIN contains them.
func build(dir string) error {
	if os.Getenv("LOXILIGHT_BIN") != "" {
		return nil
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./loxilightd", "./llcli", "./loxilight-cni", "./loxilight-agent")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return os.Setenv("LOXILIGHT_BIN", dir)
}

const nodeCount = 3

// node is a node with a daemon and an agent.
type node struct {
	*testdaemon.Daemon
	number int
	ns     *testnet.NS
	cni    *libcni.CNIConfig
	agent  *testnet.Process
}

func (n *node) name() string { return fmt.Sprint("n", n.number) }

// cluster is three nodes, an API server, and pods whose servers answer on each port of their
// containers.
//
//	pods 10.244.1.5 … ── [switch] ══ [n1] eth0 192.0.2.1 ─┐
//	pods 10.244.2.5 … ── [switch] ══ [n2] eth0 192.0.2.2 ─┼─ lan
//	pods 10.244.3.5 … ── [switch] ══ [n3] eth0 192.0.2.3 ─┘
//
// IPv6 likewise: fd00:244:1::5 and fd00:2::1. The nodes reach each other's pods through a tunnel.
type cluster struct {
	t     *testing.T
	api   *testkube.Server
	nodes []*node
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	testnet.RequireRoot(t)
	c := &cluster{t: t, api: testkube.New(t)}
	lan := testnet.New(t, "lan")
	var ports []string
	var daemons []*testdaemon.Daemon
	for i := 1; i <= nodeCount; i++ {
		n := c.newNode(lan, i)
		c.nodes, daemons, ports = append(c.nodes, n), append(daemons, n.Daemon), append(ports, n.name())
		c.api.Set(nodeObject(i))
	}
	// The Service of the API server, which each cluster has.
	slice := endpointSlice("default", "kubernetes", 0, "192.0.2.100", nil)
	slice.Ports = slicePorts(corev1.ServicePort{Protocol: corev1.ProtocolTCP, Port: 6443})
	c.api.Set(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: serviceSpec([]string{"10.96.0.1"}, 443)}, slice)
	lan.Bridge(t, "br0", ports...)
	testdaemon.StartAll(daemons...)
	program := filepath.Join(filepath.Dir(programs.Daemon), "loxilight-agent")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"agent.yaml": "health: {listen: \"\"}\nmetrics: {listen: \"\"}\n",
		"kubeconfig": fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}], "+
			"contexts: [{name: c, context: {cluster: c}}], current-context: c}", c.api.URL),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.nodes {
		n.agent = testnet.Here(t).Start(t, program, "--config", filepath.Join(dir, "agent.yaml"), "--kubeconfig", filepath.Join(dir, "kubeconfig"),
			"--node-name", n.name(), "--socket", n.Socket)
	}
	if err := c.holds(map[string]string{"PodNetwork default": `"policy":"required"`}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) newNode(lan *testnet.NS, i int) *node {
	c.t.Helper()
	n := &node{number: i, ns: testnet.New(c.t, fmt.Sprint("node", i))}
	testnet.Veth(c.t, testnet.Port{NS: lan, Name: n.name()}, testnet.Port{NS: n.ns, Name: "eth0",
		Addrs: []string{fmt.Sprintf("192.0.2.%d/24", i), fmt.Sprintf("fd00:2::%d/64", i)}})
	n.ns.Forward(c.t)
	name := testnet.UniqueName("switch")
	n.Daemon = testdaemon.New(c.t, n.ns, programs, "switch: {namespace: "+name+"}",
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

// list is the network configuration of a node.
func (n *node) list() (*libcni.NetworkConfigList, error) {
	text, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "pods", "plugins": []map[string]any{{
		"type": "loxilight-cni", "socket": n.Socket, "stateDir": n.StateDir(), "capabilities": map[string]bool{"ips": true},
	}}})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(text)
}

// add attaches a pod, as a container runtime does.
func (n *node) add(rt *libcni.RuntimeConf) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := n.list()
	if err != nil {
		return err
	}
	_, err = n.cni.AddNetworkList(ctx, list, rt)
	return err
}

func (n *node) del(rt *libcni.RuntimeConf) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := n.list()
	if err != nil {
		return err
	}
	return n.cni.DelNetworkList(ctx, list, rt)
}

// holds waits until the daemon of each node has applied an object whose specification contains a
// text, and everything that decides about packets is in force.
func (c *cluster) holds(marks map[string]string) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.nodes))
	for i, n := range c.nodes {
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
			return fmt.Errorf("%s: %w", c.nodes[i].name(), err)
		}
	}
	return nil
}

// held reports an object, by kind and name, that the daemon does not have, or that is not in force.
func (n *node) held(marks map[string]string) error {
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
