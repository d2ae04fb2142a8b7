// SPDX-License-Identifier: Apache-2.0

package syncer

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
)

// Flush sends changes since the last flush to the daemon, and retries objects that the daemon
// rejected some time ago. It uses one transaction for updates and one for deletions. If a claim
// moves from a deleted object to an updated one, it uses a single replace instead, so that no
// packet finds neither object.
func (s *Syncer) Flush(ctx context.Context) error {
	now := time.Now()
	if len(s.stuck) > 0 && !now.Before(s.stuckNext) {
		return s.Replace(ctx)
	}
	for ref, e := range s.want {
		if r := e.refusal; r != nil && (r.sum != e.sum || !now.Before(r.next)) {
			s.dirty[ref] = true
		}
	}
	var puts []api.Object
	for ref := range s.dirty {
		e := s.want[ref]
		if r := e.refusal; r != nil && r.sum == e.sum && now.Before(r.next) {
			delete(s.dirty, ref)
			continue
		}
		if e.appliedSum == e.sum { // it has since been changed back
			delete(s.dirty, ref)
			s.accepted(ref, e)
			continue
		}
		if e.refusal != nil {
			e.refusal.attempt = 0 // the object itself is sent
		}
		puts = append(puts, *e.object)
	}
	s.sort(puts)
	moved, err := s.apply(ctx, puts, len(s.toDelete) > 0)
	if err != nil {
		return err
	}
	if moved {
		return s.Replace(ctx)
	}
	if err := s.delete(ctx); err != nil {
		return err
	}
	s.reportGroups()
	return nil
}

// reportGroups reports the groups of which the daemon has all objects.
func (s *Syncer) reportGroups() {
	for group := range s.since {
		complete := true
		for _, ref := range s.groups[group] {
			complete = complete && !s.dirty[ref]
		}
		if complete {
			s.groupApplied(group)
		}
	}
}

// apply sends objects, without the rejected ones. moved is set if an object was rejected because an
// object to be deleted holds its claim.
func (s *Syncer) apply(ctx context.Context, objects []api.Object, going bool) (moved bool, err error) {
	for refused := 0; len(objects) > 0; refused++ {
		if refused >= manyRefusals && len(objects) > smallBatch {
			for batch := range slices.Chunk(objects, smallBatch) {
				if moved, err := s.apply(ctx, batch, going); moved || err != nil {
					return moved, err
				}
			}
			return false, nil
		}
		begin := time.Now()
		result, err := s.o.Client.Apply(ctx, api.ApplyParams{Objects: objects, Change: api.Change{Force: true}})
		s.sent(api.MethodApply, len(objects), begin, err)
		if err == nil {
			s.applied(objects, result)
			return false, nil
		}
		cause, ref := s.blame(objects, err)
		if cause == nil {
			if wrong, ok := errors.AsType[*api.Error](err); ok && aboutObjects(wrong) && len(objects) > 1 {
				return s.halves(ctx, objects, going)
			}
			return false, err
		}
		if cause.Reason() == api.ReasonConflict && going {
			return true, nil
		}
		objects = s.substitute(objects, ref, cause)
	}
	return false, nil
}

// substitute replaces a rejected object by its fallback, or removes it if no fallback is left.
func (s *Syncer) substitute(objects []api.Object, ref api.ObjectRef, cause *api.Error) []api.Object {
	e := s.want[ref]
	if e.substituted() { // the fallback was rejected
		delete(s.dirty, ref)
	} else {
		s.refuse(ref, e, cause)
	}
	i := slices.IndexFunc(objects, func(o api.Object) bool { return o.Kind == ref.Kind && o.Name == ref.Name })
	if f := s.fallback(e); f != nil {
		objects = slices.Clone(objects)
		objects[i] = *f
		return objects
	}
	return slices.Delete(objects, i, i+1)
}

// substituted reports whether the daemon was last sent a fallback in place of the object.
func (e *entry) substituted() bool {
	return e.refusal != nil && e.refusal.sum == e.sum && e.refusal.attempt > 0
}

// fallback returns the next fallback of a rejected object, or nil if no fallback is left.
func (s *Syncer) fallback(e *entry) *api.Object {
	if s.o.Fallback == nil {
		return nil
	}
	f := s.o.Fallback(e.object, e.refusal.attempt+1)
	if f != nil {
		e.refusal.attempt++
		f.Owner = s.o.Owner
	}
	return f
}

// halves sends objects, one of which the daemon rejects without naming it.
func (s *Syncer) halves(ctx context.Context, objects []api.Object, going bool) (moved bool, err error) {
	for batch := range slices.Chunk(objects, (len(objects)+1)/2) {
		if moved, err := s.apply(ctx, slices.Clone(batch), going); moved || err != nil {
			return moved, err
		}
	}
	return false, nil
}

func (s *Syncer) applied(objects []api.Object, result *api.ChangeResult) {
	for _, o := range objects {
		ref := api.ObjectRef{Kind: o.Kind, Name: o.Name}
		delete(s.dirty, ref)
		if e := s.want[ref]; e.substituted() {
			e.exists, e.last = true, &o
		} else {
			s.accepted(ref, e)
		}
	}
	s.note(result)
	s.o.Log.Debug("the daemon has changes", slog.Uint64("revision", result.Revision), slog.Int("objects", len(objects)))
}

// delete sends the deletions.
func (s *Syncer) delete(ctx context.Context) error {
	if len(s.toDelete) == 0 {
		return nil
	}
	refs := slices.Collect(maps.Keys(s.toDelete))
	begin := time.Now()
	result, err := s.o.Client.Delete(ctx, api.DeleteParams{Objects: refs, Change: api.Change{Force: true}})
	s.sent(api.MethodDelete, len(refs), begin, err)
	if err != nil {
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Reason() == api.ReasonConflict {
			return s.Replace(ctx) // an object that still exists refers to it
		}
		return err
	}
	clear(s.toDelete)
	s.note(result)
	return nil
}

// probe finds the desired objects that the daemon rejects, in small transactions. It deletes
// nothing.
func (s *Syncer) probe(ctx context.Context) error {
	var objects []api.Object
	for _, e := range s.want {
		if e.refusal == nil {
			objects = append(objects, *e.object)
		}
	}
	s.sort(objects)
	for batch := range slices.Chunk(objects, smallBatch) {
		if _, err := s.apply(ctx, slices.Clone(batch), false); err != nil {
			return err
		}
	}
	return nil
}

// CatchUp asks the daemon for the changes since events were lost, and reports whether another
// client changed one of our objects.
func (s *Syncer) CatchUp(ctx context.Context) (foreign bool, err error) {
	changes, err := s.o.Client.Changes(ctx, s.revision)
	if err != nil {
		return false, err
	}
	if changes.Expired {
		return true, nil
	}
	for _, c := range changes.Changes {
		foreign = foreign || s.Foreign(c.Revision, api.ObjectRef{Kind: c.Kind, Name: c.Name})
	}
	s.Seen(changes.Revision)
	return foreign, nil
}
