// SPDX-License-Identifier: Apache-2.0

// Command loxilightd holds the forwarding state of this node and programs its
// data plane with it. llcli controls it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// version is set by the linker.
var version = "dev"

// Exit codes. The last one is EX_CONFIG of sysexits.h: starting again will not help.
const (
	exitFailed = 1
	exitUsage  = 2
	exitConfig = 78
)

func main() {
	limitMemory()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	os.Exit(run(ctx, os.Args[1:], hup, os.Stdout, os.Stderr))
}

// run is main with everything handed in.
func run(ctx context.Context, args []string, hup <-chan os.Signal, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("loxilightd", flag.ContinueOnError)
	flags.SetOutput(stderr)
	path := flags.String("config", config.DefaultFile, "configuration `FILE`")
	check := flags.Bool("check", false, "read the configuration, say what is wrong with it, and stop")
	showVersion := flags.Bool("version", false, "print the version and stop")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return exitUsage // told by flags
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "loxilightd: unexpected argument %q\n", flags.Arg(0))
		return exitUsage
	}
	if *showVersion {
		fmt.Fprintln(stdout, "loxilightd", version, build())
		return 0
	}
	cfg, err := config.Load(*path)
	if err != nil {
		fmt.Fprintf(stderr, "loxilightd: %v\n", err)
		return exitConfig
	}
	if *check {
		return 0
	}
	level := new(slog.LevelVar)
	log := newLogger(stderr, cfg, level)
	if err := runDaemon(ctx, daemonOptions{cfg: cfg, configFile: *path, log: log, level: level, hup: hup}); err != nil {
		log.Error("loxilightd ends", slog.Any("error", err))
		return exitFailed
	}
	return 0
}

// limitMemory makes the garbage collector work harder where the daemon would
// grow beyond what an ordinary node gives it. GOMEMLIMIT and GOGC rule where set.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(160 << 20)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// newLogger writes to stderr, which is the journal under systemd: that knows the
// time itself.
func newLogger(w io.Writer, cfg *config.Config, level *slog.LevelVar) *slog.Logger {
	level.Set(cfg.LogLevel)
	o := &slog.HandlerOptions{Level: level}
	if os.Getenv("JOURNAL_STREAM") != "" {
		o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// build says what this daemon was built from.
func build() string {
	text := runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return text
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			text += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return text
}
