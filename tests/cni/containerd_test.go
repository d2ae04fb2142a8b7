// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testnet"
)

// containerdScript runs a container with a containerd of its own, in a mount namespace that
// contains only our plugin and our configuration. DIR is the test's directory.
const containerdScript = `
set -e
mount --make-rprivate /
mkdir -p /etc/cni /opt
mount -t tmpfs none /etc/cni
mount -t tmpfs none /opt
mkdir -p /etc/cni/net.d /opt/cni/bin
cp DIR/10-loxilight.conflist /etc/cni/net.d/
cp PLUGIN /opt/cni/bin/
containerd --config DIR/config.toml > DIR/log 2>&1 &
trap 'kill $!; wait $!' EXIT
for i in $(seq 100); do [ -S DIR/sock ] && break; sleep 0.1; done
timeout 40 ctr --address DIR/sock run --rm --cni --rootfs DIR/rootfs real /bin/busybox sh -c '
busybox ip addr show eth0
busybox ping -c 1 -W 3 10.73.3.1
busybox ping -c 1 -W 3 192.0.2.77
busybox ping -c 1 -W 3 2001:db8:2::77'
`

const containerdConfig = `version = 2
root = "DIR/root"
state = "DIR/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "DIR/sock"
`

// TestContainerd: a real containerd, which identifies the network namespace by a process, runs a
// real container with the plugin. The container reaches the gateway and the machine outside, and
// leaves nothing behind.
func TestContainerd(t *testing.T) {
	for _, program := range []string{"containerd", "ctr", "runc", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v (.ci/setup test installs it)", err)
		}
	}
	s := newSite(t)
	dir, err := os.MkdirTemp("", "ctd-") // short, for the sockets in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	fill := strings.NewReplacer("DIR", dir, "PLUGIN", programs.CNI).Replace
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"rootfs/bin", "rootfs/proc", "rootfs/sys", "rootfs/dev", "rootfs/etc"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string][]byte{
		"rootfs/bin/busybox": binary, "config.toml": []byte(fill(containerdConfig)), "10-loxilight.conflist": s.shipped(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-c", fill(containerdScript))
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		t.Fatalf("%v\n%s\n%s", err, out, log)
	}
	for _, want := range []string{"inet 10.73.3.3/24", "inet6 2001:db8:73::3/64"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if n := strings.Count(string(out), "1 packets received"); n != 3 {
		t.Errorf("%d of 3 pings were answered:\n%s", n, out)
	}
	testnet.Eventually(t, 20*time.Second, "the link is gone with the container", func() bool { return len(s.devices()) == 0 })
	s.wantPods(0)
}
