// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/loxilight/loxilight/internal/testk8s"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/tools/chart"
)

// pools are the addresses that load balancers get.
var pools = map[*testk8s.Family]string{testk8s.IPv4: "203.0.113.0/28", testk8s.IPv6: "2001:db8:113::/124"}

// site is the cluster with loxilight on it.
//
//	outside 192.0.2.10 ── switch 10.222.0.1 ──┬── node1 10.222.0.11  control plane, pods
//	                      router, no route    ├── node2 10.222.0.12  pods
//	                      to pods or services └── node3 10.222.0.13  pods
//
// The nodes reach each other's pods through a tunnel.
type site struct {
	*testk8s.Cluster
	programs string // directory of our programs
	t        testnet.T
}

// newSite starts the cluster, installs loxilight with its chart, and waits until everything works
// together.
func newSite(t *all, p *testk8s.Programs, families []*testk8s.Family) *site {
	begin := time.Now()
	dir, err := os.MkdirTemp("", fmt.Sprintf("llk8s-%d-programs-", os.Getpid()))
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	for _, args := range [][]string{
		{"build", "-trimpath", "-ldflags", "-s -w -X main.version=test", "-o", dir + "/", "./loxilightd", "./llcli", "./loxilight-cni", "./loxilight-agent"},
		{"run", "./tools/image/make", "-bin", dir, "-o", filepath.Join(dir, "image.tar"), "-version", "test", "loxilightd", "llcli", "loxilight-cni", "loxilight-agent"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	t.Logf("loxilight's image is made after %s", time.Since(begin).Round(time.Second))
	s := &site{t: t, programs: dir}
	s.Cluster = testk8s.New(t, p, testk8s.Options{Nodes: 3, Families: families, Images: []string{filepath.Join(dir, "image.tar")}})
	t.Logf("the API server serves after %s", time.Since(begin).Round(time.Second))
	defer func() {
		if t.failed {
			t.Logf("%s", s.Logs(15))
			s.describe()
		}
	}()
	// The node that answers for a pool address is resolved in the nodes' network.
	for _, f := range s.Families {
		s.Switch.Run(t, "ip", "route", "add", pools[f], "dev", "br0")
	}
	s.Apply(t, s.manifest(t))
	s.InstallCoreDNS(t)
	s.nodesReady(t)
	t.Logf("all nodes are Ready after %s", time.Since(begin).Round(time.Second))
	s.rolledOut(t, "kube-system", "daemonset/loxilight")
	s.rolledOut(t, "kube-system", "deployment/loxilight-controller")
	s.rolledOut(t, "kube-system", "deployment/coredns")
	t.Logf("loxilight and CoreDNS serve after %s", time.Since(begin).Round(time.Second))
	return s
}

// manifest returns the manifest as a user renders it, with the settings of this cluster.
func (s *site) manifest(t testnet.T) string {
	t.Helper()
	var addresses []any
	for _, f := range s.Families {
		addresses = append(addresses, pools[f])
	}
	text, err := chart.Render("../../configs/kubernetes/chart", chart.Release{Name: "loxilight", Namespace: "kube-system"}, map[string]any{
		"daemon": map[string]any{"config": map[string]any{
			// Three daemons share one machine, so their tables are small.
			"tables": map[string]any{"connections": 65536, "services": 4096, "backends": 16384, "rules": 4096, "prefixes": 65536},
		}},
		"agent": map[string]any{"config": map[string]any{
			"apiServer":    s.APIServer(),
			"externalIPs":  map[string]any{"allowed": []any{"198.51.100.0/24", "2001:db8:7::/64"}},
			"loadBalancer": map[string]any{"pools": []any{map[string]any{"name": "test", "addresses": addresses}}},
		}},
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return text
}

// nodesReady waits until all nodes are Ready, and have a network.
func (s *site) nodesReady(t testnet.T) {
	t.Helper()
	testnet.Eventually(t, 4*time.Minute, "all nodes are Ready", func() bool {
		time.Sleep(100 * time.Millisecond)
		nodes, err := s.List("/api/v1/nodes")
		ready := 0
		for _, n := range nodes {
			if n.Is("Ready", "True") && !n.Is("NetworkUnavailable", "True") {
				ready++
			}
		}
		return err == nil && ready == len(s.Nodes)
	})
}

// rolledOut waits until the rollout of a Deployment or DaemonSet is complete.
func (s *site) rolledOut(t testnet.T, namespace, name string) {
	t.Helper()
	if _, err := s.Kubectl("", "-n", namespace, "rollout", "status", name, "--timeout=110s"); err != nil {
		t.Fatalf("%v", err)
	}
}

// llcli runs llcli on a node.
func (s *site) llcli(n *testk8s.Node, args ...string) string {
	out, err := n.Run(filepath.Join(s.programs, "llcli"), args...)
	if err != nil {
		out += fmt.Sprintf("\n%v", err)
	}
	return out
}

// describe logs the state of the cluster, for a test that failed.
func (s *site) describe() {
	for _, args := range [][]string{
		{"get", "nodes,pods,services,endpointslices", "-A", "-o", "wide"}, {"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"-n", "kube-system", "logs", "-l", "app.kubernetes.io/name=loxilight", "--all-containers", "--prefix", "--tail=30"},
	} {
		out, err := s.Kubectl("", args...)
		s.t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	for _, n := range s.Nodes {
		s.t.Logf("%s\n%s", n.Name, s.llcli(n, "status"))
	}
}

// hold keeps the cluster for inspection until it is interrupted.
func (s *site) hold() {
	s.t.Logf("the cluster is held, end it with SIGINT: %s", s.HowTo())
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	<-interrupted
}
