// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"iter"

	"github.com/loxilight/loxilight/datapath"
)

// joined is a table whose rows are in two tables: each is added to first before then, and deleted
// from it after.
type joined[K comparable, V any] struct {
	first, then datapath.Table[K, V]
}

// Update implements [datapath.Table]. It updates the second table even if the first one fails.
func (j joined[K, V]) Update(ctx context.Context, key K, value V) error {
	return errors.Join(j.first.Update(ctx, key, value), j.then.Update(ctx, key, value))
}

// Delete implements [datapath.Table].
func (j joined[K, V]) Delete(ctx context.Context, key K) error {
	if err := j.then.Delete(ctx, key); err != nil {
		return err
	}
	return j.first.Delete(ctx, key)
}

// Keys implements [datapath.Table].
func (j joined[K, V]) Keys(ctx context.Context) iter.Seq2[K, error] {
	return func(yield func(K, error) bool) {
		seen := map[K]bool{}
		for _, table := range []datapath.Table[K, V]{j.first, j.then} {
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
func (j joined[K, V]) Verify(ctx context.Context, key K) (bool, error) {
	ok, err := j.first.Verify(ctx, key)
	if !ok || err != nil {
		return ok, err
	}
	return j.then.Verify(ctx, key)
}
