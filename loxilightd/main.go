// SPDX-License-Identifier: Apache-2.0

// Command loxilightd keeps the forwarding state of this node and applies it to the data plane.
// llcli controls it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// version is set by the linker.
var version = "dev"

// Exit codes. After exitRefused and exitConfig (EX_CONFIG in sysexits.h), starting again does not
// help.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitUntried = 3 // --preflight could not run
	exitRefused = 70
	exitConfig  = 78
)

func main() {
	collectEarly()
	tameLibraries(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal terminates the process immediately
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	os.Exit(run(ctx, os.Args[1:], hup, os.Stdout, os.Stderr))
}

// run is main with all dependencies as parameters.
func run(ctx context.Context, args []string, hup <-chan os.Signal, stdout, stderr io.Writer) int {
	o, code, ok := parse(args, stderr)
	if !ok {
		return code
	}
	if o.version {
		fmt.Fprintln(stdout, "loxilightd", version, build())
		return 0
	}
	cfg, err := config.Load(o.config)
	if o.doctor {
		return examine(ctx, cfg, err, &o, stdout, stderr)
	}
	if err != nil {
		printError(stderr, err)
		return exitConfig
	}
	level := new(slog.LevelVar)
	log := newLogger(stderr, cfg, level)
	switch {
	case o.check:
		return 0
	case o.preflight:
		return preflight(ctx, cfg, &o, stdout, stderr)
	case o.detach:
		if err = detach(cfg, log); err != nil {
			printError(stderr, err)
			return exitFailed
		}
	case o.makeSwitch:
		if err = backends.MakeSwitch(planeConfig(cfg)); err != nil {
			printError(stderr, err)
			return exitFailed
		}
	default:
		err = runDaemon(ctx, daemonOptions{cfg: cfg, configFile: o.config, log: log, level: level, hup: hup})
	}
	switch {
	case datapath.IsShortage(err):
		log.Error("loxilightd stops: out of resources; starting it again may help", slog.Any("error", err))
		return exitFailed
	case errors.Is(err, datapath.ErrRefused):
		log.Error("loxilightd cannot adopt the data plane; starting it again does not help", slog.Any("error", err))
		return exitRefused
	case err != nil:
		log.Error("loxilightd ends", slog.Any("error", err))
		return exitFailed
	}
	return 0
}

// collectEarly limits garbage to half the size of the live memory, instead of its full size. It
// does not set a limit in bytes, because the collector would run continuously if live memory
// exceeded such a limit. GOMEMLIMIT and GOGC override this setting.
func collectEarly() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// build returns a description of this build.
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
