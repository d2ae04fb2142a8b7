// SPDX-License-Identifier: Apache-2.0

package syncer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// The pauses before a rejected object is tried again.
const (
	refusedMin = 2 * time.Second
	refusedMax = 5 * time.Minute
	stuckAgain = 10 * time.Second // and before another attempt to delete stuck objects
)

// manyRefusals is the number of rejected objects in one transaction after which its objects are
// sent in small batches, in which a rejected object delays few others.
const manyRefusals, smallBatch = 8, 64

// Replace makes the daemon's objects match the desired ones, whatever they are now. Rejected
// objects stay unchanged in the daemon. The error means that the daemon is unreachable or failing.
func (s *Syncer) Replace(ctx context.Context) error {
	for _, e := range s.want {
		if e.refusal != nil { // the daemon may be a different one
			e.before, e.refusal = e.refusal, nil
		}
	}
	clear(s.stuck)
	s.replacing = true
	defer s.forget()
	s.o.All()
	if err := s.readKept(ctx); err != nil {
		return err
	}
	for refused := 0; ; refused++ {
		if refused == manyRefusals {
			if err := s.probe(ctx); err != nil {
				return err
			}
		}
		if err := s.readRefused(ctx); err != nil {
			return err
		}
		objects := s.desiredObjects()
		begin := time.Now()
		result, err := s.sendAll(ctx, objects)
		s.sent(api.MethodReplace, len(objects), begin, err)
		if err == nil {
			s.replaced(objects, result)
			return nil
		}
		if err := s.markRefused(ctx, objects, err); err != nil {
			return err
		}
	}
}

// readKept asks the daemon for its version of kept objects whose desired version is unknown: that
// version stays. An object that the daemon lacks is no longer wanted.
func (s *Syncer) readKept(ctx context.Context) error {
	for ref, e := range s.want {
		if e.object != nil {
			continue
		}
		current, err := s.get(ctx, ref)
		if err != nil {
			return err
		}
		if current == nil {
			s.drop(ref, e)
			s.groups[e.group] = slices.DeleteFunc(s.groups[e.group], func(r api.ObjectRef) bool { return r == ref })
			continue
		}
		e.object, e.sum, e.exists = current, s.sum(current), true
	}
	return nil
}

// desiredObjects returns the objects that a replace sends, in the order of kinds and names: for
// rejected objects, the daemon's current version.
func (s *Syncer) desiredObjects() []api.Object {
	objects := make([]api.Object, 0, len(s.want))
	for _, e := range s.want {
		switch {
		case e.refusal == nil:
			objects = append(objects, *e.object)
		case e.last != nil:
			objects = append(objects, *e.last)
		}
	}
	for _, o := range s.stuck {
		objects = append(objects, o)
	}
	s.sort(objects)
	return objects
}

// forget frees the objects that the daemon has.
func (s *Syncer) forget() {
	s.replacing = false
	for _, e := range s.want {
		if e.appliedSum == e.sum {
			e.object = nil
		}
	}
}

// batchSize is the approximate size of the objects of one request, in bytes. A single object may be
// larger, up to the limit of a request.
const batchSize = 512 << 10

// sendAll replaces all objects of the owner, in several requests if they are large.
func (s *Syncer) sendAll(ctx context.Context, objects []api.Object) (*api.ChangeResult, error) {
	params := api.ReplaceParams{Owner: s.o.Owner, Kinds: s.o.Kinds, Change: api.Change{Force: true}}
	var begin, size int
	for i := range objects {
		of := len(objects[i].Spec) + 512
		if size += of; size > batchSize && i > begin {
			if params.Transaction == "" {
				params.Transaction, params.More = client.NewRequestID(), true
			}
			params.Objects = objects[begin:i]
			if _, err := s.o.Client.Replace(ctx, params); err != nil {
				return nil, err
			}
			begin, size = i, of
		}
	}
	params.Objects, params.More = objects[begin:], false
	return s.o.Client.Replace(ctx, params)
}

func (s *Syncer) sort(objects []api.Object) {
	slices.SortFunc(objects, func(a, b api.Object) int {
		return cmp.Or(cmp.Compare(slices.Index(s.o.Kinds, a.Kind), slices.Index(s.o.Kinds, b.Kind)), strings.Compare(a.Name, b.Name))
	})
}

func (s *Syncer) replaced(objects []api.Object, result *api.ChangeResult) {
	for ref, e := range s.want {
		if e.refusal == nil {
			s.accepted(ref, e)
		} else {
			e.exists = e.last != nil
		}
	}
	clear(s.dirty)
	clear(s.toDelete)
	s.note(result)
	s.Seen(result.Revision)
	for group := range s.since {
		s.groupApplied(group)
	}
	changes := make([]any, 0, len(result.Summary)+2)
	changes = append(changes, slog.Uint64("revision", result.Revision), slog.Int("objects", len(objects)))
	for action, count := range result.Summary {
		changes = append(changes, slog.Int(action, count))
	}
	s.o.Log.Info("in sync with the daemon", changes...)
}

