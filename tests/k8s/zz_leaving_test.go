// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testk8s"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/tools/chart"
)

// The tests in this file remove loxilight, and install it again: they run last.

// leaving is the label of nodes that loxilight leaves.
const leaving = "loxilight.io/leave"

// without removes the DaemonSet's pod from a node until the end of the test.
func (p *space) without(node string) {
	p.t.Helper()
	label := func(value string) error {
		return p.API.Patch("/api/v1/nodes/"+node, `{"metadata":{"labels":{"`+leaving+`":`+value+`}}}`)
	}
	if err := label(`"yes"`); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := label("null"); err != nil {
			p.t.Error(err)
		}
		p.rolledOut(p.t, "kube-system", "daemonset/loxilight")
	})
	testnet.Eventually(p.t, time.Minute, "the daemon is gone", func() bool {
		return len(p.processes(p.t, p.Node(node), "/usr/sbin/loxilightd")) == 0
	})
}

// TestAgentAlone: on a node that runs the daemon by itself, as with the Debian package,
// loxilight-agent.yaml is all that the cluster needs.
func TestAgentAlone(t *testing.T) {
	p := newSpace(t)
	n := p.Nodes[2]
	server := p.pod("web", n.Name, "app: web", "")
	svc := p.service("web", "selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	p.without(n.Name)
	text, err := chart.Render("../../configs/kubernetes/chart", chart.Release{Name: "alone", Namespace: "kube-system"}, map[string]any{
		"daemon":       map[string]any{"enabled": false},
		"agent":        map[string]any{"config": map[string]any{"apiServer": p.APIServer()}},
		"nodeSelector": map[string]any{leaving: "yes"},
	})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(p.programs, "alone.yaml")
	if err := os.WriteFile(config, []byte("tables: {connections: 65536, services: 4096, backends: 16384, rules: 4096, prefixes: 65536}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// The groups that the Debian package creates.
	n.MustRun(t, "sh", "-c", "cp /etc/group /run/alone.group; echo loxilight:x:64250: >>/run/alone.group; echo loxilight-admin:x:64251: >>/run/alone.group; mount --bind /run/alone.group /etc/group")
	t.Cleanup(func() { n.MustRun(t, "sh", "-c", "umount /etc/group; rm /run/alone.group") })
	if _, err := n.Run("sh", "-c", "setsid "+filepath.Join(p.programs, "loxilightd")+" --config "+config+" > /run/alone.log 2>&1 < /dev/null & echo $! > /run/alone.pid"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := p.Kubectl(text, "delete", "-f", "-"); err != nil {
			t.Error(err)
		}
		if _, err := n.Run("sh", "-c", "kill $(cat /run/alone.pid)"); err != nil {
			t.Error(err)
		}
		soon(t, "the daemon has ended", func() bool {
			return len(p.processes(t, n, filepath.Join(p.programs, "loxilightd"))) == 0
		})
	})
	p.Apply(t, text)
	p.rolledOut(t, "kube-system", "daemonset/loxilight-agent")
	later := p.pod("later", n.Name, "app: web", "")
	for _, c := range []client{on(p.Nodes[0]), p.inside(later)} {
		serves(t, c, clusterIP(svc, 0), 2)
	}
	if name, err := p.inside(later).get(netip.AddrPortFrom(server.Status.PodIP, 8080), "/hostname"); err != nil || name != "web" {
		t.Errorf("the existing pod: %q, %v", name, err)
	}
}

// TestStateLost: a node whose daemon has lost its desired state forwards as before, gets its
// configuration again, and attaches pods. After that, the daemon deletes nothing for ten minutes,
// so this test runs late.
func TestStateLost(t *testing.T) {
	disturb(t, func(p *space) {
		n := p.Nodes[1]
		n.MustRun(t, "sh", "-c", "rm /var/lib/loxilight/state.db*")
		p.kill(t, "/usr/sbin/loxilightd", n)
		begin := time.Now()
		after := p.pod("after", n.Name, "app: after", "")
		t.Logf("a pod is Ready %s after the daemon's state was lost", time.Since(begin).Round(100*time.Millisecond))
		for _, c := range []client{p.inside(after), on(n)} {
			serves(t, c, clusterIP(p.getService("web"), 0), 3)
		}
		for _, ip := range after.Status.PodIPs {
			if name, err := on(p.Nodes[0]).get(netip.AddrPortFrom(ip.IP, 8080), "/hostname"); err != nil || name != "after" {
				t.Errorf("node1 asks the new pod at %s: %q, %v", ip.IP, name, err)
			}
		}
	})
}

// TestLeaving: loxilight leaves a node, and nothing of ours remains on it; then loxilight's pods
// are removed everywhere, which does not affect forwarding; then all are started again.
func TestLeaving(t *testing.T) {
	p := newSpace(t)
	server := p.pod("web", "node2", "app: web", "")
	svc := p.service("web", "selector: {app: web}, ports: [{port: 80, targetPort: 8080}]")
	serves(t, on(p.Nodes[0]), clusterIP(svc, 0), 1)
	manifest := p.manifest(t)
	t.Cleanup(func() { p.nodesReady(t) })
	p.leave(p.Nodes[2])

	if _, err := p.Kubectl(manifest, "delete", "-f", "-", "--timeout=60s"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Apply(t, manifest) })
	for _, n := range p.Nodes {
		testnet.Eventually(t, time.Minute, "no daemon is left on "+n.Name, func() bool { return len(p.processes(t, n, "/usr/sbin/loxilightd")) == 0 })
	}
	serves(t, on(p.Nodes[0]), clusterIP(svc, 0), 1)
	if name, err := on(p.Nodes[0]).get(netip.AddrPortFrom(server.Status.PodIP, 8080), "/hostname"); err != nil || name != "web" {
		t.Errorf("the pod: %q, %v", name, err)
	}
}

// leave makes loxilight leave a node until the end of the test, as documented.
func (p *space) leave(n *testk8s.Node) {
	t := p.t
	t.Helper()
	p.without(n.Name)
	text, err := os.ReadFile("../../configs/kubernetes/loxilight-leave.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pod := strings.ReplaceAll(string(text), "NODE", n.Name)
	p.Apply(t, pod)
	t.Cleanup(func() {
		if _, err := p.Kubectl(pod, "delete", "-f", "-", "--timeout=60s"); err != nil {
			t.Error(err)
		}
	})
	if _, err := p.Kubectl("", "-n", "kube-system", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/loxilight-leave-"+n.Name, "--timeout=110s"); err != nil {
		t.Fatal(err)
	}
	// The kernel itself has maps.debug and progs.debug in each BPF file system.
	left := n.MustRun(t, "sh", "-c", "ls -A /sys/fs/bpf /etc/cni/net.d | grep -v debug$; ls /opt/cni/bin | grep loxilight; ls /run/netns | grep -v ^cni-; ip -br link | grep -v -e ^lo -e ^eth0; { ip route; ip -6 route; } | grep -v -e ^default -e ^10.222 -e ^fd00:222 -e ^fe80; true")
	for line := range strings.Lines(left) {
		if word := strings.TrimSpace(line); word != "" && !strings.HasSuffix(word, ":") {
			t.Errorf("left on the node: %q\nof\n%s", word, left)
		}
	}
}
