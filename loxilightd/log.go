// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// newLogger returns a logger that writes to w. The journal adds the time itself, and takes a line's
// priority from its prefix.
func newLogger(w io.Writer, cfg *config.Config, level *slog.LevelVar) *slog.Logger {
	level.Set(cfg.LogLevel)
	o := &slog.HandlerOptions{Level: level}
	if !isJournal(w) {
		return slog.New(newHandler(w, cfg, o))
	}
	o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	return slog.New(newJournalHandler(w, func(w io.Writer) slog.Handler { return newHandler(w, cfg, o) }))
}

func newHandler(w io.Writer, cfg *config.Config, o *slog.HandlerOptions) slog.Handler {
	if cfg.LogFormat == "json" {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}

// isJournal reports whether w is the stream that systemd connected to the journal. JOURNAL_STREAM
// alone is not enough: processes whose output goes elsewhere inherit it too.
func isJournal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// tameLibraries converts libraries' log lines to our journal format, such as net/http's messages
// about a backend that sends data without a request.
func tameLibraries(w io.Writer) {
	stdlog.SetOutput(w)
	if isJournal(w) {
		stdlog.SetFlags(0)
		stdlog.SetPrefix("<7>")
	}
}

// printError writes an error before there is a logger; each line of the error is one journal entry.
func printError(w io.Writer, err error) {
	prefix := ""
	if isJournal(w) {
		prefix = "<3>"
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(w, "%sloxilightd: %s\n", prefix, strings.TrimSuffix(line, "\n"))
	}
}

// journalHandler puts a priority, such as <4>, before each line; see sd-daemon(3).
type journalHandler struct{ warnings, errors, infos, debugs slog.Handler }

func newJournalHandler(w io.Writer, handler func(io.Writer) slog.Handler) journalHandler {
	shared := new(sync.Mutex)
	at := func(priority string) slog.Handler {
		return handler(&prefixWriter{prefix: priority, w: w, mutex: shared})
	}
	return journalHandler{errors: at("<3>"), warnings: at("<4>"), infos: at("<6>"), debugs: at("<7>")}
}

func (h journalHandler) of(level slog.Level) slog.Handler {
	switch {
	case level >= slog.LevelError:
		return h.errors
	case level >= slog.LevelWarn:
		return h.warnings
	case level >= slog.LevelInfo:
		return h.infos
	}
	return h.debugs
}

func (h journalHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.of(level).Enabled(ctx, level)
}

func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.of(r.Level).Handle(ctx, r)
}

func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.each(func(of slog.Handler) slog.Handler { return of.WithAttrs(attrs) })
}

func (h journalHandler) WithGroup(name string) slog.Handler {
	return h.each(func(of slog.Handler) slog.Handler { return of.WithGroup(name) })
}

func (h journalHandler) each(f func(slog.Handler) slog.Handler) slog.Handler {
	return journalHandler{errors: f(h.errors), warnings: f(h.warnings), infos: f(h.infos), debugs: f(h.debugs)}
}

// prefixWriter writes its prefix and a handler's line in a single write.
type prefixWriter struct {
	prefix string
	w      io.Writer
	mutex  *sync.Mutex // shared by all writers to w
}

func (p *prefixWriter) Write(line []byte) (int, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	n, err := p.w.Write(append([]byte(p.prefix), line...))
	return max(0, n-len(p.prefix)), err
}
