// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ordered is a part whose objects are applied after the objects of earlier parts, and deleted before
// them.
type ordered interface {
	applyAndWait(ctx context.Context, s *state.Snapshot, changed []state.Key, gone bool)
}

// part applies the objects of one or a few kinds.
type part interface {
	Run(ctx context.Context)
	Trigger()
	MarkInitialized()
	Repairs() uint64

	// synced returns channels that are closed once an attempt has been made to apply everything.
	synced() []<-chan struct{}
	// status, notDone and wait are like the methods of [Node] with the same names.
	status(k state.Key) (Status, bool)
	notDone(limit int) (some map[state.Key]Status, count int)
	wait(ctx context.Context, revision uint64, keys []state.Key) []state.Key
}

// rows is the part for a kind of object each of which is one row in a table.
type rows[K ~string, V any] struct {
	*reconcile.Reconciler[K, V]
	kind  string
	value func(o *state.Object) V

	// The fields below are for derived rows; used by follow only.
	wanted map[K]V
	queued map[K]reconcile.Change[K, V] // changes that the reconciler has not received yet
	names  atomic.Pointer[[]K]          // names of wanted, for other goroutines
}

func newRows[K ~string, V any](n *Node, kind string, table datapath.Table[K, V], value func(*state.Object) V) *rows[K, V] {
	noPrune := map[K]bool{}
	for _, k := range n.opts.NoPrune {
		if k.Kind == kind {
			noPrune[K(k.Name)] = true
		}
		if slices.Contains(derivedKinds, k.Kind) {
			keepDerived(table, noPrune)
		}
	}
	r := &rows[K, V]{kind: kind, value: value, queued: map[K]reconcile.Change[K, V]{}}
	r.Reconciler = reconcile.New(reconcile.Options[K, V]{
		Table: table, Log: n.logOf(kind), NoPrune: noPrune,
		Notify: func(k K, s Status) {
			if !isDerived(k) {
				n.report(state.Key{Kind: kind, Name: string(k)}, s)
			}
			n.derived.reportAll()
		},
	})
	return r
}

// keepDerived keeps all existing derived rows: they may come from objects that this version
// cannot decode.
func keepDerived[K ~string, V any](table datapath.Table[K, V], noPrune map[K]bool) {
	for k, err := range table.Keys(context.Background()) {
		if err == nil && isDerived(k) {
			noPrune[k] = true
		}
	}
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
	for _, c := range r.takeDerived(gone) {
		changes, keys = append(changes, c), append(keys, c.Key)
	}
	r.Apply(s.Revision, changes)
	return keys
}

// applyAndWait calls apply, and waits until all changes have been tried or ctx ends.
func (r *rows[K, V]) applyAndWait(ctx context.Context, s *state.Snapshot, changed []state.Key, gone bool) {
	if keys := r.apply(s, changed, gone); len(keys) > 0 {
		_ = r.WaitTried(ctx, keys...) // after a timeout, rows that depend on these are retried
	}
}

func (r *rows[K, V]) synced() []<-chan struct{} { return []<-chan struct{}{r.Synced()} }

func (r *rows[K, V]) status(k state.Key) (Status, bool) { return r.Status(K(k.Name)) }

func (r *rows[K, V]) notDone(limit int) (some map[state.Key]Status, count int) {
	some = map[state.Key]Status{}
	derived := r.derivedNotDone()
	for k, s := range r.NotDone(limit + derived) {
		if len(some) < limit && !isDerived(k) {
			some[state.Key{Kind: r.kind, Name: string(k)}] = s
		}
	}
	c := r.Counts()
	return some, c[reconcile.Pending] + c[reconcile.Failed] - derived
}

func (r *rows[K, V]) wait(ctx context.Context, revision uint64, keys []state.Key) []state.Key {
	names := make([]K, len(keys))
	for i, k := range keys {
		names[i] = K(k.Name)
	}
	if len(names) == 0 {
		return nil // the reconciler would take an empty list to mean all rows
	}
	names, err := r.WaitDone(ctx, revision, names...)
	if err == nil {
		return nil
	}
	left := make([]state.Key, len(names))
	for i, name := range names {
		left[i] = state.Key{Kind: r.kind, Name: string(name)}
	}
	return left
}

// nothing is the table for rows that the data plane does not support.
type nothing[K comparable, V any] struct{ what string }

func (n nothing[K, V]) Update(context.Context, K, V) error {
	return fmt.Errorf("%s: %w", n.what, datapath.ErrUnsupported)
}
func (nothing[K, V]) Delete(context.Context, K) error          { return nil }
func (nothing[K, V]) Keys(context.Context) iter.Seq2[K, error] { return func(func(K, error) bool) {} }
func (nothing[K, V]) Verify(context.Context, K) (bool, error)  { return true, nil }
