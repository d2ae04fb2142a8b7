// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
)

// documented returns the commands of a section of docs/operations.md, without its subsections.
func documented(t *testing.T, title string) (commands []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## "+title+"\n")
	if !ok {
		t.Fatalf("docs/operations.md has no section %q", title)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	section, _, _ = strings.Cut(section, "\n### ")
	for line := range strings.Lines(section) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands = append(commands, strings.TrimSuffix(command, "\n"))
		}
	}
	return commands
}

// handNode is a node that is configured by commands.
type handNode struct {
	*testdaemon.Daemon
	t       *testing.T
	ns      *testnet.NS
	prelude string
}

// newHandNode starts a daemon with an empty configuration, with directories of its own for the
// plugins, configurations and results of operators and runtimes.
func newHandNode(t *testing.T, ns *testnet.NS, cnitool string) *handNode {
	t.Helper()
	name := testnet.UniqueName("switch")
	n := &handNode{t: t, ns: ns, Daemon: testdaemon.New(t, ns, programs, "switch: {namespace: "+name+"}", siteTables)}
	t.Cleanup(func() {
		if (&site{name: name}).hasSwitch() {
			testnet.DeleteNamed(t, name)
		}
	})
	dir := t.TempDir()
	n.prelude = fmt.Sprintf(`set -e
mkdir -p /etc/cni /opt /var/lib/cni %[1]s/etc/net.d %[1]s/opt/cni/bin %[1]s/results
mount --bind %[1]s/etc /etc/cni; mount --bind %[1]s/opt /opt; mount --bind %[1]s/results /var/lib/cni
cp %[2]s /opt/cni/bin/
export PATH=%[3]s:%[4]s:$PATH LOXILIGHT_SOCKET=%[5]s
`, dir, programs.CNI, filepath.Dir(programs.CLI), filepath.Dir(cnitool), n.Socket)
	n.Start()
	return n
}

// types runs commands in one shell session.
func (n *handNode) types(commands ...string) {
	n.t.Helper()
	out, err := n.ns.TryRun("unshare", "-m", "sh", "-c", n.prelude+"set -x\n"+strings.Join(commands, "\n"))
	if err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	n.t.Log(out)
}

// TestByHand runs the commands of docs/operations.md, on two nodes.
//
//	[node1] eth0 192.0.2.1 ── 192.0.2.2 eth0 [node2]
func TestByHand(t *testing.T) {
	testnet.RequireRoot(t)
	cnitool := filepath.Join(t.TempDir(), "cnitool")
	if out, err := exec.Command("go", "build", "-o", cnitool, "github.com/containernetworking/cni/cnitool").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ns := [2]*testnet.NS{testnet.New(t, "hand1"), testnet.New(t, "hand2")}
	testnet.Veth(t, testnet.Port{NS: ns[0], Name: "eth0", Addrs: []string{"192.0.2.1/24"}}, testnet.Port{NS: ns[1], Name: "eth0", Addrs: []string{"192.0.2.2/24"}})
	commands := documented(t, "A node with pods, by hand")
	pod := testnet.New(t, "pod").Name() // ip netns add would create it in the shell's mount namespace only
	var here, there []string
	exchange := strings.NewReplacer("192.0.2.2", "192.0.2.1", "10.244.1.", "10.244.2.", "10.244.2.", "10.244.1.", "8:244:1:", "8:244:2:", "8:244:2:", "8:244:1:", "node2", "node1")
	attached := false
	for _, c := range commands {
		c = strings.ReplaceAll(c, "pod1", pod)
		switch {
		case strings.HasPrefix(c, "ip netns add "):
			attached = true
			continue
		case strings.HasPrefix(c, "ip netns delete "):
			continue
		case !attached:
			there = append(there, exchange.Replace(c))
		}
		here = append(here, c)
	}
	if len(there) < 6 || len(here)-len(there) < 10 {
		t.Fatalf("commands of one node %q, of the other %q", here, there)
	}
	newHandNode(t, ns[1], cnitool).types(there...)
	n := newHandNode(t, ns[0], cnitool)
	n.types(here...)
	if repairs := n.Repairs(); repairs != 0 {
		t.Errorf("the commands count as %d external changes:\n%s", repairs, n.Process().Output())
	}

	// After a restart the daemon finds a DEL that came while it was down, wherever its state is.
	const attach = "CNI_PATH=/opt/cni/bin NETCONFPATH=/etc/cni/net.d cnitool %s loxilight /run/netns/%s"
	n.types("llcli podnetwork add default --subnet 10.244.1.0/24", "llcli cni install", fmt.Sprintf(attach, "add", pod))
	if got := n.LLCLI("get", "pods"); !strings.Contains(got, "10.244.1.") {
		t.Fatalf("no pod: %s", got)
	}
	n.Stop()
	n.types(fmt.Sprintf(attach, "del", pod))
	n.Start()
	testnet.Eventually(t, 20*time.Second, "the pod is removed, and nothing queued", func() bool {
		left, err := filepath.Glob(filepath.Join(n.StateDir(), "cni-queue", "*.json"))
		return err == nil && len(left) == 0 && !strings.Contains(n.LLCLI("get", "pods"), "10.244.1.")
	})
	n.LLCLI("delete", "podnetwork", "default")
}
