// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBashWithoutBashCompletion: the script completes in a shell without the package
// bash-completion.
func TestBashWithoutBashCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash")
	}
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}}
	_, script, _ := s.run(t.Context(), "completion", "bash")
	dir := t.TempDir()
	file, llcli := filepath.Join(dir, "script"), filepath.Join(dir, "llcli")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(llcli, []byte("#!/bin/sh\nprintf '%s\\n' firewall fdb :4\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bash, "--norc", "-c", `. "$1"; COMP_LINE="llcli get f"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
COMP_WORDS=(llcli get f); COMP_CWORD=2; compopt() { :; }; __start_llcli; echo "${COMPREPLY[*]}"`, "bash", file)
	cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "firewall fdb" {
		t.Errorf("completes %q, %v; want firewall fdb", out, err)
	}
}
