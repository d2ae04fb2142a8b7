// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/llcli/internal/bundle"
)

// exec plays a program of the machine: it does as the file says that is called as
// the program, whose first line is the exit code and the rest the output. Without
// such a file, and without session.program, it cannot be run.
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

// TestBundle writes an archive of a daemon that is away, and never over a file.
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