// markRefused marks the object that an error is about as refused, so that the rest can proceed. If
// the error is about no object, it returns the error.
func (s *Syncer) markRefused(ctx context.Context, objects []api.Object, err error) error {
	refused, ref := s.blame(objects, err)
	if refused == nil {
		return s.markStuck(ctx, err)
	}
	switch e := s.want[ref]; {
	case e == nil: // a stuck object
		delete(s.stuck, ref)
		return err
	case e.refusal != nil: // the fallback, or the daemon's previous version, is rejected as well
		e.last = s.fallback(e)
	default:
		s.refuse(ref, e, refused)
		if f := s.fallback(e); f != nil {
			e.last = f
		}
	}
	return nil
}

// readRefused asks the daemon for its version of the rejected objects: that version stays.
func (s *Syncer) readRefused(ctx context.Context) error {
	for ref, e := range s.want {
		if e.refusal == nil || e.last != nil || e.refusal.looked {
			continue
		}
		current, err := s.get(ctx, ref)
		if err != nil {
			return err
		}
		e.refusal.looked, e.last = true, current
	}
	return nil
}

// get returns the daemon's version of the object ref, or nil if the object does not exist or has
// another owner.
func (s *Syncer) get(ctx context.Context, ref api.ObjectRef) (*api.Object, error) {
	current, err := s.o.Client.Get(ctx, ref.Kind, ref.Name)
	if none, ok := errors.AsType[*api.Error](err); ok && none.Reason() == api.ReasonNotFound {
		return nil, nil
	}
	if err != nil || current.Owner != s.o.Owner {
		return nil, err
	}
	current.Status, current.Revision = nil, 0
	return current, nil
}

// markStuck keeps an object that the daemon refuses to delete because another client's object
// refers to it.
func (s *Syncer) markStuck(ctx context.Context, err error) error {
	refused, ok := errors.AsType[*api.Error](err)
	if !ok || refused.Reason() != api.ReasonConflict || refused.Data == nil {
		return err
	}
	kind, name, _ := strings.Cut(refused.Data.Object, "/")
	ref := api.ObjectRef{Kind: kind, Name: name}
	if _, again := s.stuck[ref]; again || !slices.Contains(s.o.Kinds, kind) || s.want[ref] != nil {
		return err
	}
	current, getErr := s.get(ctx, ref)
	if getErr != nil || current == nil {
		return errors.Join(err, getErr)
	}
	s.stuckNext = time.Now().Add(stuckAgain)
	s.o.Log.Warn("the daemon refuses to delete an object that the cluster no longer has; it stays", slog.String("object", ref.String()), slog.Any("error", err))
	s.stuck[ref] = *current
	return nil
}

// blame returns err as an API error, and the object in objects that caused it. The error is nil if
// none of them did.
func (s *Syncer) blame(objects []api.Object, err error) (*api.Error, api.ObjectRef) {
	refused, ok := errors.AsType[*api.Error](err)
	if !ok || refused.Data == nil {
		return nil, api.ObjectRef{}
	}
	if !aboutObjects(refused) {
		return nil, api.ObjectRef{}
	}
	for i := range objects {
		ref := api.ObjectRef{Kind: objects[i].Kind, Name: objects[i].Name}
		if refused.Data.Object == ref.String() || refused.Data.Object == "" && len(objects) == 1 {
			return refused, ref
		}
	}
	return nil, api.ObjectRef{}
}

// aboutObjects reports whether an error can be about the objects sent, not about the daemon.
func aboutObjects(err *api.Error) bool {
	switch err.Reason() {
	case api.ReasonInvalid, api.ReasonConflict, api.ReasonCapacity, api.ReasonUnsupported:
		return true
	}
	return false
}

// refuse records that the daemon rejected an object, and reports that once.
func (s *Syncer) refuse(ref api.ObjectRef, e *entry, err *api.Error) {
	now := &refusal{sum: e.sum, err: err, pause: refusedMin}
	before := cmp.Or(e.refusal, e.before)
	if before != nil && before.sum == e.sum {
		now.pause = min(2*before.pause, refusedMax)
	}
	now.next = time.Now().Add(now.pause)
	e.refusal, e.before, e.appliedSum = now, nil, 0
	delete(s.dirty, ref)
	if before != nil && before.sum == e.sum && before.err.Message == err.Message {
		return
	}
	s.o.Log.Warn("the daemon refuses an object; the others are applied", slog.String("object", ref.String()), slog.Any("error", err))
	if s.o.Refused != nil {
		s.o.Refused(ref, err)
	}
}

// accepted records that the daemon has the desired object.
func (s *Syncer) accepted(ref api.ObjectRef, e *entry) {
	e.appliedSum, e.exists, e.last = e.sum, true, nil
	if e.refused() {
		e.refusal, e.before = nil, nil
		if s.o.Accepted != nil {
			s.o.Accepted(ref)
		}
	}
	if !s.replacing {
		e.object = nil
	}
}

func (s *Syncer) groupApplied(group string) {
	if since, ok := s.since[group]; ok {
		delete(s.since, group)
		if s.o.Applied != nil {
			s.o.Applied(group, since)
		}
	}
}

func (s *Syncer) sent(method string, objects int, begin time.Time, err error) {
	if s.o.Sent != nil {
		s.o.Sent(method, objects, time.Since(begin), err)
	}
}
