// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

func (a *app) confirmCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "confirm [REVISION]",
		Short: "Confirm a change that would be rolled back",
		Long: `Confirm a change that was made with --confirm. Without it the daemon rolls the change
back when its time is over. REVISION as printed by the change; default: the pending one,
whoever made it.`,
		Example: "  llcli apply -f rules.yaml --confirm 60s\n  llcli confirm",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("unexpected %q: llcli confirm takes one REVISION", args[1])
			}
			return nil
		},
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			if len(args) == 1 {
				revision, err := parseRevision(args[0])
				if err != nil {
					return err
				}
				return a.confirm(ctx, d, revision)
			}
			waits, err := a.waiting(ctx, d)
			if err != nil {
				return err
			}
			if waits == nil {
				return errors.New("no change waits to be confirmed; see llcli history")
			}
			return a.confirm(ctx, d, waits.Revision)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

func parseRevision(text string) (uint64, error) {
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, usagef("%q is not a revision; want a number, as llcli history lists them", text)
	}
	return revision, nil
}

// waiting returns the change that waits to be confirmed; nil: none does.
func (a *app) waiting(ctx context.Context, d Daemon) (*api.PendingConfirm, error) {
	var status api.StatusResult
	err := d.Call(ctx, api.MethodStatus, nil, &status)
	return status.Confirm, err
}

func (a *app) confirm(ctx context.Context, d Daemon, revision uint64) error {
	var result api.ConfirmResult
	if err := d.Change(ctx, api.MethodConfirm, "", 0, api.ConfirmParams{Revision: revision}, &result); err != nil {
		return err
	}
	if !a.isTable() {
		return a.printValue(result)
	}
	a.printf("revision %d confirmed\n", result.Revision)
	return nil
}

// self returns the llcli command line with the options that select the daemon.
func (a *app) self() string {
	words := []string{"llcli"}
	if a.socket != "" {
		words = append(words, "--socket", a.socket)
	}
	if a.instance != "" {
		words = append(words, "--instance", a.instance)
	}
	return strings.Join(words, " ")
}

// keep prints how to keep a change that waits to be confirmed, and asks for confirmation if the
// user is at a terminal.
func (a *app) keep(ctx context.Context, d Daemon, waits *api.PendingConfirm) error {
	if waits == nil || !a.isTable() {
		return nil
	}
	a.printf("in force; will be rolled back in %s unless you run: %s confirm %d\n", short(waits.Left), a.self(), waits.Revision)
	if a.Terminal == nil || !a.Terminal() {
		return nil
	}
	over, cancel := context.WithTimeout(ctx, time.Duration(waits.Left))
	defer cancel()
	lines := a.readLines(over)
	for {
		a.printf("Keep it? Type yes, or no to roll it back at once: ")
		if err := a.out.Flush(); err != nil {
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
			a.printf("\n")
			return fmt.Errorf("not confirmed: the change of revision %d will be rolled back at %s", waits.Revision, waits.Until)
		case word == "yes" || word == "y":
			return a.confirm(ctx, d, waits.Revision)
		case word == "no" || word == "n":
			t := transaction{method: api.MethodRollback, undo: waits.Revision}
			return a.change(ctx, d, t, nil)
		}
	}
}

// readLines reads the user's input, until ctx ends. The end of the input closes the channel.
func (a *app) readLines(ctx context.Context) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(a.In)
		for scanner.Scan() {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

// tellWaiting reports that a change was made and waits for confirmation, although its answer was
// an error.
func (a *app) tellWaiting(t *transaction, err error) {
	e, ok := errors.AsType[*api.Error](err)
	if t.change.Confirm == 0 || !ok || e.Reason() != api.ReasonTimeout {
		return
	}
	a.note("the change is in force, and will be rolled back %s after it was made unless you run: %s confirm", t.change.Confirm, a.self())
}
