// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/local"
)

// cniNode is a node with its files for container runtimes.
type cniNode struct {
	*session
	t          *testing.T
	confs, bin string
}

func newCNINode(t *testing.T) *cniNode {
	t.Helper()
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}, program: "0\nloxilight-cni 1.2.3: CNI plugin of loxilight\n"}
	return &cniNode{s, t, t.TempDir(), t.TempDir()}
}

func (n *cniNode) write(dir, name, text string) string {
	n.t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// installed installs the plugin and its configuration.
func (n *cniNode) installed() *cniNode {
	n.t.Helper()
	n.write(n.bin, "loxilight-cni", "")
	if code, _, errs := n.run(n.t.Context(), "cni", "install", "--dir", n.confs); code != ExitDone {
		n.t.Fatal(errs)
	}
	return n
}

func (n *cniNode) status(args ...string) (int, string) {
	n.t.Helper()
	code, out, errs := n.run(n.t.Context(), append([]string{"cni", "status", "--dir", n.confs, "--plugin-dir", n.bin}, args...)...)
	return code, out + errs
}

func TestCNIStatus(t *testing.T) {
	n := newCNINode(t).installed()
	code, out := n.status()
	for _, want := range []string{
		"ready", "1.2.3", "instance default", "/run/loxilight/control.sock", "/var/lib/loxilight",
		filepath.Join(n.confs, "10-loxilight.conflist"), "PodNetwork default", filepath.Join(n.bin, "loxilight-cni") + ", 1.2.3",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if code != ExitDone || strings.Contains(out, "not ready") || strings.Contains(out, "not as") {
		t.Errorf("exit code %d: %s", code, out)
	}
	_, out = n.status("-o", "json")
	var s local.CNIState
	if err := json.Unmarshal([]byte(out), &s); err != nil || !s.Ready || len(s.Reasons) != 0 || s.Daemon == nil || !s.Daemon.Ready ||
		s.Daemon.StateDir != "/var/lib/loxilight" || s.Configuration == nil || !s.Configuration.Ours || s.Configuration.Network != "default" ||
		len(s.Plugins) != 1 || s.Plugins[0].Version != "1.2.3" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCNIStatusNotReady: each missing part is reported with a remedy, and affects the exit code.
func TestCNIStatusNotReady(t *testing.T) {
	const blue = `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"loxilight-cni","socket":"/srv/blue/control.sock"}]}`
	const lost = `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"loxilight-cni","stateDir":"/srv/elsewhere"}]}`
	for _, tt := range []struct {
		name string
		make func(n *cniNode)
		want []string
	}{
		{"nothing installed", func(*cniNode) {}, []string{"llcli cni install\n", "is not in ", "llcli cni install-plugin"}},
		{"no plugin", func(n *cniNode) { _ = os.Remove(filepath.Join(n.installed().bin, "loxilight-cni")) }, []string{"loxilight-cni is not in ", "install-plugin"}},
		{"a plugin that cannot be run", func(n *cniNode) { n.installed().program = "1\nno" }, []string{"reports no version", "install-plugin"}},
		{"no configuration", func(n *cniNode) { _ = os.RemoveAll(n.installed().confs) }, []string{"no configuration in ", "llcli cni install"}},
		{"another's configuration", func(n *cniNode) {
			_ = os.Remove(filepath.Join(n.installed().confs, "10-loxilight.conflist"))
			n.write(n.confs, "10-bridge.conf", `{"type":"bridge"}`)
		}, []string{"10-bridge.conf", "does not name loxilight-cni", "llcli cni install"}},
		{"a configuration of that name that is none", func(n *cniNode) { n.installed().write(n.confs, "10-loxilight.conflist", "{") },
			[]string{"10-loxilight.conflist is not a list of plugins", "llcli cni install --force"}},
		{"another one before ours", func(n *cniNode) { n.installed().write(n.confs, "05-bridge.conf", `{"type":"bridge"}`) }, []string{"05-bridge.conf", "sorts before", "rename it"}},
		{"of another daemon", func(n *cniNode) { n.installed().write(n.confs, "10-loxilight.conflist", blue) },
			[]string{"socket /srv/blue/control.sock differs from", "/run/loxilight/control.sock", "llcli cni install --force"}},
		{"of another folder", func(n *cniNode) { n.installed().write(n.confs, "10-loxilight.conflist", lost) },
			[]string{"stateDir /srv/elsewhere differs from", "/var/lib/loxilight", "llcli cni install --force"}},
		{"the daemon cannot", func(n *cniNode) {
			n.installed().daemon.fail[api.MethodCNI] = api.Errorf(api.ReasonUnavailable, "PodNetwork/default: there is none")
		}, []string{"PodNetwork/default: there is none"}},
		{"a configuration that the daemon refuses", func(n *cniNode) {
			n.installed().daemon.fail[api.MethodCNI] = api.Errorf(api.ReasonInvalid, "config: mtu: 7 is not between 576 and 65535")
		}, []string{"10-loxilight.conflist: config: mtu: 7"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newCNINode(t)
			tt.make(n)
			code, out := n.status()
			if code != ExitFailed || !strings.Contains(out, "not ready") {
				t.Errorf("exit code %d: %s", code, out)
			}
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
		})
	}
}

// TestCNIStatusOtherwiseWritten: a configuration with the contents of the usual one counts as usual
// even if its fields are in a different order, as when llcli cni keep takes it from a ConfigMap.
func TestCNIStatusOtherwiseWritten(t *testing.T) {
	n := newCNINode(t).installed()
	const text = `{"cniVersion":"1.0.0","cniVersions":["1.0.0","1.1.0"],"name":"loxilight","plugins":[
		{"capabilities":{"bandwidth":true,"ips":true,"mac":true,"portMappings":true},"network":"default","type":"loxilight-cni"%s}]}`
	n.write(n.confs, "10-loxilight.conflist", fmt.Sprintf(text, ""))
	if code, out := n.status(); code != ExitDone || strings.Contains(out, "not as") {
		t.Errorf("exit code %d: %s", code, out)
	}
	n.write(n.confs, "10-loxilight.conflist", fmt.Sprintf(text, `,"mtu":1400`))
	if code, out := n.status(); code != ExitDone || !strings.Contains(out, "not as llcli cni install writes it") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestCNIStatusAsks: the request to the daemon contains the configuration that runtimes use, or
// the given network.
func TestCNIStatusAsks(t *testing.T) {
	n := newCNINode(t).installed()
	n.write(n.confs, "10-loxilight.conflist", `{"cniVersion":"0.4.0","name":"mine","plugins":[{"type":"loxilight-cni","network":"blue","mtu":1400}]}`)
	if code, out := n.status(); code != ExitDone || !strings.Contains(out, "PodNetwork blue, not as llcli cni install writes it") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if got := n.daemon.asked; got != `{"cniVersion":"1.1.0","mtu":1400,"name":"mine","network":"blue","type":"loxilight-cni"}` {
		t.Errorf("asked about %s", got)
	}
	n.status("--network", "green")
	if got := n.daemon.asked; got != `{"cniVersion":"1.1.0","name":"loxilight","network":"green","type":"loxilight-cni"}` {
		t.Errorf("asked about %s", got)
	}
}

// TestCNIStatusLeadsToOurs: a configuration that sorts before ours may delegate to ours.
func TestCNIStatusLeadsToOurs(t *testing.T) {
	n := newCNINode(t).installed()
	n.write(n.confs, "00-many.conf", `{"type":"many","clusterNetwork":"/etc/cni/net.d/10-loxilight.conflist"}`)
	if code, out := n.status(); code != ExitDone || !strings.Contains(out, "00-many.conf") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestCNIStatusOfTheDaemonAlone(t *testing.T) {
	n := newCNINode(t)
	if code, out := n.status("--daemon"); code != ExitDone || strings.Contains(out, "configuration") {
		t.Errorf("exit code %d: %s", code, out)
	}
	n.daemon.fail[api.MethodCNI] = api.Errorf(api.ReasonUnavailable, "PodNetwork/default: there is none")
	if code, out := n.status("--daemon"); code != ExitFailed || !strings.Contains(out, "PodNetwork/default: there is none") {
		t.Errorf("exit code %d: %s", code, out)
	}
	n.daemon.fail[api.MethodCNI] = api.Errorf(api.ReasonDenied, "not root")
	if code, out := n.status("--daemon"); code != ExitFailed || !strings.Contains(out, "not root") {
		t.Errorf("not root: exit code %d: %s", code, out)
	}
}

// TestCNIStatusWithoutADaemon still reports the installed parts.
func TestCNIStatusWithoutADaemon(t *testing.T) {
	n := newCNINode(t).installed()
	n.daemon.away = client.ErrNotRunning
	code, out := n.status()
	if code != ExitUnreachable || !strings.Contains(out, "loxilight-cni, 1.2.3") || !strings.Contains(out, "10-loxilight.conflist") || !strings.Contains(out, "not ready") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestCNIStatusOtherVersion: a different version of the plugin is reported, but is not a failure,
// because the contract is the same.
func TestCNIStatusOtherVersion(t *testing.T) {
	n := newCNINode(t).installed()
	n.program = "0\nloxilight-cni 1.1.0: CNI plugin of loxilight\n"
	if code, out := n.status(); code != ExitDone || !strings.Contains(out, "loxilight-cni, 1.1.0; the daemon is 1.2.3: llcli cni install-plugin") {
		t.Errorf("exit code %d: %s", code, out)
	}
}
