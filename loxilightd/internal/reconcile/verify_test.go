// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// slow is a table that verifies rows slowly.
type slow struct {
	*table
	verify atomic.Int64 // as a [time.Duration]
}

func (s *slow) Verify(ctx context.Context, key string) (bool, error) {
	time.Sleep(time.Duration(s.verify.Load()))
	return s.table.Verify(ctx, key)
}

// TestVerificationMakesWay: a changed row waits for the row under verification, not for all rows.
func TestVerificationMakesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slow{table: newTable(map[string]int{})}
		r := startWith(t, f, Options[string, int]{})
		var many []Change[string, int]
		for i := range 100 {
			many = append(many, put(fmt.Sprint("row ", i), i))
		}
		r.Apply(1, many)
		synctest.Wait()
		f.verify.Store(int64(10 * time.Millisecond))
		r.Trigger()
		time.Sleep(15 * time.Millisecond) // in the middle of the second row
		begin := time.Now()
		r.Apply(2, []Change[string, int]{put("new", 1)})
		time.Sleep(5 * time.Second)
		var updated time.Time
		f.set(func() { updated = f.updated["new"] })
		if took := updated.Sub(begin); took > 10*time.Millisecond || updated.IsZero() {
			t.Errorf("a changed row waited for %s", took)
		}
		f.set(func() { delete(f.rows, "row 7") })
		time.Sleep(time.Minute)
		if content := f.content(); len(content) != 101 {
			t.Errorf("%d rows, want 101: the round was not finished", len(content))
		}
	})
}

// TestVerifyNow: VerifyNow returns the current state although no round of verification is due.
func TestVerifyNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		r := startWith(t, f, Options[string, int]{VerifyInterval: time.Hour, MinBackoff: time.Minute})
		r.Apply(1, []Change[string, int]{put("pod", 1)})
		synctest.Wait()
		state := func(key string) State {
			t.Helper()
			begin := time.Now()
			if err := r.VerifyNow(t.Context(), key); err != nil || time.Since(begin) > 0 {
				t.Errorf("look: %v after %s", err, time.Since(begin))
			}
			s, _ := r.Status(key)
			return s.State
		}
		if got := state("pod"); got != Done {
			t.Errorf("as it was left: %v", got)
		}
		f.set(func() { delete(f.rows, "pod"); f.fail["pod"] = errInjected })
		if got := state("pod"); got == Done {
			t.Error("it was deleted externally, and it is Done")
		}
		f.set(func() { delete(f.fail, "pod") })
		time.Sleep(2 * time.Minute)
		if got := state("pod"); got != Done {
			t.Errorf("repaired: %v", got)
		}
		if err := r.VerifyNow(t.Context(), "missing"); err != nil {
			t.Error(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		idle := New(Options[string, int]{Table: f})
		if err := idle.VerifyNow(ended, "pod"); !errors.Is(err, context.Canceled) {
			t.Errorf("without Run: %v", err)
		}
	})
}

// TestOutdated: an unchanged row that no longer fits the node is applied again, and this does not
// count as an external change.
func TestOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		var log bytes.Buffer
		r := New(Options[string, int]{Table: f, Log: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.Run(ctx)
		r.Apply(1, []Change[string, int]{put("tunnel", 1)})
		synctest.Wait()
		f.set(func() { f.fail["verify tunnel"] = fmt.Errorf("other addresses: %w", datapath.ErrOutdated) })
		r.Trigger()
		synctest.Wait()
		f.set(func() { delete(f.fail, "verify tunnel") })
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if f.calls["tunnel"] < 2 {
			t.Errorf("applied %d times, want it applied again", f.calls["tunnel"])
		}
		if text := log.String(); strings.Contains(text, "WARN") || !strings.Contains(text, "level=INFO msg=recreated") || !strings.Contains(text, "other addresses") {
			t.Errorf("logged:\n%s", text)
		}
		if s, _ := r.Status("tunnel"); s.State != Done || r.Repairs() != 0 {
			t.Errorf("status %+v, %d repairs, want none", s, r.Repairs())
		}
		cancel()
		synctest.Wait()
	})
}
