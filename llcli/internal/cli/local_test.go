// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/bundle"
)

// exec simulates a program of the machine: the file with the program's name contains the exit code
// in its first line and the output in the rest. Without such a file, and without session.program,
// the program cannot be run.
func (s *session) exec(_ context.Context, stdout, stderr io.Writer, name string, args ...string) (int, error) {
	text, err := s.program, error(nil)
	if text == "" {
		var file []byte
		if file, err = os.ReadFile(strings.TrimPrefix(name, "/sbin/")); err != nil {
			return 0, err
		}
		text = string(file)
	}
	first, rest, _ := strings.Cut(text, "\n")
	code, err := strconv.Atoi(first)
	if err != nil {
		return 0, err
	}
	if _, err := io.WriteString(stdout, rest); err != nil {
		return 0, err
	}
	_, err = fmt.Fprintf(stderr, "loxilightd: run as %s %s\n", name, strings.Join(args, " "))
	return code, err
}

// TestRunningConfig: the configuration is the file with which the daemon behind the socket was
// started, and existing instances are named if the default one is not running.
func TestRunningConfig(t *testing.T) {
	root := t.TempDir()
	files := map[string]string{
		"/tmp/here/loxilightd.lock":            "4711\n",
		"/run/loxilight-blue/loxilightd.lock":  "4712\n",
		"/run/loxilight-green/loxilightd.lock": "4713\n",
		"/run/loxilight-blue/control.sock":     "",
		"/proc/4711/comm":                      "loxilightd\n",
		"/proc/4711/cmdline":                   "/usr/sbin/loxilightd\x00--config=here/ll.yaml\x00",
		"/proc/4712/comm":                      "loxilightd\n",
		"/proc/4712/cmdline":                   "loxilightd\x00-config\x00/srv/blue.yaml\x00",
		"/proc/4713/comm":                      "bash\n",
		"/proc/4713/cmdline":                   "bash\x00--config\x00/srv/green.yaml\x00",
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(root+name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/srv", root+"/proc/4711/cwd"); err != nil {
		t.Fatal(err)
	}
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}, program: "0\n{}", root: root}
	for command, want := range map[string]string{
		"--socket /tmp/here/control.sock": "--config /srv/here/ll.yaml",
		"--instance blue":                 "--config /srv/blue.yaml",
		"--instance green":                "--config /etc/loxilight-green/loxilightd.yaml",
		"--instance red":                  "--config /etc/loxilight-red/loxilightd.yaml",
	} {
		if _, _, errs := s.run(t.Context(), append(strings.Fields(command), "preflight")...); !strings.Contains(errs, want) {
			t.Errorf("%s: %s, want %s", command, errs, want)
		}
	}
	s.daemon.away = client.ErrNotRunning
	if _, _, errs := s.run(t.Context(), "status"); !strings.Contains(errs, "--instance blue\n") {
		t.Errorf("the instance blue is not named: %s", errs)
	}
	if _, _, errs := s.run(t.Context(), "--instance red", "status"); strings.Contains(errs, "other instances") {
		t.Errorf("another one than the default: %s", errs)
	}
}

// TestBundle writes an archive while the daemon is not running, and overwrites no file.
func TestBundle(t *testing.T) {
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}, program: "0\n{}"}
	s.daemon.away = client.ErrNotRunning
	t.Chdir(t.TempDir())
	code, out, errs := s.run(t.Context(), "bundle", "--config", "loxilightd.yaml")
	if code != ExitDone || !strings.HasPrefix(out, "loxilight-20260304T0506") || !strings.Contains(out, "loxilightd is not running") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	name, _, _ := strings.Cut(out, ":")
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 || info.Size() < 100 {
		t.Errorf("%s: %v, %v", name, info, err)
	}
	if code, _, errs := s.run(t.Context(), "bundle", name); code != ExitFailed || !strings.Contains(errs, "file exists") {
		t.Errorf("over a file: exit code %d: %s", code, errs)
	}
	s.daemon.away = nil
	code, out, _ = s.run(t.Context(), "bundle", "b.tar.gz", "-o", "json", "--anonymize")
	var m bundle.Manifest
	if err := json.Unmarshal([]byte(out), &m); err != nil || code != ExitDone || !m.Anonymized || !slices.ContainsFunc(m.Files, func(f bundle.File) bool { return f.Name == "daemon/status.json" }) {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
	if code, _, _ := s.run(t.Context(), "bundle", "a", "b"); code != ExitUsage {
		t.Errorf("two files: exit code %d", code)
	}
}
