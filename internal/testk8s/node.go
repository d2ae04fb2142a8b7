// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

//go:embed node.sh
var nodeScript string

// Node is a machine of the cluster: its own namespaces, with containerd and a kubelet.
type Node struct {
	Name string
	IPs  []netip.Addr // in the order of the cluster's families
	NS   *testnet.NS  // its network

	c       *Cluster
	process *testnet.Process
	init    int // its process 1, as a process id in the machine's PID namespace
}

func (n *Node) dir() string { return filepath.Join(n.c.dir, n.Name) }

// path returns the path of one of the node's files, as seen from outside the node.
func (n *Node) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", n.init), name)
}

const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "@PAUSE@"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: @CA@}}
authorization: {mode: Webhook}
tlsCertFile: @CERT@.crt
tlsPrivateKeyFile: @CERT@.key
address: "@ALL@"
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /@CGROUP@
failCgroupV1: false
failSwapOn: false
clusterDNS: [@DNS@]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
volumePluginDir: /var/lib/kubelet/plugins
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
nodeStatusUpdateFrequency: 3s
nodeStatusReportFrequency: 30s
syncFrequency: 10s
`

// start starts the node.
func (n *Node) start() {
	t, c := n.c.t, n.c
	t.Helper()
	if err := os.MkdirAll(filepath.Join(n.dir(), "cgroup"), 0o755); err != nil {
		t.Fatalf("%s: %v", n.Name, err)
	}
	if err := makeCgroup(n.Name); err != nil {
		t.Fatalf("%s: cgroup: %v", n.Name, err)
	}
	fill := strings.NewReplacer("@PAUSE@", Pause, "@CA@", c.ca.path("ca.crt"), "@CERT@", c.ca.path(n.Name), "@CGROUP@", cgroupName()+"/"+n.Name, "@DNS@", c.Families[0].dnsService.String(), "@ALL@", c.everywhere()).Replace
	for name, text := range map[string]string{"node.sh": nodeScript, "containerd.toml": fill(containerdConfig), "kubelet.yaml": fill(kubeletConfig)} {
		if err := os.WriteFile(filepath.Join(n.dir(), name), []byte(text), 0o755); err != nil {
			t.Fatalf("%s: %v", n.Name, err)
		}
	}
	args := fmt.Sprintf("--config=%s/kubelet.yaml --kubeconfig=%s --hostname-override=%s --node-ip=%s --v=2", n.dir(), c.ca.path(n.Name+".kubeconfig"), n.Name, strings.Join(n.hosts(), ","))
	n.process = n.NS.Start(t, "env", "NODE="+n.Name, "DIR="+n.dir(), "KUBELET="+filepath.Join(c.p.Dir, "kubelet"), "ARGS="+args, "IMAGES="+strings.Join(c.images, " "),
		"unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--propagation", "private", "bash", filepath.Join(n.dir(), "node.sh"))
	testnet.Eventually(t, 20*time.Second, n.Name+" has a first process", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", n.process.PID()))
		if err == nil {
			_, err = fmt.Sscan(string(text), &n.init)
		}
		return err == nil
	})
}

// Run runs a program on the node, in all of the node's namespaces, and returns its standard output.
func (n *Node) Run(name string, args ...string) (string, error) {
	cmd := exec.Command("timeout", append([]string{"60", "nsenter", "--target", fmt.Sprint(n.init), "--net", "--mount", "--uts", "--ipc", "--pid", "--", name}, args...)...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %s %s: %w: %s", n.Name, name, strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}

// MustRun is Run for commands that must succeed.
func (n *Node) MustRun(t testnet.T, name string, args ...string) string {
	t.Helper()
	out, err := n.Run(name, args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// Kubelet returns the path of the kubelet program.
func (c *Cluster) Kubelet() string { return filepath.Join(c.p.Dir, "kubelet") }
