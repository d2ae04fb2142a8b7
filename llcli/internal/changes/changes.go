// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

// ChangesCommand returns the command changes, which changes nothing.
func ChangesCommand(a *command.App) *cobra.Command {
	var since uint64
	cmd := &cobra.Command{
		Use:   "changes",
		Short: "Show which objects changed, revision by revision",
		Long: `Show which objects were created, updated and deleted after a revision, as far back as
the daemon's history. llcli events changes shows changes as they are made.`,
		Example: "  llcli changes --since 41",
		Args:    command.NoWords("changes takes flags only"),
	}
	cmd.RunE = a.Run(func(ctx context.Context, d command.Daemon, _ []string) error {
		if !cmd.Flags().Changed("since") {
			return recentChanges(ctx, a, d)
		}
		return showChanges(ctx, a, d, since)
	})
	cmd.Flags().Uint64Var(&since, "since", 0, "after this `REVISION` (default: as far back as the daemon knows)")
	command.Must(cmd.RegisterFlagCompletionFunc("since", cobra.NoFileCompletions))
	return cmd
}

// errExpired: the daemon no longer knows the changes since a revision.
var errExpired = errors.New("the daemon no longer has the changes since then; llcli get and llcli export show the current objects")

// recentChanges shows the changes as far back as the daemon remembers, rounded to a power of four,
// because the daemon does not report how far that is.
func recentChanges(ctx context.Context, a *command.App, d command.Daemon) error {
	revision, err := currentRevision(ctx, a, d)
	if err != nil {
		return err
	}
	err = showChanges(ctx, a, d, 0)
	for back := uint64(1 << 20); back > 0 && errors.Is(err, errExpired); back /= 4 {
		if back < revision {
			err = showChanges(ctx, a, d, revision-back)
		}
	}
	return err
}

// showChanges shows the changes since a revision.
func showChanges(ctx context.Context, a *command.App, d command.Daemon, since uint64) error {
	t := a.Table(output.Column{Title: "REVISION", Right: true}, output.Column{Title: "ACTION"}, output.Column{Title: "OBJECT", Flexible: true})
	list := a.NewList()
	params := api.ChangesParams{Since: since}
	for more := true; more; {
		var page api.ChangesResult
		if err := d.Call(ctx, api.MethodChanges, params, &page); err != nil {
			return err
		}
		if page.Expired {
			return fmt.Errorf("revision %d: %w", params.Since, errExpired)
		}
		for _, c := range page.Changes {
			if a.IsTable() {
				t.Add(output.Cell{Text: strconv.FormatUint(c.Revision, 10)}, output.Cell{Text: c.Action, Color: output.ActionColor(c.Action)}, output.Cell{Text: c.Kind + "/" + c.Name})
			} else if err := list.Add(c); err != nil {
				return err
			}
		}
		params.Since, more = page.Revision, page.More
	}
	switch {
	case !a.IsTable():
		list.End()
	case t.Empty():
		a.NoneFound("changes")
	default:
		t.Flush()
	}
	return nil
}
