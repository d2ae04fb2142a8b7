// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api/client"
)

// TestDocumentedCommands: every command line of llcli in the documents is valid.
func TestDocumentedCommands(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	type command struct{ page, line string }
	var commands []command
	indented := regexp.MustCompile(`^ {4,}(?:\. <\()?(llcli .*)$`)
	for _, page := range append(pages, "../../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		joined := strings.ReplaceAll(string(text), "\\\n", " ")
		for line := range strings.Lines(joined) {
			m := indented.FindStringSubmatch(strings.TrimRight(line, "\n"))
			if m == nil {
				continue
			}
			for line := range strings.SplitSeq(m[1], " && ") {
				commands = append(commands, command{filepath.Base(page), line})
			}
		}
	}
	if len(commands) < 30 {
		t.Errorf("only %d command lines were found", len(commands))
	}
	t.Chdir(t.TempDir()) // some commands write files
	for _, c := range commands {
		checkCommand(t, c.page, c.line)
	}
}

// checkCommand runs a command line only to check its flags and arguments: its daemon is
// unreachable.
func checkCommand(t *testing.T, page, command string) {
	t.Helper()
	command, _, _ = strings.Cut(command, "#")
	command, _, _ = strings.Cut(command, ">")
	command = strings.TrimSuffix(strings.TrimSpace(command), ")")
	s := &session{daemon: newTestDaemon(t), env: map[string]string{}, program: "0\n{}"}
	s.daemon.away = client.ErrNotRunning
	code, _, errs := s.run(t.Context(), words(command)[1:]...)
	if code != ExitUnreachable && code != ExitDone {
		t.Errorf("%s: %s: exit code %d: %s", page, command, code, errs)
	}
}
