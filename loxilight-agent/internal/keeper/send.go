// SPDX-License-Identifier: Apache-2.0

package keeper

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

// The pauses before a refused object is tried again.
const (
	refusedMin = 2 * time.Second
	refusedMax = 5 * time.Minute
	stuckAgain = 10 * time.Second // and before another attempt to delete stuck objects
)

// manyRefusals is the number of refusals of one transaction after which its objects are sent in
// small batches, in which a refused object delays few others.
const manyRefusals, smallBatch = 8, 64

// Replace brings the daemon's objects to the desired ones, whatever they are now. Refused objects
// stay as they are in the daemon. The error means that the daemon is unreachable or failing.
func (k *Keeper) Replace(ctx context.Context) error {
	for _, e := range k.want {
		if e.refusal != nil { // the daemon may be another one
			e.before, e.refusal = e.refusal, nil
		}
	}
	clear(k.stuck)
	k.replacing = true
	defer k.forget()
	k.o.All()
	if err := k.recall(ctx); err != nil {
		return err
	}
	for refused := 0; ; refused++ {
		if refused == manyRefusals {
			if err := k.probe(ctx); err != nil {
				return err
			}
		}
		if err := k.fallBack(ctx); err != nil {
			return err
		}
		objects := k.standing()
		begin := time.Now()
		result, err := k.sendAll(ctx, objects)
		k.sent(api.MethodReplace, len(objects), begin, err)
		if err == nil {
			k.replaced(objects, result)
			return nil
		}
		if err := k.standDown(ctx, objects, err); err != nil {
			return err
		}
	}
}

// recall asks the daemon for its version of kept objects whose desired version is unknown: that
// version stays. An object that the daemon lacks is no longer wanted.
func (k *Keeper) recall(ctx context.Context) error {
	for ref, e := range k.want {
		if e.object != nil {
			continue
		}
		there, err := k.get(ctx, ref)
		if err != nil {
			return err
		}
		if there == nil {
			k.drop(ref, e)
			k.groups[e.group] = slices.DeleteFunc(k.groups[e.group], func(r api.ObjectRef) bool { return r == ref })
			continue
		}
		e.object, e.sum, e.there = there, k.sum(there), true
	}
	return nil
}

// standing returns the objects that a replace sends, in the order of kinds and names: for refused
// objects, the daemon's current version.
func (k *Keeper) standing() []api.Object {
	objects := make([]api.Object, 0, len(k.want))
	for _, e := range k.want {
		switch {
		case e.refusal == nil:
			objects = append(objects, *e.object)
		case e.last != nil:
			objects = append(objects, *e.last)
		}
	}
	for _, o := range k.stuck {
		objects = append(objects, o)
	}
	sortObjects(objects)
	return objects
}

// forget lets go of the objects that the daemon has.
func (k *Keeper) forget() {
	k.replacing = false
	for _, e := range k.want {
		if e.told == e.sum {
			e.object = nil
		}
	}
}

// partSize is about how many bytes of objects are sent at a time: less than a request may
// have. An object that is larger is for the client library to cut.
const partSize = 512 << 10

// sendAll is a replace, in parts if it is large.
func (k *Keeper) sendAll(ctx context.Context, objects []api.Object) (*api.ChangeResult, error) {
	params := api.ReplaceParams{Owner: k.o.Owner, Kinds: k.o.Kinds, Change: api.Change{Force: true}}
	var begin, size int
	for i := range objects {
		of := len(objects[i].Spec) + 512
		if of > partSize { // too large for one request: the client splits it, and so everything
			params.Objects, params.Change = objects, api.Change{Force: true}
			return k.o.Client.Replace(ctx, params)
		}
		if size += of; size > partSize {
			if params.Transaction == "" {
				params.Transaction, params.More = client.NewRequestID(), true
			}
			params.Objects = objects[begin:i]
			if _, err := k.o.Client.Replace(ctx, params); err != nil {
				return nil, err
			}
			begin, size = i, of
		}
	}
	params.Objects, params.More = objects[begin:], false
	return k.o.Client.Replace(ctx, params)
}

func sortObjects(objects []api.Object) {
	slices.SortFunc(objects, func(a, b api.Object) int {
		return cmp.Or(cmp.Compare(slices.Index(api.Kinds, a.Kind), slices.Index(api.Kinds, b.Kind)), strings.Compare(a.Name, b.Name))
	})
}

