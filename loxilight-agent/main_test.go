// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, bad := file("good.yaml", "tunnel: {type: none}\n"), file("bad.yaml", "tunnels: {}\n")
	for _, test := range []struct {
		args []string
		code int
		out  string // of either
	}{
		{[]string{"--version"}, 0, "loxilight-agent dev go"},
		{[]string{"--help"}, 0, "-node-name NAME"},
		{[]string{"--wrong"}, exitUsage, "-wrong"},
		{[]string{"start"}, exitUsage, `unexpected argument "start"`},
		{[]string{"--config", bad}, exitConfig, "field tunnels not found"},
		{[]string{"--config", filepath.Join(dir, "none.yaml")}, exitConfig, "none.yaml"},
		{[]string{"--config", good, "--check"}, 0, ""},
		{[]string{"--config", good}, exitFailed, "set apiServer"},
		{[]string{"--config", good, "--kubeconfig", filepath.Join(dir, "none")}, exitFailed, "kubeconfig"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), test.args, &stdout, &stderr); code != test.code {
			t.Errorf("%q: code %d, want %d", test.args, code, test.code)
		}
		if out := stdout.String() + stderr.String(); !strings.Contains(out, test.out) {
			t.Errorf("%q: %q, want %q in it", test.args, out, test.out)
		}
	}
}
