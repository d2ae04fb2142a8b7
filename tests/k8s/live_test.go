// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testk8s"
	"github.com/loxilight/loxilight/internal/testnet"
)

// loads starts requests from a pod and a node to a Service, and from outside through node ports.
func (p *space) loads(svc *testk8s.Object, from *testk8s.Object) []*load {
	p.t.Helper()
	var doors []netip.AddrPort
	for _, n := range p.Nodes {
		doors = append(doors, nodePort(n, svc, 0))
	}
	for _, door := range doors {
		serves(p.t, p.outside(), door, 2)
	}
	inside := p.inside(from)
	serves(p.t, inside, clusterIP(svc, 0), 2)
	return []*load{startLoad(inside, clusterIP(svc, 0)), startLoad(on(p.Nodes[1]), clusterIP(svc, 0)), startLoad(p.outside(), doors...)}
}

func endAll(t *testing.T, loads []*load) {
	t.Helper()
	for _, l := range loads {
		l.end(t)
	}
}

// more waits until every load has made the given number of further requests.
func more(t *testing.T, loads []*load, requests int) {
	t.Helper()
	for _, l := range loads {
		want := l.count() + requests
		testnet.Eventually(t, time.Minute, "requests continue", func() bool { return l.count() >= want })
	}
}

// TestRollingUpdate: all servers are replaced, and no request is lost.
func TestRollingUpdate(t *testing.T) {
	p := newSpace(t)
	before := p.web("web", 3, "")
	svc := p.service("web", "type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	from := p.pod("client", "node3", "role: client", "")
	loads := p.loads(svc, from)
	if _, err := p.Kubectl("", "-n", p.name, "rollout", "restart", "deployment/web"); err != nil {
		t.Fatal(err)
	}
	p.rolledOut(t, p.name, "deployment/web")
	more(t, loads, 50)
	endAll(t, loads)
	old := map[string]bool{}
	for _, o := range before {
		old[o.Metadata.Name] = true
	}
	for _, o := range p.ReadyPods(t, p.name, "app%3Dweb", 3) {
		if old[o.Metadata.Name] {
			t.Errorf("%s was not exchanged", o.Metadata.Name)
		}
	}
}

// longLived is a connection that sends requests repeatedly.
type longLived struct {
	conn net.Conn
	r    *bufio.Reader
}

func openLongLived(t *testing.T, c client, server netip.AddrPort) *longLived {
	t.Helper()
	conn, err := c.connect(server)
	if err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // it may be closed already
	return &longLived{conn, bufio.NewReader(conn)}
}

// ask returns the name of the server that answers.
func (l *longLived) ask() (string, error) {
	if err := l.conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprint(l.conn, "GET /hostname HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return "", err
	}
	length := 0
	for {
		line, err := l.r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if line = strings.TrimSpace(line); line == "" {
			break
		}
		_, _ = fmt.Sscanf(line, "Content-Length: %d", &length) // no match in other lines
	}
	b := make([]byte, length)
	for n := 0; n < length; {
		m, err := l.r.Read(b[n:])
		if err != nil {
			return "", err
		}
		n += m
	}
	return string(b), nil
}

// disturb runs load and long-lived connections while something happens to the cluster.
func disturb(t *testing.T, happens func(p *space)) {
	p := newSpace(t)
	p.web("web", 3, "")
	svc := p.service("web", "type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	from := p.pod("client", "node3", "role: client", "")
	loads := p.loads(svc, from)
	kept := []*longLived{openLongLived(t, p.inside(from), clusterIP(svc, 0)), openLongLived(t, p.outside(), nodePort(p.Nodes[0], svc, 0))}
	names := make([]string, len(kept))
	for i, l := range kept {
		var err error
		if names[i], err = l.ask(); err != nil {
			t.Fatal(err)
		}
	}
	happens(p)
	more(t, loads, 50)
	endAll(t, loads)
	for i, l := range kept {
		if name, err := l.ask(); err != nil || name != names[i] {
			t.Errorf("an existing connection: %q, %v; want %s", name, err, names[i])
		}
	}
	// The cluster works: later changes take effect.
	p.pod("later", "node1", "app: later", "")
	later := p.service("later", "selector: {app: later}, ports: [{port: 80, targetPort: 8080}]")
	serves(t, p.inside(from), clusterIP(later, 0), 1)
}

// processes returns the PIDs of a program on a node, in the node's PID namespace, without the
// controller's, which may be on any node.
func (s *site) processes(t *testing.T, n *testk8s.Node, program string) (pids []int) {
	t.Helper()
	out, err := n.Run("sh", "-c", fmt.Sprintf(`for p in /proc/[0-9]*; do [ "$(readlink $p/exe)" = %s ] && ! grep -q -e --controller $p/cmdline && echo ${p#/proc/}; done; true`, program))
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(out) {
		var pid int
		if _, err := fmt.Sscan(word, &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// kill kills a program on nodes with SIGKILL, and waits until it runs again.
func (s *site) kill(t *testing.T, program string, nodes ...*testk8s.Node) {
	t.Helper()
	for _, n := range nodes {
		pids := s.processes(t, n, program)
		if len(pids) != 1 {
			t.Fatalf("%s: processes %v of %s, want one", n.Name, pids, program)
		}
		n.MustRun(t, "kill", "-9", fmt.Sprint(pids[0]))
		testnet.Eventually(t, time.Minute, n.Name+" has another "+program, func() bool {
			again := s.processes(t, n, program)
			return len(again) == 1 && again[0] != pids[0]
		})
	}
}

func TestDaemonKilled(t *testing.T) {
	disturb(t, func(p *space) { p.kill(t, "/usr/sbin/loxilightd", p.Nodes...) })
	need(t).rolledOut(t, "kube-system", "daemonset/loxilight")
}

func TestAgentKilled(t *testing.T) {
	disturb(t, func(p *space) { p.kill(t, "/usr/sbin/loxilight-agent", p.Nodes...) })
}

// TestUpgrade replaces all of loxilight, node by node.
func TestUpgrade(t *testing.T) {
	disturb(t, func(p *space) {
		if _, err := p.Kubectl("", "-n", "kube-system", "rollout", "restart", "daemonset/loxilight"); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Kubectl("", "-n", "kube-system", "rollout", "status", "daemonset/loxilight", "--timeout=115s"); err != nil {
			t.Fatal(err)
		}
	})
}

// TestAPIServerRestarts: the API server stops, and starts again; agents follow within 30 s.
func TestAPIServerRestarts(t *testing.T) {
	disturb(t, func(p *space) {
		p.Kill("kube-apiserver")
		time.Sleep(5 * time.Second) // the time without an API server
		p.StartAPIServer(t)
	})
}

// TestNodeDrained: the pods of a drained node move elsewhere, and no request is lost.
func TestNodeDrained(t *testing.T) {
	p := newSpace(t)
	p.web("web", 3, "")
	p.apply("{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: web}, spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}}")
	svc := p.service("web", "type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: http}]")
	from := p.pod("client", "node3", "role: client", "")
	loads := p.loads(svc, from)
	if out, err := p.Kubectl("", "drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=100s", "--pod-selector=app=web"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	defer func() {
		if _, err := p.Kubectl("", "uncordon", "node1"); err != nil {
			t.Error(err)
		}
	}()
	for _, o := range p.ReadyPods(t, p.name, "app%3Dweb", 3) {
		if o.Spec.NodeName == "node1" {
			t.Errorf("%s is on the drained node", o.Metadata.Name)
		}
	}
	more(t, loads, 50)
	endAll(t, loads)
}

// TestTerminating: a terminating server keeps its connections, gets no new ones as long as there is
// another server, and serves if it is the last.
func TestTerminating(t *testing.T) {
	p := newSpace(t)
	slow := "  terminationGracePeriodSeconds: 30\n"
	for _, name := range []string{"first", "second"} {
		p.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {name: %[1]s, app: web}}
spec:
  nodeName: node2
%[3]s  containers:
    - {name: web, image: %[2]s, imagePullPolicy: Never, args: [netexec, --delay-shutdown=25], readinessProbe: {httpGet: {path: /hostname, port: 8080}, periodSeconds: 1}}`, name, testk8s.Agnhost, slow))
	}
	p.ReadyPods(t, p.name, "app%3Dweb", 2)
	svc := p.service("web", "selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	c := on(p.Nodes[0])
	serves(t, c, clusterIP(svc, 0), 2)
	var kept *longLived
	soon(t, "a connection to the first one", func() bool {
		kept = openLongLived(t, c, clusterIP(svc, 0))
		name, err := kept.ask()
		return err == nil && name == "first"
	})
	for _, name := range []string{"first", "second"} {
		if _, err := p.Kubectl("", "-n", p.name, "delete", "pod", name, "--wait=false"); err != nil {
			t.Fatal(err)
		}
		if name == "first" {
			soon(t, "new connections go to the second one", func() bool {
				seen := c.names(t, clusterIP(svc, 0), 10)
				return seen["second"] == 10
			})
			if name, err := kept.ask(); err != nil || name != "first" {
				t.Errorf("the existing connection: %q, %v", name, err)
			}
		}
	}
	soon(t, "both are about to go", func() bool {
		all, err := p.List("/api/v1/namespaces/" + p.name + "/pods?labelSelector=app%3Dweb")
		return err == nil && len(all) == 2 && all[0].Metadata.DeletionTimestamp != "" && all[1].Metadata.DeletionTimestamp != ""
	})
	serves(t, c, clusterIP(svc, 0), 2) // without other servers, both serve
	for _, name := range []string{"first", "second"} {
		if _, err := p.Kubectl("", "-n", p.name, "delete", "pod", name, "--wait=false", "--force", "--grace-period=0"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPodTakenOut: a pod that is no longer a server of a Service, but still runs, keeps its
// connections, even if no server is left for new ones, and when the agents and the daemons are
// killed.
func TestPodTakenOut(t *testing.T) {
	p := newSpace(t)
	for i, name := range []string{"first", "second"} {
		p.pod(name, p.Nodes[i].Name, "app: web", "")
	}
	svc := p.service("web", "selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	c := on(p.Nodes[2])
	serves(t, c, clusterIP(svc, 0), 2)
	kept := openLongLived(t, c, clusterIP(svc, 0))
	who, err := kept.ask()
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"first": "second", "second": "first"}[who]
	takeOut := func(pod string) {
		if _, err := p.Kubectl("", "-n", p.name, "label", "pod", pod, "app-"); err != nil {
			t.Fatal(err)
		}
	}
	takeOut(who)
	soon(t, "new connections go to the other one", func() bool { return c.names(t, clusterIP(svc, 0), 10)[other] == 10 })
	if name, err := kept.ask(); err != nil || name != who {
		t.Errorf("the existing connection: %q, %v, want %q", name, err, who)
	}
	takeOut(other)
	soon(t, "no server is left", func() bool {
		conn, err := c.connect(clusterIP(svc, 0))
		if err == nil {
			conn.Close() // only the attempt counts
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if name, err := kept.ask(); err != nil || name != who {
		t.Errorf("the existing connection, with no server left: %q, %v, want %q", name, err, who)
	}
	last := p.pod("last", p.Nodes[0].Name, "app: web", "")
	for _, program := range []string{"/usr/sbin/loxilight-agent", "/usr/sbin/loxilightd"} {
		p.kill(t, program, p.Nodes...)
		serves(t, c, clusterIP(svc, 0), 1)
		p.rolledOut(t, "kube-system", "daemonset/loxilight")
		if name, err := kept.ask(); err != nil || name != who {
			t.Errorf("the existing connection, after kill -9 of %s: %q, %v, want %q", program, name, err, who)
		}
	}
	if seen := c.names(t, clusterIP(svc, 0), 10); seen[last.Metadata.Name] != 10 {
		t.Errorf("new connections go to %v, want %s alone", seen, last.Metadata.Name)
	}
}

// TestConfigurationStays: without loxilight's pod, a node keeps its network and its configuration
// for the runtime, and pods can be deleted.
func TestConfigurationStays(t *testing.T) {
	p := newSpace(t)
	victim := p.pod("victim", "node2", "role: victim", "")
	server := p.pod("server", "node2", "app: web", "")
	svc := p.service("web", "selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	serves(t, on(p.Nodes[0]), clusterIP(svc, 0), 1)
	p.without("node2")
	if out, err := p.Nodes[1].Run("cat", "/etc/cni/net.d/10-loxilight.conflist"); err != nil || !strings.Contains(out, "loxilight-cni") {
		t.Errorf("the configuration is %q, %v", out, err)
	}
	serves(t, on(p.Nodes[0]), clusterIP(svc, 0), 1)
	if name, err := on(p.Nodes[2]).get(netip.AddrPortFrom(server.Status.PodIP, 8080), "/hostname"); err != nil || name != "server" {
		t.Errorf("the pod: %q, %v", name, err)
	}
	begin := time.Now()
	if _, err := p.Kubectl("", "-n", p.name, "delete", "pod", victim.Metadata.Name, "--timeout=30s"); err != nil {
		t.Errorf("a pod does not go without the daemon: %v", err)
	}
	t.Logf("a pod went in %s", time.Since(begin))
}
