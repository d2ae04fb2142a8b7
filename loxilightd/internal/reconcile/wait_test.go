// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// waitDone waits until rows are done, or deleted if they are to be deleted; without keys, all rows.
func waitDone(ctx context.Context, r *Reconciler[string, int], keys ...string) error {
	isDone := func(key string) bool {
		s, ok := r.Status(key)
		return ok && s.State == Done || !r.Has(key)
	}
	for len(keys) == 0 && !r.IsSettled() || slices.ContainsFunc(keys, func(k string) bool { return !isDone(k) }) {
		select {
		case <-time.After(100 * time.Microsecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// TestSettled: rows that failed, or that cannot be deleted, are not settled.
func TestSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		f.fail["bad"] = errInjected
		r := start(t, f)
		want := func(settled, has bool, removing ...string) {
			t.Helper()
			synctest.Wait()
			if r.IsSettled() != settled || r.Has("bad") != has || !slices.Equal(r.Removing(), removing) || r.RemovingCount() != len(removing) {
				t.Errorf("settled %v, has bad %v, removing %v; want %v, %v, %v", r.IsSettled(), r.Has("bad"), r.Removing(), settled, has, removing)
			}
		}
		want(true, false)
		r.Apply(4, []Change[string, int]{put("good", 1), put("bad", 2)})
		want(false, true)
		r.Apply(5, []Change[string, int]{del("bad")})
		want(false, true, "bad")
		f.set(func() { delete(f.fail, "bad") })
		time.Sleep(time.Minute)
		want(true, false)
		wantContent(t, f, map[string]int{"good": 1})
	})
}

// TestManyRows checks the reconciler with ten thousand services: it must not be quadratic, and a
// change among them must not wait for a round.
func TestManyRows(t *testing.T) {
	const count = 10000
	f := newTable(map[string]int{})
	r := start(t, f)
	changes := make([]Change[string, int], count)
	keys := make([]string, count)
	for i := range changes {
		keys[i] = fmt.Sprint("service-", i)
		changes[i] = put(keys[i], i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	begin := time.Now()
	r.Apply(1, changes)
	r.MarkInitialized()
	if err := waitDone(ctx, r); err != nil {
		t.Fatalf("%d rows: %v", count, err)
	}
	if d := time.Since(begin); d > 2*time.Second { // about 20 ms on an idle machine
		t.Errorf("%d rows took %s", count, d)
	}
	if n := len(f.content()); n != count {
		t.Errorf("the table holds %d rows, want %d", n, count)
	}
	// Rounds are in progress while single changes arrive: the median matters, because the machine
	// may be busy.
	var took []time.Duration
	for i := range 51 {
		r.Trigger()
		begin := time.Now()
		r.Apply(uint64(i+2), []Change[string, int]{put(keys[i*97], -1)})
		if err := waitDone(ctx, r, keys[i*97]); err != nil {
			t.Fatal(err)
		}
		f.set(func() { took = append(took, f.updated[keys[i*97]].Sub(begin)) })
	}
	slices.Sort(took)
	if median := took[len(took)/2]; median > 20*time.Millisecond {
		t.Errorf("a change among %d rows reached the table after %s (median)", count, median)
	} else {
		t.Logf("a change among %d rows reached the table after %s (median), %s at most", count, median, took[len(took)-1])
	}
}

// TestWaitTried: a row that failed counts as tried, but a row that is still being tried does not.
func TestWaitTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		f.fail["bad"] = errInjected
		var notified []string
		f.delay = 100 * time.Millisecond
		r := startWith(t, f, Options[string, int]{
			Notify: func(k string, s Status) { notified = append(notified, fmt.Sprint(k, " ", s.State)) },
		})
		r.Apply(4, []Change[string, int]{put("good", 1), put("bad", 2)})
		begin := time.Now()
		if err := r.WaitTried(t.Context(), "good", "bad", "no such row"); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took < 200*time.Millisecond {
			t.Errorf("two attempts of 100 ms were waited for during %s", took)
		}
		r.Apply(5, []Change[string, int]{put("good", 2)})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := r.WaitTried(ctx, "good"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an attempt that takes longer: %v", err)
		}
		if err := r.WaitTried(t.Context(), "good"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if want := []string{"good done", "bad failed"}; len(notified) != 3 || !slices.Equal(notified[:2], want) || notified[2] != "good done" {
			t.Errorf("notified of %q, want every change", notified)
		}
	})
}
