// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestMaintenanceOfIdleNode: maintenance is rare while there is nothing to maintain, and frequent as
// soon as there is.
func TestMaintenanceOfIdleNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var idle atomic.Bool
		var calls atomic.Int32
		idle.Store(true)
		do := func(context.Context) error { calls.Add(1); return nil }
		m := newMaintenance([]periodicTask{{do, time.Second}}, idle.Load, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go m.run(ctx)
		time.Sleep(10 * time.Second)
		if n := calls.Swap(0); n != 2 {
			t.Errorf("%d calls in 10 s of an idle node, want 2", n)
		}
		idle.Store(false)
		m.objectsChanged()
		time.Sleep(10 * time.Second)
		if n := calls.Load(); n != 10 {
			t.Errorf("%d calls in 10 s, want 10", n)
		}
	})
}
