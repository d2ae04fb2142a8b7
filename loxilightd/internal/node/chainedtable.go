// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"iter"

	"github.com/loxilight/loxilight/datapath"
)

// chainedTable is a table that keeps its rows in two tables. Rows are added in the order of the
// fields and deleted in the reverse order.
type chainedTable[K comparable, V any] struct {
	first, then datapath.Table[K, V]
}

// Update implements [datapath.Table]. It updates the second table even if updating the first one
// fails.
func (c chainedTable[K, V]) Update(ctx context.Context, key K, value V) error {
	return errors.Join(c.first.Update(ctx, key, value), c.then.Update(ctx, key, value))
}

// Delete implements [datapath.Table].
func (c chainedTable[K, V]) Delete(ctx context.Context, key K) error {
	if err := c.then.Delete(ctx, key); err != nil {
		return err
	}
	return c.first.Delete(ctx, key)
}

// Keys implements [datapath.Table].
func (c chainedTable[K, V]) Keys(ctx context.Context) iter.Seq2[K, error] {
	return func(yield func(K, error) bool) {
		seen := map[K]bool{}
		for _, table := range []datapath.Table[K, V]{c.first, c.then} {
			for key, err := range table.Keys(ctx) {
				if err == nil && seen[key] {
					continue
				}
				seen[key] = true
				if !yield(key, err) {
					return
				}
			}
		}
	}
}

// Verify implements [datapath.Table].
func (c chainedTable[K, V]) Verify(ctx context.Context, key K) (bool, error) {
	ok, err := c.first.Verify(ctx, key)
	if !ok || err != nil {
		return ok, err
	}
	return c.then.Verify(ctx, key)
}