func (k *Keeper) replaced(objects []api.Object, result *api.ChangeResult) {
	for ref, e := range k.want {
		if e.refusal == nil {
			k.accepted(ref, e)
		} else {
			e.there = e.last != nil
		}
	}
	clear(k.dirty)
	clear(k.gone)
	k.note(result)
	k.Seen(result.Revision)
	for group := range k.since {
		k.groupTold(group)
	}
	changes := make([]any, 0, len(result.Summary)+2)
	changes = append(changes, slog.Uint64("revision", result.Revision), slog.Int("objects", len(objects)))
	for action, count := range result.Summary {
		changes = append(changes, slog.Int(action, count))
	}
	k.o.Log.Info("in step with the daemon", changes...)
}

// standDown marks the object of an error as refused, so that the rest can proceed. It returns the
// error if it is about no object.
func (k *Keeper) standDown(ctx context.Context, objects []api.Object, err error) error {
	refused, ref := k.blame(objects, err)
	if refused == nil {
		return k.stay(ctx, err)
	}
	switch e := k.want[ref]; {
	case e == nil: // of those that are stuck
		delete(k.stuck, ref)
		return err
	case e.refusal != nil: // the daemon's previous version is refused as well
		e.last = nil
	default:
		k.refuse(ref, e, refused)
	}
	return nil
}

// fallBack asks the daemon for its version of the refused objects: that version stays.
func (k *Keeper) fallBack(ctx context.Context) error {
	for ref, e := range k.want {
		if e.refusal == nil || e.last != nil || e.refusal.looked {
			continue
		}
		there, err := k.get(ctx, ref)
		if err != nil {
			return err
		}
		e.refusal.looked, e.last = true, there
	}
	return nil
}

// get returns the daemon's version of our object of that name; nil: it does not exist.
func (k *Keeper) get(ctx context.Context, ref api.ObjectRef) (*api.Object, error) {
	there, err := k.o.Client.Get(ctx, ref.Kind, ref.Name)
	if none, ok := errors.AsType[*api.Error](err); ok && none.Reason() == api.ReasonNotFound {
		return nil, nil
	}
	if err != nil || there.Owner != k.o.Owner {
		return nil, err
	}
	there.Status, there.Revision = nil, 0
	return there, nil
}

// stay keeps an object that the daemon refuses to delete because another client's object refers to
// it.
func (k *Keeper) stay(ctx context.Context, err error) error {
	refused, ok := errors.AsType[*api.Error](err)
	if !ok || refused.Reason() != api.ReasonConflict || refused.Data == nil {
		return err
	}
	kind, name, _ := strings.Cut(refused.Data.Object, "/")
	ref := api.ObjectRef{Kind: kind, Name: name}
	if _, again := k.stuck[ref]; again || !slices.Contains(k.o.Kinds, kind) || k.want[ref] != nil {
		return err
	}
	there, getErr := k.get(ctx, ref)
	if getErr != nil || there == nil {
		return errors.Join(err, getErr)
	}
	k.stuckNext = time.Now().Add(stuckAgain)
	k.o.Log.Warn("the daemon refuses to delete an object that the cluster no longer has; it stays", slog.String("object", ref.String()), slog.Any("error", err))
	k.stuck[ref] = *there
	return nil
}

// blame returns the object that an error is about; nil: it is about none of ours.
func (k *Keeper) blame(objects []api.Object, err error) (*api.Error, api.ObjectRef) {
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

// refuse records that the daemon refused an object, and reports that once.
func (k *Keeper) refuse(ref api.ObjectRef, e *entry, err *api.Error) {
	now := &refusal{sum: e.sum, err: err, pause: refusedMin}
	before := cmp.Or(e.refusal, e.before)
	if before != nil && before.sum == e.sum {
		now.pause = min(2*before.pause, refusedMax)
	}
	now.next = time.Now().Add(now.pause)
	e.refusal, e.before, e.told = now, nil, 0
	delete(k.dirty, ref)
	if before != nil && before.sum == e.sum && before.err.Message == err.Message {
		return
	}
	k.o.Log.Warn("the daemon refuses an object; the others are applied", slog.String("object", ref.String()), slog.Any("error", err))
	if k.o.Refused != nil {
		k.o.Refused(ref, err)
	}
}

// accepted records that the daemon has the desired object.
func (k *Keeper) accepted(ref api.ObjectRef, e *entry) {
	e.told, e.there, e.last = e.sum, true, nil
	if e.refused() {
		e.refusal, e.before = nil, nil
		if k.o.Accepted != nil {
			k.o.Accepted(ref)
		}
	}
	if !k.replacing {
		e.object = nil
	}
}

func (k *Keeper) groupTold(group string) {
	if since, ok := k.since[group]; ok {
		delete(k.since, group)
		if k.o.Told != nil {
			k.o.Told(group, since)
		}
	}
}

func (k *Keeper) sent(method string, objects int, begin time.Time, err error) {
	if k.o.Sent != nil {
		k.o.Sent(method, objects, time.Since(begin), err)
	}
}
