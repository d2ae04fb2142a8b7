// SPDX-License-Identifier: Apache-2.0

package changes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// maxAttempts is how often a change is tried if other clients change the state first.
const maxAttempts = 5

// Attempt carries out a transaction that prepare builds from the daemon's state, provided that the
// state does not change in between. If it does, the transaction is prepared again.
func Attempt(ctx context.Context, a *command.App, d command.Daemon, t Transaction, prepare func(t *Transaction) error) error {
	given := t.Change.IfRevision != nil
	for try := 1; ; try++ {
		if !given {
			revision, err := currentRevision(ctx, a, d)
			if err != nil {
				return err
			}
			t.Change.IfRevision = &revision
		}
		err := prepare(&t)
		if err == nil {
			err = CarryOut(ctx, a, d, t, nil)
		}
		e, ok := errors.AsType[*api.Error](err)
		if given || try == maxAttempts || !ok || e.Reason() != api.ReasonConflict {
			return err
		}
		// Any other conflict is permanent.
		if revision, revErr := currentRevision(ctx, a, d); revErr != nil || revision == *t.Change.IfRevision {
			return err
		}
	}
}

// currentRevision returns the daemon's revision.
func currentRevision(ctx context.Context, a *command.App, d command.Daemon) (uint64, error) {
	var page api.ListResult
	err := d.Call(ctx, api.MethodList, api.ListParams{Kind: api.KindInterface, Limit: 1}, &page)
	return page.Revision, err
}

// EditSpec changes the spec of one object. f changes only fields that it knows; fields that only a
// newer daemon knows stay.
func EditSpec(ctx context.Context, a *command.App, d command.Daemon, ref api.ObjectRef, change api.Change, f func(spec map[string]any) error) error {
	t := Transaction{Method: api.MethodApply, Change: change}
	return Attempt(ctx, a, d, t, func(t *Transaction) error {
		object, err := a.Object(ctx, d, ref.Kind, ref.Name)
		if err != nil {
			return err
		}
		if err := refuseFile(&object); err != nil {
			return err
		}
		var spec map[string]any
		dec := json.NewDecoder(strings.NewReader(string(object.Spec)))
		dec.UseNumber()
		if err := dec.Decode(&spec); err != nil {
			return fmt.Errorf("%s: the spec that the daemon has: %w", ref, err)
		}
		if err := f(spec); err != nil {
			return err
		}
		raw, err := document.Marshal(spec)
		if err != nil {
			return err
		}
		object.Spec, object.Status, object.Revision = raw, nil, 0
		t.Objects = []api.Object{object}
		return nil
	})
}

// refuseFile refuses to change an object that is defined in one of the daemon's object files: the
// next reload would undo the change.
func refuseFile(o *api.Object) error {
	if o.Owner != api.OwnerFile {
		return nil
	}
	return fmt.Errorf("%s/%s is defined in a file of the daemon's object directory; edit that file, then run llcli reload", o.Kind, o.Name)
}
