// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// derivedMark marks the names of derived rows: rows that are made from other objects than the one
// with their name. Object names never contain it.
const derivedMark = "#"

// rowOf returns the name of a row, or of a rule, that is derived from an object.
func rowOf(k state.Key, what string) string { return k.String() + derivedMark + what }

// ownerOf returns the object from which a row or a rule of a kind is derived.
func ownerOf(kind, row string) state.Key {
	if whose, _, ok := strings.Cut(row, derivedMark); ok {
		if of, name, ok := strings.Cut(whose, "/"); ok {
			return state.Key{Kind: of, Name: name}
		}
	}
	return state.Key{Kind: kind, Name: row}
}

func isDerived[K ~string](row K) bool { return strings.Contains(string(row), derivedMark) }

// ordered is a table whose rows are applied after the rows of earlier tables, and deleted before
// them.
type ordered interface {
	rowTable
	applyAndWait(ctx context.Context, s *state.Snapshot, changed []state.Key, gone bool)
}

// rows is the table for a kind of object each of which is one row, and for rows that are derived
// from PodNetworks and other objects.
type rows[K ~string, V any] struct {
	*reconcile.Reconciler[K, V]
	kind  string
	store *state.Store
	value func(o *state.Object) V

	// derived are the desired derived rows, and queued are the changes to derived rows that the
	// reconciler has not received yet; both are used by follow only.
	derived *derivedRows[K, V]
	queued  map[K]reconcile.Change[K, V]
	// received are the derived rows that the reconciler has received.
	received atomic.Pointer[derivedRows[K, V]]
}

// derivedRows are the derived rows of one table as of a revision.
type derivedRows[K ~string, V any] struct {
	revision uint64
	wanted   map[K]V
	needed   []K // rows that every PodNetwork needs to be Ready, derived or not
}

func newRows[K ~string, V any](n *Node, kind string, table datapath.Table[K, V], value func(*state.Object) V) *rows[K, V] {
	r := &rows[K, V]{kind: kind, store: n.opts.Store, value: value, derived: &derivedRows[K, V]{}, queued: map[K]reconcile.Change[K, V]{}}
	r.received.Store(r.derived)
	r.Reconciler = reconcile.New(reconcile.Options[K, V]{
		Table: table, Log: n.logOf(kind),
		Keep: func(k K) bool { return n.keeps(kind, string(k)) },
		Notify: func(k K, s Status) {
			if !isDerived(k) {
				n.reportRow(state.Key{Kind: kind, Name: string(k)}, s)
			}
			n.rowsChanged(r)
		},
	})
	return r
}

// apply passes the changed objects of this kind to the reconciler, either the deleted ones (if gone
// is set) or all others, and returns their keys.
func (r *rows[K, V]) apply(s *state.Snapshot, changed []state.Key, gone bool) (keys []K) {
	var changes []reconcile.Change[K, V]
	for _, k := range changed {
		if k.Kind != r.kind {
			continue
		}
		o, ok := s.Get(k)
		if ok == gone {
			continue
		}
		c := reconcile.Change[K, V]{Key: K(k.Name), Remove: gone}
		if ok {
			c.Value = r.value(o)
		}
		changes, keys = append(changes, c), append(keys, c.Key)
	}
	for k, c := range r.queued {
		if c.Remove == gone {
			changes, keys = append(changes, c), append(keys, k)
			delete(r.queued, k)
		}
	}
	r.Apply(s.Revision, changes)
	if !gone {
		r.received.Store(r.derived)
	}
	return keys
}

// applyAndWait calls apply, and waits until all changes have been tried or ctx ends.
func (r *rows[K, V]) applyAndWait(ctx context.Context, s *state.Snapshot, changed []state.Key, gone bool) {
	if keys := r.apply(s, changed, gone); len(keys) > 0 {
		_ = r.WaitTried(ctx, keys...) // after a timeout, rows that depend on these are retried
	}
}

// none returns no derived rows, as of a snapshot.
func (r *rows[K, V]) none(s *state.Snapshot) *derivedRows[K, V] {
	return &derivedRows[K, V]{revision: s.Revision, wanted: map[K]V{}}
}

// add adds a row that every PodNetwork needs to be Ready.
func (d *derivedRows[K, V]) add(name K, value V) {
	d.wanted[name] = value
	d.needed = append(d.needed, name)
}

// derive sets the desired derived rows; the next apply passes differences to the reconciler.
func (r *rows[K, V]) derive(now *derivedRows[K, V]) {
	for k, v := range now.wanted {
		if old, ok := r.derived.wanted[k]; !ok || !reflect.DeepEqual(old, v) {
			r.queued[k] = reconcile.Change[K, V]{Key: k, Value: v}
		}
	}
	for k := range r.derived.wanted {
		if _, ok := now.wanted[k]; !ok {
			r.queued[k] = reconcile.Change[K, V]{Key: k, Remove: true}
		}
	}
	r.derived = now
}

// check implements rowTable.
func (r *rows[K, V]) check(o *state.Object, list []Status) ([]Status, uint64) {
	if o.Kind != r.kind {
		received := r.received.Load()
		if o.Revision > received.revision {
			return nil, 0
		}
		return append(list, r.notDone(received.needed)...), o.Revision
	}
	s, ok := r.Status(K(o.Name))
	if !ok || o.Revision > s.Revision {
		return nil, 0
	}
	if s.State != reconcile.Done {
		list = append(list, s)
	}
	return list, o.Revision
}

// current returns the status of a row. A row whose object has changed since the reconciler received
// it is Pending.
func (r *rows[K, V]) current(name K) (Status, bool) {
	s, ok := r.Status(name)
	if !ok || s.State != reconcile.Done || isDerived(name) {
		return s, ok
	}
	if o, exists := r.store.Snapshot().Get(state.Key{Kind: r.kind, Name: string(name)}); exists && o.Revision > s.Revision {
		s = Status{State: reconcile.Pending, Revision: o.Revision, Message: "not applied yet"}
	}
	return s, ok
}

// notDone returns the status of the first few of the named rows that are not done. It is fast if
// all rows in the table are done.
func (r *rows[K, V]) notDone(names []K) (some []Status) {
	const few = 3
	if len(names) > few && r.IsSettled() {
		return nil
	}
	for _, name := range names {
		if s, _ := r.Status(name); s.State != reconcile.Done {
			if some = append(some, s); len(some) == few {
				break
			}
		}
	}
	return some
}

// isDeleted implements rowTable. A deleted PodNetwork may leave rows to another one.
func (r *rows[K, V]) isDeleted(k state.Key) bool {
	if k.Kind == r.kind {
		return !r.Has(K(k.Name))
	}
	for _, row := range r.Removing() {
		if isDerived(row) {
			return false
		}
	}
	return len(r.notDone(r.received.Load().needed)) == 0
}

// nothing is the table for rows that the data plane does not support.
type nothing[K comparable, V any] struct{ what string }

func (n nothing[K, V]) Update(context.Context, K, V) error {
	return fmt.Errorf("%s: %w", n.what, datapath.ErrUnsupported)
}
func (nothing[K, V]) Delete(context.Context, K) error          { return nil }
func (nothing[K, V]) Keys(context.Context) iter.Seq2[K, error] { return func(func(K, error) bool) {} }
func (nothing[K, V]) Verify(context.Context, K) (bool, error)  { return true, nil }
