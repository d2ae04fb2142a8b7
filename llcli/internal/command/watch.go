// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
)

// ErrEnough ends a list that is long enough.
var ErrEnough = errors.New("enough")

// BindWatch adds the flags of commands that can repeat their output.
func (a *App) BindWatch(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&a.Repeated, "watch", "w", false, "repeat the output until interrupted")
	cmd.Flags().DurationVar(&a.Interval, "interval", 2*time.Second, "the `TIME` between two outputs")
	Must(cmd.RegisterFlagCompletionFunc("interval", cobra.NoFileCompletions))
}

// Repeat calls show once or, with --watch, until the user interrupts: on a terminal, each output
// replaces the previous one; elsewhere, it follows the previous one.
func (a *App) Repeat(ctx context.Context, show func() error) error {
	if !a.Repeated {
		return show()
	}
	return a.Periodically(ctx, func(first bool) error {
		if a.IsTable() && a.Width() > 0 {
			a.Printf("\x1b[H\x1b[2J") // to the top, and clear
		} else if a.IsTable() && !first {
			a.Printf("\n")
		}
		return show()
	})
}

// Periodically calls show until the user interrupts, and flushes its output. If the daemon stops in
// the meantime, Periodically reports that and waits for the daemon.
func (a *App) Periodically(ctx context.Context, show func(first bool) error) error {
	if a.Interval < 100*time.Millisecond {
		return Usagef("--interval %s: want 100ms or more", a.Interval)
	}
	ticker := time.NewTicker(a.Interval)
	defer ticker.Stop()
	out := Outage{App: a}
	for first := true; ; first = false {
		err := show(first)
		switch {
		case errors.Is(err, ErrEnough):
			return nil
		case ctx.Err() != nil:
			return nil // the user has interrupted
		case err != nil && (first || !IsUnreachable(err)):
			return err
		case err != nil:
			out.Tell(err)
		default:
			out.Over()
		}
		if err := a.Flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Outage reports an outage of the daemon during a watch: once when it begins, and once when it
// ends.
type Outage struct {
	App  *App
	last string
}

// Tell reports that the daemon does not answer, or the new reason if that has changed.
func (o *Outage) Tell(err error) {
	text := err.Error()
	if o.last == "" {
		o.App.Note("%s; waiting for it", text)
	} else if o.last != text {
		o.App.Note("%s", text)
	}
	o.last = text
}

// Over reports that the daemon answers again, if it had stopped answering.
func (o *Outage) Over() {
	if o.last != "" {
		o.App.Note("loxilightd answers again")
	}
	o.last = ""
}
