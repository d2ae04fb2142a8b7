// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

func confirmCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "confirm [REVISION]",
		Short: "Confirm a change that would be rolled back",
		Long: `Confirm a change that was made with --confirm. Without a confirmation, the daemon rolls the
change back at its deadline. Changes made with --confirm in the meantime have joined it, and
are confirmed with it. REVISION: as printed by the last of these changes; default: the pending
change, by any user.`,
		Example: "  llcli apply -f rules.yaml --confirm 60s\n  llcli confirm",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return command.Usagef("unexpected %q: llcli confirm takes one REVISION", args[1])
			}
			return nil
		},
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			if len(args) == 1 {
				revision, err := parseRevision(args[0])
				if err != nil {
					return err
				}
				return confirmRevision(ctx, a, d, revision)
			}
			waits, err := pendingConfirm(ctx, a, d)
			if err != nil {
				return err
			}
			if waits == nil {
				return errors.New("no change is pending; see llcli history")
			}
			return confirmRevision(ctx, a, d, waits.Revision)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

func parseRevision(text string) (uint64, error) {
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, command.Usagef("%q is not a revision; want a number, as llcli history lists them", text)
	}
	return revision, nil
}

// pendingConfirm returns the change that awaits confirmation, or nil if there is none.
func pendingConfirm(ctx context.Context, a *command.App, d command.Daemon) (*api.PendingConfirm, error) {
	var status api.StatusResult
	err := d.Call(ctx, api.MethodStatus, nil, &status)
	return status.Confirm, err
}

func confirmRevision(ctx context.Context, a *command.App, d command.Daemon, revision uint64) error {
	var result api.ConfirmResult
	if err := d.Change(ctx, api.MethodConfirm, "", 0, api.ConfirmParams{Revision: revision}, &result); err != nil {
		return err
	}
	if !a.IsTable() {
		return a.PrintValue(result)
	}
	a.Printf("revision %d confirmed\n", result.Revision)
	return nil
}

// keepOrRollBack prints how to keep a change that awaits confirmation, and asks for confirmation if
// the user is at a terminal.
func keepOrRollBack(ctx context.Context, a *command.App, d command.Daemon, waits *api.PendingConfirm) error {
	if waits == nil || !a.IsTable() {
		return nil
	}
	if len(waits.Joined) > 0 {
		a.Printf("joined the pending change: %s are confirmed or rolled back together\n", output.Revisions(waits))
	}
	a.Printf("in force; will be rolled back in %s unless you run: %s confirm %d\n", output.Short(waits.Left), a.Self(), waits.Revision)
	if a.Terminal == nil || !a.Terminal() {
		return nil
	}
	over, cancel := context.WithTimeout(ctx, time.Duration(waits.Left))
	defer cancel()
	lines := a.ReadLines(over)
	for {
		a.Printf("Keep it? Type yes, or no to roll it back at once: ")
		if err := a.Flush(); err != nil {
			return err
		}
		line, ok := "", false
		select {
		case line, ok = <-lines:
		case <-over.Done():
		}
		switch word := strings.ToLower(strings.TrimSpace(line)); {
		case !ok && ctx.Err() != nil:
			return ctx.Err()
		case !ok:
			a.Printf("\n")
			return fmt.Errorf("not confirmed: the change of revision %d will be rolled back at %s", waits.Revision, waits.Until)
		case word == "yes" || word == "y":
			return confirmRevision(ctx, a, d, waits.Revision)
		case word == "no" || word == "n":
			t := Transaction{Method: api.MethodRollback, undo: waits.Revision}
			return CarryOut(ctx, a, d, t, nil)
		}
	}
}

// tellWaiting reports that a change was made and awaits confirmation, although the daemon's answer
// was an error.
func tellWaiting(a *command.App, t *Transaction, err error) {
	e, ok := errors.AsType[*api.Error](err)
	if t.Change.Confirm == 0 || !ok || e.Reason() != api.ReasonTimeout {
		return
	}
	a.Note("the change is in force, and will be rolled back %s after it was made, or with the pending change that it joined, unless you run: %s confirm", t.Change.Confirm, a.Self())
}
