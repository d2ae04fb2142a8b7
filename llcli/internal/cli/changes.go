// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/loxilight/loxilight/api"
	"github.com/spf13/cobra"
)

func (a *app) changesCommand() *cobra.Command {
	var since uint64
	cmd := &cobra.Command{
		Use:   "changes",
		Short: "Show which objects changed, revision by revision",
		Long: `Show which objects were created, updated and deleted after a revision, as far back as
the daemon knows. llcli events changes shows those to come.`,
		Example: "  llcli changes --since 41",
		Args:    noWords("changes takes flags only"),
	}
	cmd.RunE = a.run(func(ctx context.Context, d Daemon, _ []string) error {
		if !cmd.Flags().Changed("since") {
			return a.recentChanges(ctx, d)
		}
		return a.changes(ctx, d, since)
	})
	cmd.Flags().Uint64Var(&since, "since", 0, "after this `REVISION` (default: as far back as the daemon knows)")
	must(cmd.RegisterFlagCompletionFunc("since", cobra.NoFileCompletions))
	return cmd
}

// errExpired: the daemon no longer knows the changes since a revision.
var errExpired = errors.New("the daemon does not know any more what changed since then; llcli get and llcli export show what there is")

// recentChanges shows the changes as far back as the daemon knows, to a power of
// four: it does not tell how far.
func (a *app) recentChanges(ctx context.Context, d Daemon) error {
	revision, err := a.revision(ctx, d)
	if err != nil {
		return err
	}
	err = a.changes(ctx, d, 0)
	for back := uint64(1 << 20); back > 0 && errors.Is(err, errExpired); back /= 4 {
		if back < revision {
			err = a.changes(ctx, d, revision-back)
		}
	}
	return err
}

// changes shows the changes since a revision.
func (a *app) changes(ctx context.Context, d Daemon, since uint64) error {
	t := a.table(column{title: "REVISION", right: true}, column{title: "ACTION"}, column{title: "OBJECT", flexible: true})
	list := listWriter{app: a}
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
			if a.isTable() {
				t.add(cell{text: strconv.FormatUint(c.Revision, 10)}, cell{text: c.Action, color: actionColor(c.Action)}, cell{text: c.Kind + "/" + c.Name})
			} else if err := list.add(c); err != nil {
				return err
			}
		}
		params.Since, more = page.Revision, page.More
	}
	switch {
	case !a.isTable():
		list.end()
	case len(t.rows) == 0:
		a.noneFound("changes")
	default:
		t.flush()
	}
	return nil
}
