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
	owner   string          // of replace
	kinds   []string        // of replace
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
	default:
		return api.ApplyParams{Objects: t.objects, Change: t.change}
	}
}
