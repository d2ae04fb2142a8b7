// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/llcli/internal/command"
)

var update = flag.Bool("update", false, "write what llcli prints into the scripts of testdata")

// session is a series of runs of llcli against one daemon.
type session struct {
	daemon  *testDaemon
	dir     string
	env     map[string]string
	width   int
	stdin   string
	seconds int
	edit    func(text string) string // the user's edit in the editor
	program string                   // result of the machine's programs; see exec
	root    string                   // of the machine's files
}

// now advances by two seconds each time, so that rates have an interval.
func (s *session) now() time.Time {
	s.seconds += 2
	return time.Date(2026, 3, 4, 5, 6, 5+s.seconds, 0, time.UTC)
}

// run carries out one command line and returns the exit code and the outputs.
func (s *session) run(ctx context.Context, args ...string) (int, string, string) {
	var out, errs bytes.Buffer
	ctx, interrupt := context.WithCancel(ctx)
	defer interrupt()
	s.daemon.interrupt = interrupt
	code := Run(ctx, command.Env{
		Args:   args,
		In:     strings.NewReader(s.stdin),
		Out:    &out,
		Err:    &errs,
		Getenv: func(name string) string { return s.env[name] },
		Width:  func() int { return s.width },
		Dial:   s.daemon.dial,
		Now:    s.now,
		Edit: func(_ context.Context, path string) error {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, []byte(s.edit(string(text))), 0o600)
		},
		Terminal: func() bool { return s.env["SITS_THERE"] != "" },
		Root:     s.root,
		Program:  func() (string, error) { return "/sbin/loxilightd", nil },
		Exec:     s.exec,
		Version:  "0.9",
		Build:    "test",
	})
	return code, out.String(), errs.String()
}

// TestScripts runs the scripts in testdata. A line "$ llcli …" is a command; the lines after it are
// its output: lines of stderr after "! ", blank lines as "~", and its exit code in brackets if it
// is not 0. "$ write FILE" creates a file from the following lines that begin with "| ", "$ width
// N" sets the width of the terminal, "$ edit OLD NEW" is the user's edit in the editor.
func TestScripts(t *testing.T) {
	dir, err := filepath.Abs("testdata") // the scripts run elsewhere
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob(dir + "/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("scripts: %v, %v", scripts, err)
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(script)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(want))
			if *update {
				if err := os.WriteFile(script, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("%s is not what llcli prints:\n%s", script, firstDifference(string(want), got))
			}
		})
	}
}

func runScript(t *testing.T, script string) string {
	t.Helper()
	s := &session{daemon: newTestDaemon(t), dir: t.TempDir(), env: map[string]string{}}
	t.Chdir(s.dir)
	t.Setenv("TMPDIR", s.dir)
	var got strings.Builder
	lines := strings.Split(strings.TrimSuffix(script, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		command, isCommand := strings.CutPrefix(line, "$ ")
		if line == "" || strings.HasPrefix(line, "# ") {
			got.WriteString(line + "\n")
		}
		if !isCommand {
			continue
		}
		got.WriteString(line + "\n")
		var input strings.Builder
		for ; i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|"); i++ {
			got.WriteString(lines[i+1] + "\n")
			input.WriteString(strings.TrimPrefix(strings.TrimPrefix(lines[i+1], "|"), " ") + "\n")
		}
		got.WriteString(s.command(t, words(command), input.String()))
	}
	return got.String()
}

// edited matches the directory of the text that llcli edit keeps.
var edited = regexp.MustCompile(`DIR/llcli-\d+`)

// words splits a command at its spaces; "" is an empty word, and "a b" a word with a space.
func words(command string) (split []string) {
	for word := range strings.FieldsSeq(command) {
		if n := len(split); n > 0 && len(split[n-1]) > 1 && split[n-1][0] == '"' {
			split[n-1] += " " + word
		} else {
			split = append(split, word)
		}
		if last := &split[len(split)-1]; len(*last) > 1 && (*last)[0] == '"' && strings.HasSuffix(*last, `"`) {
			*last = strings.Trim(*last, `"`)
		}
	}
	return split
}

func (s *session) command(t *testing.T, words []string, input string) string {
	t.Helper()
	var err error
	switch words[0] {
	case "llcli":
		s.stdin = input
		code, out, errs := s.run(t.Context(), words[1:]...)
		for line := range strings.Lines(errs) {
			out += "! " + line
		}
		if code != 0 {
			out += fmt.Sprintf("[%d]\n", code)
		}
		// A blank line of output is shown as ~: real blank lines belong to the script.
		for strings.Contains(out, "\n\n") {
			out = strings.ReplaceAll(out, "\n\n", "\n~\n")
		}
		return edited.ReplaceAllString(strings.ReplaceAll(out, s.dir, "DIR"), "DIR/TMP")
	case "write":
		if err = os.MkdirAll(filepath.Dir(words[1]), 0o755); err == nil {
			err = os.WriteFile(words[1], []byte(input), 0o644)
		}
	case "width":
		s.width, err = strconv.Atoi(words[1])
	case "edit":
		s.edit = func(text string) string {
			edited := strings.ReplaceAll(text, words[1], words[2])
			if text == edited {
				t.Errorf("the editor shows no %q:\n%s", words[1], text)
			}
			return edited
		}
	case "daemon":
		s.daemon.act(t, words[1:])
	case "env":
		name, value, _ := strings.Cut(words[1], "=")
		s.env[name] = value
	default:
		t.Fatalf("script: unknown command %q", words[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	return ""
}

// firstDifference shows the first lines that differ.
func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		a, b := "(end)", "(end)"
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			return fmt.Sprintf("line %d:\n got %q\nwant %q", i+1, b, a)
		}
	}
	return "no difference"
}
