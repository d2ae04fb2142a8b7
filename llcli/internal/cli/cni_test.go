// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
)

func TestCNIInstall(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	dir := filepath.Join(t.TempDir(), "net.d")
	path := filepath.Join(dir, "10-loxilight.conflist")
	shipped, err := os.ReadFile("../../../configs/10-loxilight.conflist")
	if err != nil {
		t.Fatal(err)
	}
	content := func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}

	s.daemon.fail[api.MethodCNI] = api.Errorf(api.ReasonUnavailable, "PodNetwork/default: there is none")
	code, _, errs := s.run(t.Context(), "cni", "install", "--dir", dir, "--timeout", "50ms")
	if code != ExitFailed || !strings.Contains(errs, "not installed: PodNetwork/default") {
		t.Errorf("not ready: exit code %d: %s", code, errs)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it is installed although no pod can be attached")
	}
	delete(s.daemon.fail, api.MethodCNI)

	code, out, errs := s.run(t.Context(), "cni", "install", "--dir", dir)
	if code != ExitDone || out != path+"\n" || errs != "" || content() != string(shipped) {
		t.Errorf("exit code %d: %s%s; the file is\n%s, want that in configs", code, out, errs, content())
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 1 {
		t.Errorf("files %q, %v", left, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode of the file: %v, %v", info, err)
	}

	code, _, errs = s.run(t.Context(), "cni", "install", "--dir", dir, "--network", "blue")
	if code != ExitFailed || !strings.Contains(errs, "--force") || content() != string(shipped) {
		t.Errorf("over another: exit code %d: %s", code, errs)
	}
	if err := os.WriteFile(filepath.Join(dir, "05-other.conf"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, errs = s.run(t.Context(), "cni", "install", "--dir", dir, "--network", "blue", "--force", "--instance", "two")
	if code != ExitDone || !strings.Contains(errs, "05-other.conf comes before it") {
		t.Errorf("with force: exit code %d: %s", code, errs)
	}
	for _, want := range []string{`"network": "blue"`, `"socket": "/run/loxilight-two/control.sock"`, `"stateDir": "/var/lib/loxilight-two"`} {
		if !strings.Contains(content(), want) {
			t.Errorf("no %s in %s", want, content())
		}
	}
	if code, _, errs := s.run(t.Context(), "cni", "install", "--dir", dir, "--file", filepath.Join(dir, "05-other.conf")); code != ExitFailed || !strings.Contains(errs, "loxilight-cni") {
		t.Errorf("a file without the plugin: exit code %d: %s", code, errs)
	}

	if code, _, errs := s.run(t.Context(), "cni", "uninstall", "--dir", dir); code != ExitDone || !strings.Contains(content(), "no such file") {
		t.Errorf("uninstall: exit code %d: %s", code, errs)
	}
	if code, _, errs := s.run(t.Context(), "cni", "uninstall", "--dir", dir); code != ExitDone || !strings.Contains(errs, "is not there") {
		t.Errorf("uninstall twice: exit code %d: %s", code, errs)
	}
	if err := os.WriteFile(path, []byte(`{"plugins":[{"type":"bridge"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := s.run(t.Context(), "cni", "uninstall", "--dir", dir); code != ExitFailed || !strings.Contains(errs, "somebody else's") {
		t.Errorf("uninstall of another's: exit code %d: %s", code, errs)
	}
}

func TestCNIStatus(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	dir := t.TempDir()
	code, out, _ := s.run(t.Context(), "cni", "status", "--dir", dir)
	if code != ExitDone || !strings.Contains(out, "ready") || !strings.Contains(out, "llcli cni install") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, _, errs := s.run(t.Context(), "cni", "install", "--dir", dir); code != ExitDone {
		t.Fatal(errs)
	}
	s.daemon.fail[api.MethodCNI] = api.Errorf(api.ReasonUnavailable, "PodNetwork/default: there is none")
	code, out, _ = s.run(t.Context(), "cni", "status", "--dir", dir, "-o", "json")
	if code != ExitFailed || !strings.Contains(out, `"reason": "PodNetwork/default: there is none"`) || !strings.Contains(out, `"ours": true`) {
		t.Errorf("exit code %d: %s", code, out)
	}
	s.daemon.fail[api.MethodCNI] = api.Errorf(api.ReasonDenied, "not root")
	if code, _, errs := s.run(t.Context(), "cni", "status", "--dir", dir); code != ExitFailed || !strings.Contains(errs, "not root") {
		t.Errorf("not root: exit code %d: %s", code, errs)
	}
}
