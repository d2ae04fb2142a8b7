// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/output"
	"github.com/spf13/cobra"
)

func rollbackCommand(a *command.App) *cobra.Command {
	var options Options
	var last bool
	var owner string
	cmd := &cobra.Command{
		Use:   "rollback {REVISION | --last}",
		Short: "Go back to an earlier revision",
		Long: `Restore the objects of all owners except file and cni, or of --owner, as they were at a
revision. The result is a new revision. Objects from the daemon's object files and objects of
pods stay; each is named if it was different then. llcli diff --revision shows what would
change.

--last rolls back the pending change, or else the latest change in force, whoever made it.
Each further --last goes back by one more change. To undo a rollback, name the revision before
it. The rollback of a change that was not confirmed is never rolled back.`,
		Example: "  llcli history\n  llcli diff --revision 41\n  llcli rollback 41 --confirm 60s\n  llcli rollback --last",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return command.Usagef("unexpected %q: llcli rollback takes one REVISION", args[1])
			case (len(args) == 1) == last:
				return command.Usagef("no revision given: use llcli rollback REVISION or --last; llcli history lists revisions")
			case last && owner != "":
				return command.Usagef("--last and --owner cannot be combined")
			}
			return nil
		},
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			change, err := options.Params()
			if err != nil {
				return err
			}
			t := Transaction{Method: api.MethodRollback, owner: owner, Change: change}
			if last {
				err = findLast(ctx, a, d, &t)
			} else {
				t.back, err = parseRevision(args[0])
			}
			if err != nil {
				return err
			}
			return CarryOut(ctx, a, d, t, nil)
		}),
		ValidArgsFunction: completeRevisions(a),
	}
	options.Bind(cmd)
	cmd.Flags().BoolVar(&last, "last", false, "roll back the pending change, or else the latest one in force")
	bindOwner(cmd, &owner, "", "only objects of this `OWNER` (default: all)")
	return cmd
}

// findLast makes t roll back the latest change, provided that it is still the latest.
func findLast(ctx context.Context, a *command.App, d command.Daemon, t *Transaction) error {
	waits, err := pendingConfirm(ctx, a, d)
	if err != nil {
		return err
	}
	if waits != nil {
		t.undo = waits.Revision
		return nil
	}
	latest, err := latestEntry(ctx, a, d)
	if err != nil {
		return err
	}
	if latest == nil {
		return errors.New("the daemon has no change in its history that can be rolled back")
	}
	if latest.Restored != 0 {
		if err := refuseUndone(ctx, a, d, latest); err != nil {
			return err
		}
	}
	if t.Change.IfRevision == nil {
		t.Change.IfRevision = &latest.Revision
	}
	e, err := inForce(ctx, a, d, latest)
	if err != nil {
		return err
	}
	a.Note("going back to revision %d: this rolls back revision %d, %s by %s, %s", e.Previous, e.Revision, e.Method, output.UserOf(e.Author), a.LocalTime(e.Time))
	t.back = e.Previous
	return nil
}

// latestEntry returns the latest change in the history, or nil if the history is empty.
func latestEntry(ctx context.Context, a *command.App, d command.Daemon) (latest *api.HistoryEntry, err error) {
	err = eachEntry(ctx, a, d, 1, func(e api.HistoryEntry) bool {
		latest = &e
		return false
	})
	return latest, err
}

// inForce returns the latest change that no rollback has rolled back. After a rollback to a
// revision, it is the change of that revision.
func inForce(ctx context.Context, a *command.App, d command.Daemon, latest *api.HistoryEntry) (*api.HistoryEntry, error) {
	if latest.Method != api.MethodRollback {
		return latest, nil
	}
	result, err := (&Transaction{
		Method: api.MethodRollback, back: latest.Restored, Change: api.Change{DryRun: true},
	}).send(ctx, d)
	if err != nil {
		return nil, err
	}
	further := fmt.Sprintf("to go further back, name one of the revisions of %s history: %s rollback REVISION", a.Self(), a.Self())
	if len(result.Changes) > 0 {
		return nil, fmt.Errorf("revision %d rolled back only some of the objects to revision %d, so it is unknown which change is the latest in force: nothing was changed; %s",
			latest.Revision, latest.Restored, further)
	}
	at := latest
	err = eachEntry(ctx, a, d, 0, func(e api.HistoryEntry) bool {
		if e.Revision == at.Restored {
			at = &e
		}
		return at.Method == api.MethodRollback && e.Revision > at.Restored
	})
	if err != nil {
		return nil, err
	}
	if at.Method == api.MethodRollback {
		return nil, fmt.Errorf("no earlier change is in the history: revision %d rolled back to revision %d, the first that is kept; nothing was changed",
			at.Revision, at.Restored)
	}
	return at, nil
}

// refuseUndone returns an error if the latest revision rolled back a change that awaited
// confirmation: rolling that revision back would restore an unconfirmed change.
func refuseUndone(ctx context.Context, a *command.App, d command.Daemon, latest *api.HistoryEntry) error {
	var undone uint64
	var rollbacks []api.HistoryEntry // latest first
	err := eachEntry(ctx, a, d, 0, func(e api.HistoryEntry) bool {
		if e.Revision <= latest.Restored {
			return false
		}
		if e.Confirm == "rolled-back" {
			// The first rollback after the change rolled it back.
			for i := len(rollbacks) - 1; i >= 0; i-- {
				if rollbacks[i].Restored < e.Revision {
					if rollbacks[i].Revision == latest.Revision {
						undone = e.Revision
					}
					break
				}
			}
		}
		if e.Restored != 0 {
			rollbacks = append(rollbacks, e)
		}
		return undone == 0
	})
	if err != nil || undone == 0 {
		return err
	}
	return fmt.Errorf("the change of revision %d was not confirmed, and revision %d has rolled it back: nothing was changed; to go back further, name one of the revisions of %s history: %s rollback REVISION",
		undone, latest.Revision, a.Self(), a.Self())
}

// previewConfirm lets the daemon answer a dry run while another change awaits confirmation, which
// the change of the dry run would join. Any valid time will do.
const previewConfirm = time.Second

// diffRevision shows the changes that a rollback to a revision would make.
func diffRevision(ctx context.Context, a *command.App, d command.Daemon, revision uint64, owner string) (differs bool, err error) {
	t := Transaction{Method: api.MethodRollback, back: revision, owner: owner, Change: api.Change{DryRun: true, Confirm: api.Duration(previewConfirm)}}
	for {
		result, err := t.send(ctx, d)
		if err != nil {
			return differs, err
		}
		differs = differs || len(result.Changes) > 0
		if !a.IsTable() {
			return differs, a.PrintValue(result)
		}
		for _, c := range result.Changes {
			o := api.HistoryDiff{ObjectChange: c}
			if o.After, err = objectAt(ctx, a, d, c.Kind, c.Name, revision); err != nil {
				return differs, err
			}
			now, err := a.Object(ctx, d, c.Kind, c.Name)
			if err == nil {
				o.Before = &now
			} else if !command.IsNotFound(err) {
				return differs, err
			}
			if err := printHistoryDiff(a, &o); err != nil {
				return differs, err
			}
		}
		if t.Change.ChangesFrom += len(result.Changes); !result.Truncated || len(result.Changes) == 0 {
			printLeft(a, result)
			return differs, nil
		}
	}
}

// printLeft names the objects that a rollback leaves unchanged.
func printLeft(a *command.App, result *api.ChangeResult) {
	for _, ref := range result.Left {
		a.Printf("%s stays: it is defined in the daemon's object files, or belongs to a pod\n", output.Clean(fmt.Sprint(ref)))
	}
}
