// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testk8s"
	"github.com/loxilight/loxilight/internal/testnet"
)

// chaos is a cluster with continuous changes, and the required final state: how many servers each
// Deployment has, and to which Deployment each Service leads.
type chaos struct {
	*space
	rnd      *rand.Rand
	replicas map[string]int    // of Deployments
	services map[string]string // to Deployments
	killed   time.Time         // when the API server was last killed
	lost     int               // requests of kubectl that the API server did not answer
}

const crowds, doors = 4, 6 // Deployments, and Services at most

// TestChaos changes Deployments and Services at random while daemons, agents, kubelets, loxilight's
// pods and the API server are killed. In the end the last configuration is in force on every node.
// LOXILIGHT_K8S_CHAOS=10m makes it run for longer.
func TestChaos(t *testing.T) {
	c := &chaos{space: newSpace(t), replicas: map[string]int{}, services: map[string]string{}}
	lasts := 45 * time.Second
	if d, err := time.ParseDuration(os.Getenv("LOXILIGHT_K8S_CHAOS")); err == nil {
		lasts = d
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c.rnd = rand.New(rand.NewPCG(seed, 0))
	for i := range crowds {
		name := fmt.Sprint("crowd", i)
		c.web(name, 1, "")
		c.replicas[name] = 1
	}
	count := map[string]int{}
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		count[c.step()]++
	}
	t.Logf("what happened: %v; %d changes were not taken", count, c.lost)
	c.settle()
}

// step makes a change, and returns its description.
func (c *chaos) step() string {
	n := c.Nodes[c.rnd.IntN(len(c.Nodes))]
	crowd := fmt.Sprint("crowd", c.rnd.IntN(crowds))
	switch dice := c.rnd.IntN(100); {
	case dice < 40:
		replicas := c.rnd.IntN(5)
		if c.try("scale", "deployment/"+crowd, fmt.Sprint("--replicas=", replicas)) {
			c.replicas[crowd] = replicas
		}
		return "scaled"
	case dice < 70:
		return c.changeService(crowd)
	case dice < 80:
		c.try("delete", "pods", "-l", "app="+crowd, "--wait=false", "--force", "--grace-period=0")
		return "pods deleted"
	case dice < 85:
		c.killOn(n, "/usr/sbin/loxilightd")
		return "daemon killed"
	case dice < 90:
		c.killOn(n, "/usr/sbin/loxilight-agent")
		return "agent killed"
	case dice < 95:
		pid := c.processes(c.t, n, c.Kubelet())
		if len(pid) == 1 {
			n.MustRun(c.t, "kill", "-9", fmt.Sprint(pid[0]))
		}
		return "kubelet killed"
	case dice < 98:
		if _, err := c.Kubectl("", "-n", "kube-system", "delete", "pods", "-l", "app.kubernetes.io/name=loxilight", "--field-selector=spec.nodeName="+n.Name, "--wait=false"); err != nil {
			c.lost++
		}
		return "pod of loxilight deleted"
	case time.Since(c.killed) < time.Minute: // controllers and schedulers back off
		return "nothing"
	default:
		c.killed = time.Now()
		c.Kill("kube-apiserver")
		c.StartAPIServer(c.t)
		return "API server killed"
	}
}

// changeService creates, changes or deletes a Service.
func (c *chaos) changeService(crowd string) string {
	name := fmt.Sprint("door", c.rnd.IntN(doors))
	if _, there := c.services[name]; there && c.rnd.IntN(3) == 0 {
		if c.try("delete", "service", name) {
			delete(c.services, name)
		}
		return "service deleted"
	}
	kind := []string{"ClusterIP", "NodePort"}[c.rnd.IntN(2)]
	object := fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {type: %s, ipFamilyPolicy: PreferDualStack, selector: {app: %s}, ports: [{port: 80, targetPort: http}]}}", name, kind, crowd)
	if _, err := c.Kubectl(object, "-n", c.name, "apply", "-f", "-"); err != nil {
		c.lost++
	} else {
		c.services[name] = crowd
	}
	return "service applied"
}

// try runs kubectl, and reports its success: while the API server is down, it fails.
func (c *chaos) try(args ...string) bool {
	_, err := c.Kubectl("", append([]string{"-n", c.name}, args...)...)
	if err != nil {
		c.lost++
	}
	return err == nil
}

// killOn kills a program on a node, if it is running.
func (c *chaos) killOn(n *testk8s.Node, program string) {
	for _, pid := range c.processes(c.t, n, program) {
		_, _ = n.Run("kill", "-9", fmt.Sprint(pid)) // it may have ended already
	}
}

