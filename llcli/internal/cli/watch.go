// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
)

// bindWatch adds the flags of commands that can repeat their output.
func (a *app) bindWatch(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&a.watch, "watch", "w", false, "show it again and again, until interrupted")
	cmd.Flags().DurationVar(&a.interval, "interval", 2*time.Second, "the `TIME` from one showing to the next")
	must(cmd.RegisterFlagCompletionFunc("interval", cobra.NoFileCompletions))
}

// repeat calls show once, or with --watch until the user interrupts: on a
// terminal each time in place of the last, else one after the other.
func (a *app) repeat(ctx context.Context, show func() error) error {
	if !a.watch {
		return show()
	}
	return a.periodically(ctx, func(first bool) error {
		if a.isTable() && a.Width() > 0 {
			a.printf("\x1b[H\x1b[2J") // to the top, and clear
		} else if a.isTable() && !first {
			a.printf("\n")
		}
		return show()
	})
}

// periodically calls show until the user interrupts, and flushes its output. If the daemon stops
// meanwhile, that is reported, and periodically waits for it.
func (a *app) periodically(ctx context.Context, show func(first bool) error) error {
	if a.interval < 100*time.Millisecond {
		return usagef("--interval %s: want 100ms or more", a.interval)
	}
	ticker := time.NewTicker(a.interval)
	defer ticker.Stop()
	out := outage{app: a}
	for first := true; ; first = false {
		err := show(first)
		switch {
		case errors.Is(err, errEnough):
			return nil
		case ctx.Err() != nil:
			return nil // the user has seen enough
		case err != nil && (first || !isUnreachable(err)):
			return err
		case err != nil:
			out.tell(err)
		default:
			out.over()
		}
		if err := a.out.Flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// outage reports that the daemon stopped during a watch: once, and once when it is back.
type outage struct {
	app  *app
	last string
}

func (o *outage) tell(err error) {
	text := err.Error()
	if o.last == "" {
		o.app.note("%s; waiting for it", text)
	} else if o.last != text {
		o.app.note("%s", text)
	}
	o.last = text
}

func (o *outage) over() {
	if o.last != "" {
		o.app.note("loxilightd answers again")
	}
	o.last = ""
}
