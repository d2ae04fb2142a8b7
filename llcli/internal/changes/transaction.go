// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"context"
	"fmt"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
)

// CheckAbsent refuses to change objects that already exist with a different spec.
func (t *Transaction) CheckAbsent(ctx context.Context, d command.Daemon) error {
	dry := *t
	dry.Change = api.Change{DryRun: true, IfRevision: t.Change.IfRevision, Confirm: t.Change.Confirm} // it may join a pending change
	result, err := dry.send(ctx, d)
	if err != nil {
		return err
	}
	for _, c := range result.Changes {
		if c.Action == api.ActionUpdated {
			return fmt.Errorf("%s/%s already exists with a different spec; use llcli %s set, or --overwrite", c.Kind, c.Name, kinds.NounOf(c.Kind))
		}
	}
	return nil
}

// Transaction is a change to objects.
type Transaction struct {
	Method  string
	Objects []api.Object    // of apply and replace
	refs    []api.ObjectRef // of delete
	owner   string          // of replace and rollback
	kinds   []string        // of replace
	back    uint64          // of rollback: the revision to return to, unless undo is set
	undo    uint64          // of rollback: the change that awaits confirmation
	Change  api.Change
}

// send carries out the transaction.
func (t *Transaction) send(ctx context.Context, d command.Daemon) (*api.ChangeResult, error) {
	var result api.ChangeResult
	err := d.Change(ctx, t.Method, t.Change.RequestID, time.Duration(t.Change.Wait), t.params(), &result)
	return &result, err
}

func (t *Transaction) params() any {
	switch t.Method {
	case api.MethodDelete:
		return api.DeleteParams{Objects: t.refs, Change: t.Change}
	case api.MethodReplace:
		return api.ReplaceParams{Owner: t.owner, Kinds: t.kinds, Objects: t.Objects, Change: t.Change}
	case api.MethodRollback:
		p := api.RollbackParams{Undo: t.undo, Owner: t.owner, Change: t.Change}
		if t.undo == 0 {
			p.Revision = &t.back
		}
		return p
	default:
		return api.ApplyParams{Objects: t.Objects, Change: t.Change}
	}
}

// mostDiffs is the maximum number of objects whose differences a dry run shows.
const mostDiffs = 20

// changed returns the objects whose differences a dry run shows.
func (t *Transaction) changed(result *api.ChangeResult) (objects []api.Object) {
	action := map[api.ObjectRef]string{}
	for _, c := range result.Changes {
		action[api.ObjectRef{Kind: c.Kind, Name: c.Name}] = c.Action
	}
	for i := range t.Objects {
		o := &t.Objects[i]
		if action[api.ObjectRef{Kind: o.Kind, Name: o.Name}] == api.ActionUpdated && len(objects) < mostDiffs {
			objects = append(objects, *o)
		}
	}
	return objects
}
