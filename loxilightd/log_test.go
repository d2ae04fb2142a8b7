// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// logged returns the text that write wrote to a pipe. JOURNAL_STREAM identifies that pipe if
// journal is true.
func logged(t *testing.T, journal bool, write func(io.Writer)) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(w.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	inode := stat.Ino
	if !journal {
		inode++ // as if the program's stderr were redirected
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, inode))
	write(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// lines logs a line at each level.
func lines(format string) func(io.Writer) {
	return func(w io.Writer) {
		cfg := config.Default("default")
		cfg.LogLevel, cfg.LogFormat = slog.LevelDebug, format
		log := newLogger(w, cfg, new(slog.LevelVar)).With(slog.String("service", "web"))
		log.Debug("asked")
		log.Info("ready")
		log.Warn("slow")
		log.WithGroup("of").Error("lost", slog.String("port", "eth0"))
	}
}

func TestLinesOfTheJournalHavePriorities(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		write      func(io.Writer)
	}{
		{"text", `<7>level=DEBUG msg=asked service=web
<6>level=INFO msg=ready service=web
<4>level=WARN msg=slow service=web
<3>level=ERROR msg=lost service=web of.port=eth0
`, lines("text")},
		{"json", `<7>{"level":"DEBUG","msg":"asked","service":"web"}
<6>{"level":"INFO","msg":"ready","service":"web"}
<4>{"level":"WARN","msg":"slow","service":"web"}
<3>{"level":"ERROR","msg":"lost","service":"web","of":{"port":"eth0"}}
`, lines("json")},
		{"configuration", `<3>loxilightd: f:1: one
<3>loxilightd: f:2: two
`, func(w io.Writer) { printError(w, errors.Join(errors.New("f:1: one"), errors.New("f:2: two"))) }},
		{"a library", "<7>talks unasked\n", func(w io.Writer) {
			flags, prefix, out := stdlog.Flags(), stdlog.Prefix(), stdlog.Writer()
			defer func() { stdlog.SetFlags(flags); stdlog.SetPrefix(prefix); stdlog.SetOutput(out) }()
			tameLibraries(w)
			stdlog.Print("talks unasked")
		}},
	} {
		if got := logged(t, true, tt.write); got != tt.want {
			t.Errorf("%s: the journal gets\n%swant\n%s", tt.name, got, tt.want)
		}
	}
}

func TestLinesElsewhereHaveTheTime(t *testing.T) {
	if got := logged(t, false, lines("text")); !strings.HasPrefix(got, "time=") {
		t.Errorf("a file gets\n%s", got)
	}
	if got := logged(t, false, func(w io.Writer) { printError(w, errors.New("f:1: one")) }); got != "loxilightd: f:1: one\n" {
		t.Errorf("a file gets %q", got)
	}
}
