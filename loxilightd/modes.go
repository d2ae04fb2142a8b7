// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"text/tabwriter"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/channel"
	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// preflight prints the expected result of starting the daemon, and returns the exit code. It takes
// no lock: a daemon may be running.
func preflight(cfg *config.Config, asJSON bool, stdout, stderr io.Writer) int {
	r, err := backends.Preflight(cfg.Backend, planeConfig(cfg))
	if err != nil {
		fmt.Fprintf(stderr, "loxilightd: preflight could not run: %v\n", err)
		return exitUntried
	}
	if asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	} else {
		err = printPreflight(stdout, r)
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "loxilightd: %v\n", err)
		return exitFailed
	case !r.OK:
		return exitFailed
	}
	return 0
}

func printPreflight(w io.Writer, r datapath.Preflight) error {
	fmt.Fprintf(w, "loxilightd %s on kernel %s\n\n", version, r.Kernel)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PROGRAM\tNETNS\tLOADS\tINSTRUCTIONS\tVERIFIED\tSTACK")
	for _, p := range r.Programs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\n", p.Copy(), p.Netns, okOrNot(p.OK), p.Instructions, p.Processed, p.StackBytes)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range r.Programs {
		if !p.OK {
			fmt.Fprintf(w, "\n%s of netns %s is refused: %s\n", p.Copy(), p.Netns, p.Error)
			for _, line := range p.Verifier {
				fmt.Fprintf(w, "    %s\n", line)
			}
		}
	}
	fmt.Fprintf(w, "\nattached by %s: %s%s\n", r.Hooks.Use, okOrNot(r.Hooks.OK), because(r.Hooks.Fallback, r.Hooks.Error))
	fmt.Fprintf(w, "pins in %s: %s%s\n", r.Pins.Dir, pinsText[r.Pins.Action], because(r.Pins.Error))
	for _, m := range r.Pins.Maps {
		fmt.Fprintf(w, "    %s: %s: %s\n", m.Map, m.Action, m.Reason)
	}
	verdict := "a start would succeed"
	if !r.OK {
		verdict = "a start would FAIL; the attached programs would continue"
	}
	_, err := fmt.Fprintf(w, "\n%s\n", verdict)
	return err
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

// because joins the non-empty reasons.
func because(reasons ...string) (text string) {
	for _, r := range reasons {
		if r != "" {
			text += ": " + r
		}
	}
	return text
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
