// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"iter"

	"github.com/loxilight/loxilight/datapath"
)

// unsupported is the table of what this data plane does not do: it is empty, and
// takes nothing.
type unsupported[K comparable, V any] struct{ what string }

// Update implements [datapath.Table].
func (u unsupported[K, V]) Update(context.Context, K, V) error {
	return fmt.Errorf("%s: %w", u.what, datapath.ErrUnsupported)
}

// Delete implements [datapath.Table].
func (u unsupported[K, V]) Delete(context.Context, K) error { return nil }

// Keys implements [datapath.Table].
func (u unsupported[K, V]) Keys(context.Context) iter.Seq2[K, error] {
	return func(func(K, error) bool) {}
}

// Verify implements [datapath.Table].
func (u unsupported[K, V]) Verify(context.Context, K) (bool, error) { return true, nil }

// NATCounters implements [datapath.Telemetry].
func (t *telemetry) NATCounters(context.Context, datapath.NATName) (datapath.RuleCounters, bool, error) {
	return datapath.RuleCounters{}, false, nil
}