// settle waits until the cluster has its configured state, and compares every node with it.
func (c *chaos) settle() {
	c.t.Helper()
	c.nodesReady(c.t)
	c.rolledOut(c.t, "kube-system", "daemonset/loxilight")
	servers := map[string]map[string]bool{}
	backends := map[string][]netip.Addr{}
	pods := map[string]int{} // of each node
	for crowd, replicas := range c.replicas {
		servers[crowd] = map[string]bool{}
		for _, o := range c.ReadyPods(c.t, c.name, "app%3D"+crowd, replicas) {
			servers[crowd][o.Metadata.Name] = true
			pods[o.Spec.NodeName]++
			for _, ip := range o.Status.PodIPs {
				backends[crowd] = append(backends[crowd], ip.IP)
			}
		}
	}
	for _, n := range c.Nodes {
		c.holds(n, c.model(n, backends))
	}
	for name, crowd := range c.services {
		for _, at := range clusterIPs(c.getService(name), 0) {
			for _, n := range c.Nodes {
				if len(servers[crowd]) == 0 {
					soon(c.t, fmt.Sprintf("%s refuses %s", n.Name, name), func() bool {
						_, err := on(n).connect(at)
						return err != nil && strings.Contains(err.Error(), "refused")
					})
					continue
				}
				serves(c.t, on(n), at, len(servers[crowd]))
				for who := range on(n).names(c.t, at, 10) {
					if !servers[crowd][who] {
						c.t.Errorf("%s is led by %s to %s, want %v", n.Name, name, who, servers[crowd])
					}
				}
			}
		}
	}
	for _, n := range c.Nodes {
		testnet.Eventually(c.t, time.Minute, n.Name+" has the pods that there are, and no others", func() bool {
			time.Sleep(200 * time.Millisecond)
			return strings.Count(c.llcli(n, "get", "endpoints", "-o", "json"), `"crowd`) >= pods[n.Name] && c.counted(n) == pods[n.Name]
		})
		if health := c.llcli(n, "health"); !strings.HasPrefix(health, "ok") {
			c.t.Errorf("%s: %s", n.Name, health)
		}
	}
}

// holds waits until a node's daemon has exactly the required objects.
func (c *chaos) holds(n *testk8s.Node, want map[string][]string) {
	c.t.Helper()
	var got map[string][]string
	defer func() {
		if c.t.Failed() {
			c.t.Logf("%s holds\n%v, want\n%v", n.Name, got, want)
		}
	}()
	soon(c.t, fmt.Sprintf("%s holds %d frontends, of the Services that there are", n.Name, len(want)), func() bool {
		time.Sleep(100 * time.Millisecond)
		got = c.held(n)
		return maps.EqualFunc(got, want, slices.Equal)
	})
}

// model returns the frontends that a node should have for the test's Services, and the servers
// behind each.
func (c *chaos) model(n *testk8s.Node, backends map[string][]netip.Addr) map[string][]string {
	want := map[string][]string{}
	for name, crowd := range c.services {
		svc := c.getService(name)
		at := clusterIPs(svc, 0)
		if svc.Spec.Ports[0].NodePort != 0 {
			at = append(at, nodePorts(n, svc, 0)...)
		}
		for _, at := range at {
			servers := []string{}
			for _, ip := range backends[crowd] {
				if ip.Is4() == at.Addr().Is4() {
					servers = append(servers, netip.AddrPortFrom(ip, 8080).String())
				}
			}
			slices.Sort(servers)
			want[at.String()+"/tcp"] = servers
		}
	}
	return want
}

// held returns the objects of a node's daemon, with the servers that get new connections.
func (c *chaos) held(n *testk8s.Node) map[string][]string {
	c.t.Helper()
	var objects []struct {
		Name string
		Spec api.ServiceSpec
	}
	if text := c.llcli(n, "get", "services", "--labels", "namespace="+c.name, "-o", "json"); json.Unmarshal([]byte(text), &objects) != nil {
		c.t.Fatalf("%s: llcli get services: %s", n.Name, text)
	}
	got := map[string][]string{}
	for _, o := range objects {
		for _, frontend := range o.Spec.Frontends {
			at, _, _ := strings.Cut(frontend, "/")
			servers := []string{}
			for _, b := range o.Spec.Backends {
				if netip.MustParseAddrPort(b.Address).Addr().Is4() == netip.MustParseAddrPort(at).Addr().Is4() && (b.State == "" || b.State == "active") {
					servers = append(servers, b.Address)
				}
			}
			slices.Sort(servers)
			got[frontend] = servers
		}
	}
	return got
}

// counted returns how many pods of the test a node's daemon has.
func (c *chaos) counted(n *testk8s.Node) (count int) {
	for line := range strings.Lines(c.llcli(n, "k8s", "pods")) {
		if strings.HasPrefix(line, c.name+" ") && strings.Contains(line, " crowd") {
			count++
		}
	}
	return count
}
