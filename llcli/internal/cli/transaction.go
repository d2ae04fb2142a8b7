// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"time"

	"github.com/loxilight/loxilight/api"
)

// transaction is a change of objects.
type transaction struct {
	method  string
	objects []api.Object    // of apply and replace
	refs    []api.ObjectRef // of delete
	owner   string          // of replace and rollback
	kinds   []string        // of replace
	back    uint64          // of rollback: the revision to go back to, unless undo is set
	undo    uint64          // of rollback: the change that waits to be confirmed
	change  api.Change
}

// send carries out the transaction.
func (t *transaction) send(ctx context.Context, d Daemon) (*api.ChangeResult, error) {
	var result api.ChangeResult
	err := d.Change(ctx, t.method, t.change.RequestID, time.Duration(t.change.Wait), t.params(), &result)
	return &result, err
}

func (t *transaction) params() any {
	switch t.method {
	case api.MethodDelete:
		return api.DeleteParams{Objects: t.refs, Change: t.change}
	case api.MethodReplace:
		return api.ReplaceParams{Owner: t.owner, Kinds: t.kinds, Objects: t.objects, Change: t.change}
	case api.MethodRollback:
		p := api.RollbackParams{Undo: t.undo, Owner: t.owner, Change: t.change}
		if t.undo == 0 {
			p.Revision = &t.back
		}
		return p
	default:
		return api.ApplyParams{Objects: t.objects, Change: t.change}
	}
}

// mostDiffs is for how many objects a dry run shows the difference.
const mostDiffs = 20

// changed returns the objects of which a dry run shows the difference.
func (t *transaction) changed(result *api.ChangeResult) (objects []api.Object) {
	action := map[api.ObjectRef]string{}
	for _, c := range result.Changes {
		action[api.ObjectRef{Kind: c.Kind, Name: c.Name}] = c.Action
	}
	for i := range t.objects {
		o := &t.objects[i]
		if action[api.ObjectRef{Kind: o.Kind, Name: o.Name}] == api.ActionUpdated && len(objects) < mostDiffs {
			objects = append(objects, *o)
		}
	}
	return objects
}
