// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestCleanNode has a namespace with what kube-proxy and other plugins leave, beside what
// others have: the script says what it would do, does it, and finds nothing more.
func TestCleanNode(t *testing.T) {
	for _, program := range []string{"nft", "iptables", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v (.ci/setup test installs it)", err)
		}
	}
	ns := testnet.New(t, "node")
	conf := t.TempDir()
	for name, text := range map[string]string{
		"05-other.conflist": `{"plugins":[{"type":"bridge"}]}`, "10-loxilight.conflist": `{"plugins":[{"type": "loxilight-cni"}]}`, "readme": "x",
	} {
		if err := os.WriteFile(filepath.Join(conf, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{
		"nft add table ip kube-proxy", "nft add table ip6 kube-proxy", "nft add table ip mine",
		"iptables -t nat -N KUBE-SERVICES", "iptables -t nat -N KUBE-SVC-ABC", "iptables -t nat -A PREROUTING -j KUBE-SERVICES", "iptables -t nat -A KUBE-SERVICES -d 10.96.0.1 -j KUBE-SVC-ABC",
		"iptables -t nat -A PREROUTING -p tcp --dport 8080 -j DNAT --to 192.0.2.1", "iptables -N KUBE-FIREWALL", "iptables -A INPUT -j KUBE-FIREWALL",
		"ip link add cni0 type bridge", "ip link add br0 type bridge",
	} {
		words := strings.Fields(line)
		ns.Run(t, words[0], words[1:]...)
	}
	run := func(args ...string) string {
		t.Helper()
		return ns.Run(t, "unshare", append([]string{"--mount", "sh", "-c", `mount -t sysfs sysfs /sys && CNI_CONF_DIR=$1 exec sh ../../configs/kubernetes/clean-node.sh $2`, "sh", conf}, args...)...)
	}
	state := func() string {
		out := ns.Run(t, "sh", "-c", "nft list tables | grep -v -e nat -e filter; iptables-save | grep -v ^#; ip -br link; ls "+conf)
		return out
	}
	before := state()
	said := run()
	for _, want := range []string{"nft delete table ip kube-proxy", "nft delete table ip6 kube-proxy", "iptables: 2 chains", "ip link delete cni0", "05-other.conflist"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if now := state(); now != before {
		t.Errorf("it changed something:\n%s\nbefore:\n%s", now, before)
	}
	run("--do")
	after := state()
	for _, gone := range []string{"kube-proxy", "KUBE-SERVICES", "KUBE-SVC", "cni0", "05-other.conflist\n"} {
		if strings.Contains(after, gone) {
			t.Errorf("%q is still there:\n%s", gone, after)
		}
	}
	for _, stays := range []string{"table ip mine", "-j KUBE-FIREWALL", ":KUBE-FIREWALL", "--to-destination 192.0.2.1", "br0", "10-loxilight.conflist", "readme", "05-other.conflist.replaced"} {
		if !strings.Contains(after, stays) {
			t.Errorf("%q is gone:\n%s", stays, after)
		}
	}
	if said := run("--do"); said != "" {
		t.Errorf("it finds more: %s", said)
	}
}
