// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"iter"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
)

// WatchOptions select the objects of [Client.Watch].
type WatchOptions struct {
	Kinds []string // empty: all of [api.Kinds]
	Name  string   // empty: all
	Owner string   // empty: all
}

// Watched is one step of [Client.Watch].
type Watched struct {
	Ref    api.ObjectRef
	Object *api.Object // current state of the object; nil: it was deleted
	// Synced is set in a step without object: all existing objects have been reported. It is
	// repeated after each interruption.
	Synced bool
}

// Watch yields all objects that o selects, then each object whose spec or status changes, until ctx
// ends. Changes of one object in quick succession may be merged, but the object's latest state is
// always reported. After lost events or an interruption, Watch reads the current state again and
// yields the differences. An error is also yielded as a step: if the caller continues, Watch tries
// again after a pause.
func (c *Client) Watch(ctx context.Context, o WatchOptions) iter.Seq2[Watched, error] {
	if len(o.Kinds) == 0 {
		o.Kinds = api.Kinds
	}
	return func(yield func(Watched, error) bool) {
		w := &watch{client: c, options: o, yield: yield, known: map[api.ObjectRef]uint64{}, seed: maphash.MakeSeed()}
		for pause := pauseMin; ; pause = min(2*pause, pauseMax) {
			w.synced = false
			err := w.run(ctx)
			if errors.Is(err, errStopped) || ctx.Err() != nil || !yield(Watched{}, err) {
				return
			}
			if w.synced {
				pause = pauseMin
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	}
}

// The pauses before the daemon is contacted again.
const pauseMin, pauseMax = 100 * time.Millisecond, 5 * time.Second

// relistAbove is the number of simultaneously changed objects above which listing all objects is
// cheaper than reading each.
const relistAbove = 200

// errStopped: the caller has ended the iteration.
var errStopped = errors.New("stopped")

type watch struct {
	client  *Client
	options WatchOptions
	yield   func(Watched, error) bool
	known   map[api.ObjectRef]uint64 // reported state, as a hash
	seed    maphash.Seed
	synced  bool
}

// run watches with one subscription.
func (w *watch) run(ctx context.Context) error {
	events, err := w.client.Subscribe(ctx, api.TopicChanges, api.TopicStatus)
	if err != nil {
		return err
	}
	defer events.Close()
	if err := w.list(ctx); err != nil {
		return err
	}
	for {
		touched, lost, err := w.collect(ctx, events)
		if err != nil {
			return err
		}
		if lost || len(touched) > relistAbove {
			err = w.list(ctx)
		} else {
			err = w.get(ctx, touched)
		}
		if err != nil {
			return err
		}
	}
}

// collect waits for an event and returns the objects of this event and of the events queued behind
// it.
func (w *watch) collect(ctx context.Context, events *Subscription) (touched []api.ObjectRef, lost bool, err error) {
	seen := map[api.ObjectRef]bool{}
	for {
		e, err := events.Next(ctx)
		if err != nil {
			return nil, false, err
		}
		lost = lost || e.Lost > 0
		if e.Data != nil {
			var ref api.ObjectRef // changes and status name their object in the same fields
			if err := e.Decode(&ref); err != nil {
				return nil, false, err
			}
			if w.chosen(ref) && !seen[ref] {
				seen[ref] = true
				touched = append(touched, ref)
			}
		}
		if !events.pending() || len(touched) > relistAbove {
			return touched, lost, nil
		}
	}
}

func (w *watch) chosen(ref api.ObjectRef) bool {
	return slices.Contains(w.options.Kinds, ref.Kind) && (w.options.Name == "" || w.options.Name == ref.Name)
}

// list reports the differences from the previous report.
func (w *watch) list(ctx context.Context) error {
	there := map[api.ObjectRef]bool{}
	for _, kind := range w.options.Kinds {
		for object, err := range w.client.List(ctx, api.ListParams{Kind: kind, Owner: w.options.Owner}) {
			if err != nil {
				return err
			}
			ref := api.ObjectRef{Kind: object.Kind, Name: object.Name}
			if !w.chosen(ref) {
				continue
			}
			there[ref] = true
			if err := w.tell(ref, &object); err != nil {
				return err
			}
		}
	}
	for ref := range w.known {
		if !there[ref] {
			if err := w.tell(ref, nil); err != nil {
				return err
			}
		}
	}
	w.synced = true
	return w.step(Watched{Synced: true})
}

// get reports the current state of some objects.
func (w *watch) get(ctx context.Context, refs []api.ObjectRef) error {
	for _, ref := range refs {
		object, err := w.client.Get(ctx, ref.Kind, ref.Name)
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Reason() == api.ReasonNotFound {
			object, err = nil, nil
		}
		if err != nil {
			return err
		}
		if object != nil && w.options.Owner != "" && object.Owner != w.options.Owner {
			object = nil
		}
		if err := w.tell(ref, object); err != nil {
			return err
		}
	}
	return nil
}

// tell reports an object, or its deletion, unless it has been reported already.
func (w *watch) tell(ref api.ObjectRef, object *api.Object) error {
	before, known := w.known[ref]
	if object == nil {
		if !known {
			return nil
		}
		delete(w.known, ref)
		return w.step(Watched{Ref: ref})
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return err
	}
	now := maphash.Bytes(w.seed, encoded)
	if known && before == now {
		return nil
	}
	w.known[ref] = now
	return w.step(Watched{Ref: ref, Object: object})
}

func (w *watch) step(s Watched) error {
	if !w.yield(s, nil) {
		return errStopped
	}
	return nil
}
