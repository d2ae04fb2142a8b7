// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/report"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/channel"
	"github.com/loxilight/loxilight/loxilightd/internal/config"
	"github.com/loxilight/loxilight/loxilightd/internal/doctor"
)

// preflightReport is the output of --preflight --json.
type preflightReport struct {
	datapath.Preflight
	Findings []api.Finding `json:"findings"`
}

// preflight prints the expected result of starting the daemon, and returns the exit code. It takes
// no lock: a daemon may be running.
func preflight(ctx context.Context, cfg *config.Config, o *options, stdout, stderr io.Writer) int {
	var r preflightReport
	found := doctor.Run(ctx, doctor.Options{
		Config: cfg, ConfigFile: o.config, Version: version, StartOnly: true,
		Preflight: func() (_ datapath.Preflight, err error) {
			r.Preflight, err = backends.Preflight(cfg.Backend, planeConfig(cfg))
			return r.Preflight, err
		},
	})
	if len(found.Unseen) > 0 {
		fmt.Fprintf(stderr, "loxilightd: preflight could not run: %s\n", found.Unseen[0].Why)
		return exitUntried
	}
	r.Findings = found.Findings
	return cmp.Or(show(o, &r, r.text(), stdout, stderr), exitCode(r.Findings))
}

func (r *preflightReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "loxilightd %s on kernel %s\n\n", version, r.Kernel)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PROGRAM\tNETNS\tLOADS\tINSTRUCTIONS\tVERIFIED\tSTACK")
	for _, p := range r.Programs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\n", p.Copy(), p.Netns, okOrNot(p.OK), p.Instructions, p.Processed, p.StackBytes)
	}
	_ = t.Flush() // b accepts everything
	fmt.Fprintf(&b, "\nattached by %s: %s\npins in %s: %s\n", r.Hooks.Use, okOrNot(r.Hooks.OK), r.Pins.Dir, pinsText[r.Pins.Action])
	for _, m := range r.Pins.Maps {
		fmt.Fprintf(&b, "    %s: %s: %s\n", m.Map, m.Action, m.Reason)
	}
	if len(r.Findings) > 0 {
		b.WriteString("\n" + report.Style{}.Findings(r.Findings))
	}
	if exitCode(r.Findings) != 0 {
		return b.String() + "\na start would FAIL; the attached programs would continue\n"
	}
	return b.String() + "\na start would succeed\n"
}

var pinsText = map[string]string{
	datapath.PinsNone:    "no pins exist",
	datapath.PinsAdopt:   "adopted as they are",
	datapath.PinsConvert: "adopted, their entries are copied",
	datapath.PinsRefuse:  "they CANNOT be adopted",
}

func okOrNot(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAILS"
}

// detach ends forwarding: it removes programs and pins. It fails if a daemon is running, because
// the daemon would restore everything.
func detach(cfg *config.Config, log *slog.Logger) error {
	// If there is no run directory, no daemon of this instance is running. The directory is not
	// created here, because it would have to be removed again.
	if _, err := os.Stat(cfg.RunDir); !errors.Is(err, fs.ErrNotExist) {
		lock, err := channel.Lock(cfg.RunDir, "")
		if err != nil {
			return stopFirst(cfg, err)
		}
		defer func() { _ = lock.Close() }() // the lock is also released when the process ends
	}
	pins, err := lockPins(cfg.PinDir)
	if err != nil {
		return stopFirst(cfg, err)
	}
	if pins != nil {
		defer func() { _ = pins.Close() }() // this lock too is released when the process ends
	}
	return backends.Detach(cfg.Backend, planeConfig(cfg), log)
}

func stopFirst(cfg *config.Config, err error) error {
	if errors.Is(err, channel.ErrRunning) && cfg.Instance == "default" {
		return fmt.Errorf("%w (systemctl stop loxilightd)", err)
	}
	return err
}
