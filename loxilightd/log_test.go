// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// logged returns what a logger writes to a pipe that is the journal, or is not.
func logged(t *testing.T, journal bool, format string) string {
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
		inode++ // of a program whose stderr was redirected
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, inode))
	cfg := config.Default("default")
	cfg.LogLevel, cfg.LogFormat = slog.LevelDebug, format
	log := newLogger(w, cfg, new(slog.LevelVar)).With(slog.String("service", "web"))
	log.Debug("asked")
	log.Info("ready")
	log.Warn("slow")
	log.WithGroup("of").Error("lost", slog.String("port", "eth0"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestLinesOfTheJournalHavePriorities(t *testing.T) {
	const want = `<7>level=DEBUG msg=asked service=web
<6>level=INFO msg=ready service=web
<4>level=WARN msg=slow service=web
<3>level=ERROR msg=lost service=web of.port=eth0
`
	if got := logged(t, true, "text"); got != want {
		t.Errorf("the journal gets\n%swant\n%s", got, want)
	}
	const json = `<7>{"level":"DEBUG","msg":"asked","service":"web"}
<6>{"level":"INFO","msg":"ready","service":"web"}
<4>{"level":"WARN","msg":"slow","service":"web"}
<3>{"level":"ERROR","msg":"lost","service":"web","of":{"port":"eth0"}}
`
	if got := logged(t, true, "json"); got != json {
		t.Errorf("the journal gets\n%swant\n%s", got, json)
	}
}

func TestLinesElsewhereHaveTheTime(t *testing.T) {
	if got := logged(t, false, "text"); len(got) < 5 || got[:5] != "time=" {
		t.Errorf("a file gets\n%s", got)
	}
}
