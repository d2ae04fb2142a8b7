// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
)

// Flush sends changes since the last flush to the daemon, and retries objects that it refused some
// time ago. It uses one transaction for updates and one for deletions. If a claim moves from a
// deleted object to an updated one, it uses a single replace instead, so that no packet finds
// neither object.
func (k *Keeper) Flush(ctx context.Context) error {
	now := time.Now()
	if len(k.stuck) > 0 && !now.Before(k.stuckNext) {
		return k.Replace(ctx)
	}
	for ref, e := range k.want {
		if r := e.refusal; r != nil && (r.sum != e.sum || !now.Before(r.next)) {
			k.dirty[ref] = true
		}
	}
	var puts []api.Object
	for ref := range k.dirty {
		e := k.want[ref]
		if r := e.refusal; r != nil && r.sum == e.sum && now.Before(r.next) {
			delete(k.dirty, ref)
			continue
		}
		if e.told == e.sum { // it was changed back meanwhile
			delete(k.dirty, ref)
			k.accepted(ref, e)
			continue
		}
		puts = append(puts, *e.object)
	}
	sortObjects(puts)
	moved, err := k.apply(ctx, puts, len(k.gone) > 0)
	if err != nil {
		return err
	}
	if moved {
		return k.Replace(ctx)
	}
	if err := k.delete(ctx); err != nil {
		return err
	}
	k.tellGroups()
	return nil
}

// tellGroups reports the groups of which the daemon has all objects.
func (k *Keeper) tellGroups() {
	for group := range k.since {
		whole := true
		for _, ref := range k.groups[group] {
			whole = whole && !k.dirty[ref]
		}
		if whole {
			k.groupTold(group)
		}
	}
}

// apply sends objects, without the refused ones. moved is set if an object was refused because an
// object to be deleted holds its claim.
func (k *Keeper) apply(ctx context.Context, objects []api.Object, going bool) (moved bool, err error) {
	for refused := 0; len(objects) > 0; refused++ {
		if refused >= manyRefusals && len(objects) > smallBatch {
			for batch := range slices.Chunk(objects, smallBatch) {
				if moved, err := k.apply(ctx, batch, going); moved || err != nil {
					return moved, err
				}
			}
			return false, nil
		}
		begin := time.Now()
		result, err := k.o.Client.Apply(ctx, api.ApplyParams{Objects: objects, Change: api.Change{Force: true}})
		k.sent(api.MethodApply, len(objects), begin, err)
		if err == nil {
			k.applied(objects, result)
			return false, nil
		}
		cause, ref := k.blame(objects, err)
		if cause == nil {
			if wrong, ok := errors.AsType[*api.Error](err); ok && aboutObjects(wrong) && len(objects) > 1 {
				return k.halves(ctx, objects, going)
			}
			return false, err
		}
		if cause.Reason() == api.ReasonConflict && going {
			return true, nil
		}
		k.refuse(ref, k.want[ref], cause)
		objects = slices.DeleteFunc(objects, func(o api.Object) bool { return o.Kind == ref.Kind && o.Name == ref.Name })
	}
	return false, nil
}

// halves sends objects, one of which the daemon refuses without naming it.
func (k *Keeper) halves(ctx context.Context, objects []api.Object, going bool) (moved bool, err error) {
	for batch := range slices.Chunk(objects, (len(objects)+1)/2) {
		if moved, err := k.apply(ctx, slices.Clone(batch), going); moved || err != nil {
			return moved, err
		}
	}
	return false, nil
}

func (k *Keeper) applied(objects []api.Object, result *api.ChangeResult) {
	for _, o := range objects {
		ref := api.ObjectRef{Kind: o.Kind, Name: o.Name}
		delete(k.dirty, ref)
		k.accepted(ref, k.want[ref])
	}
	k.note(result)
	k.o.Log.Debug("the daemon has changes", slog.Uint64("revision", result.Revision), slog.Int("objects", len(objects)))
}

// delete sends the deletions.
func (k *Keeper) delete(ctx context.Context) error {
	if len(k.gone) == 0 {
		return nil
	}
	refs := slices.Collect(maps.Keys(k.gone))
	begin := time.Now()
	result, err := k.o.Client.Delete(ctx, api.DeleteParams{Objects: refs, Change: api.Change{Force: true}})
	k.sent(api.MethodDelete, len(refs), begin, err)
	if err != nil {
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Reason() == api.ReasonConflict {
			return k.Replace(ctx) // an object that still exists refers to it
		}
		return err
	}
	clear(k.gone)
	k.note(result)
	return nil
}

// probe finds the desired objects that the daemon refuses, in small transactions. It deletes
// nothing.
func (k *Keeper) probe(ctx context.Context) error {
	var objects []api.Object
	for _, e := range k.want {
		if e.refusal == nil {
			objects = append(objects, *e.object)
		}
	}
	sortObjects(objects)
	for batch := range slices.Chunk(objects, smallBatch) {
		if _, err := k.apply(ctx, slices.Clone(batch), false); err != nil {
			return err
		}
	}
	return nil
}

// CatchUp asks the daemon for the changes since events were lost, and reports whether another
// client changed an object of ours.
func (k *Keeper) CatchUp(ctx context.Context) (foreign bool, err error) {
	changes, err := k.o.Client.Changes(ctx, k.revision)
	if err != nil {
		return false, err
	}
	if changes.Expired {
		return true, nil
	}
	for _, c := range changes.Changes {
		foreign = foreign || k.Foreign(c.Revision, api.ObjectRef{Kind: c.Kind, Name: c.Name})
	}
	k.Seen(changes.Revision)
	return foreign, nil
}
