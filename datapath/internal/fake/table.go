// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath"
)

// table is a datapath.Table in memory. It panics if two of its methods run concurrently, which its
// contract forbids.
type table[K cmp.Ordered, V any] struct {
	faults *faults
	kind   string
	// admit rejects a change, or accounts for it. old is nil for a new row, wanted for a removed
	// one.
	admit func(old, wanted *V) error
	busy  atomic.Bool

	mu    sync.Mutex // for observers
	rows  map[K]*V
	spoil map[K]struct{} // rows that another program changed
}

func newTable[K cmp.Ordered, V any](f *faults, kind string, admit func(old, wanted *V) error) *table[K, V] {
	return &table[K, V]{faults: f, kind: kind, admit: admit, rows: map[K]*V{}, spoil: map[K]struct{}{}}
}

func (t *table[K, V]) enter() (leave func()) {
	if !t.busy.CompareAndSwap(false, true) {
		panic("fake: two calls of the " + t.kind + " table at once")
	}
	return func() { t.busy.Store(false) }
}

// Update implements [datapath.Table].
func (t *table[K, V]) Update(ctx context.Context, key K, value V) error {
	defer t.enter()()
	return t.change(ctx, "update", key, &value)
}

// Delete implements [datapath.Table].
func (t *table[K, V]) Delete(ctx context.Context, key K) error {
	defer t.enter()()
	return t.change(ctx, "delete", key, nil)
}

func (t *table[K, V]) change(ctx context.Context, verb string, key K, wanted *V) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s %v: %w", verb, t.kind, key, err)
	}
	fails, done := t.faults.next()
	t.mu.Lock()
	defer t.mu.Unlock()
	if done {
		if err := t.admit(t.rows[key], wanted); err != nil {
			return fmt.Errorf("%s %s %v: %w", verb, t.kind, key, err)
		}
		delete(t.spoil, key)
		if wanted == nil {
			delete(t.rows, key)
		} else {
			t.rows[key] = wanted
		}
	}
	if fails {
		return fmt.Errorf("%s %s %v: %w", verb, t.kind, key, ErrInjected)
	}
	return nil
}

// Keys implements [datapath.Table].
func (t *table[K, V]) Keys(context.Context) iter.Seq2[K, error] {
	return func(yield func(K, error) bool) {
		defer t.enter()()
		t.mu.Lock()
		keys := slices.Sorted(maps.Keys(t.rows))
		t.mu.Unlock()
		for _, k := range keys {
			if fails, _ := t.faults.next(); fails {
				yield(k, fmt.Errorf("list %ss: %w", t.kind, ErrInjected))
				return
			}
			if !yield(k, nil) {
				return
			}
		}
	}
}

// Verify implements [datapath.Table].
func (t *table[K, V]) Verify(_ context.Context, key K) (bool, error) {
	defer t.enter()()
	if fails, _ := t.faults.next(); fails {
		return false, fmt.Errorf("verify %s %v: %w", t.kind, key, ErrInjected)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, spoilt := t.spoil[key]
	return t.rows[key] != nil && !spoilt, nil
}

// ruleTable is a table of one row, which is a set of rules.
type ruleTable[V interface{ Names() []string }] struct{ *table[datapath.SetName, V] }

// Rules implements [datapath.RuleTable].
func (t ruleTable[V]) Rules() []string {
	set, _ := t.get(datapath.NodeSet)
	return set.Names()
}

// serviceTable is the table of services.
type serviceTable struct {
	*table[datapath.ServiceName, datapath.Service]
}

// OutOfUse implements [datapath.ServiceTable].
func (t serviceTable) OutOfUse() iter.Seq2[datapath.ServiceName, datapath.BackendAddr] {
	return func(yield func(datapath.ServiceName, datapath.BackendAddr) bool) {
		for name, s := range t.content() {
			for _, b := range s.Backends {
				if b.Weight > 0 && b.State != datapath.BackendActive && !yield(name, b.Addr) {
					return
				}
			}
		}
	}
}

// content returns a copy of the rows.
func (t *table[K, V]) content() map[K]V {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := make(map[K]V, len(t.rows))
	for k, v := range t.rows {
		m[k] = *v
	}
	return m
}

func (t *table[K, V]) get(key K) (v V, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.rows[key]; p != nil {
		return *p, true
	}
	return v, false
}

// damage changes or removes a row as an external change.
func (t *table[K, V]) damage(key K, remove bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !remove {
		t.spoil[key] = struct{}{}
		return nil
	}
	if err := t.admit(t.rows[key], nil); err != nil {
		return err
	}
	delete(t.rows, key)
	return nil
}
