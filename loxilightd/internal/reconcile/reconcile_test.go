// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

var errInjected = errors.New("injected")

// table is a table of a data plane, which fails as configured.
type table struct {
	mu      sync.Mutex
	rows    map[string]int
	fail    map[string]error     // errors of Update and Delete, by key
	random  *rand.Rand           // nil: no random faults
	calls   map[string]int       // Updates by key
	updated map[string]time.Time // when a row was last updated successfully
	busy    bool
	delay   time.Duration // delay of each Update
}

func newTable(rows map[string]int) *table {
	return &table{
		rows: rows, fail: map[string]error{}, calls: map[string]int{}, updated: map[string]time.Time{},
	}
}

// enter checks that the contract of a Table is kept: one call at a time.
func (f *table) enter() func() {
	f.mu.Lock()
	if f.busy {
		panic("two calls of one table at once")
	}
	f.busy = true
	return func() { f.busy = false; f.mu.Unlock() }
}

func (f *table) fault(key string) error {
	if f.random != nil && f.random.IntN(3) == 0 {
		return errInjected
	}
	return f.fail[key]
}

func (f *table) Update(_ context.Context, key string, v int) error {
	time.Sleep(f.delay)
	defer f.enter()()
	f.calls[key]++
	if err := f.fault(key); err != nil {
		return fmt.Errorf("update %s: %w", key, err)
	}
	f.rows[key], f.updated[key] = v, time.Now()
	return nil
}

func (f *table) Delete(_ context.Context, key string) error {
	defer f.enter()()
	if err := f.fault(key); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	delete(f.rows, key)
	return nil
}

func (f *table) Keys(context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		defer f.enter()()
		for _, key := range slices.Sorted(maps.Keys(f.rows)) {
			if err := f.fault("keys"); err != nil {
				yield("", err)
				return
			}
			if !yield(key, nil) {
				return
			}
		}
	}
}

func (f *table) Verify(_ context.Context, key string) (bool, error) {
	defer f.enter()()
	if err := f.fault("verify " + key); err != nil {
		return false, err
	}
	_, ok := f.rows[key]
	return ok, nil
}

// set changes the table behind the reconciler's back.
func (f *table) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *table) content() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.rows)
}

// start runs a reconciler on f until the test ends.
func start(t *testing.T, f *table) *Reconciler[string, int] {
	t.Helper()
	return startWith(t, f, Options[string, int]{})
}

func startWith(t *testing.T, f datapath.Table[string, int], o Options[string, int]) *Reconciler[string, int] {
	t.Helper()
	o.Table, o.Log = f, slog.New(slog.DiscardHandler)
	r := New(o)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

func put(key string, v int) Change[string, int] { return Change[string, int]{Key: key, Value: v} }
func del(key string) Change[string, int]        { return Change[string, int]{Key: key, Remove: true} }

func wantContent(t *testing.T, f *table, want map[string]int) {
	t.Helper()
	if got := f.content(); !maps.Equal(got, want) {
		t.Errorf("the table holds %v, want %v", got, want)
	}
}

func TestFailingRowStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		f.fail["bad"] = errInjected
		r := start(t, f)
		r.Apply(1, []Change[string, int]{put("a", 1), put("bad", 2), put("c", 3)})
		synctest.Wait()
		wantContent(t, f, map[string]int{"a": 1, "c": 3})
		s, ok := r.Status("bad")
		want := Status{State: Failed, Revision: 1, Reason: ReasonOther, Message: "update bad: injected", Failures: 1}
		if !ok || s != want {
			t.Errorf("status of bad = %+v, %v; want %+v", s, ok, want)
		}
		if s, _ := r.Status("a"); s != (Status{State: Done, Revision: 1}) {
			t.Errorf("status of a = %+v, want done", s)
		}
		f.set(func() { delete(f.fail, "bad") })
		time.Sleep(time.Second)
		synctest.Wait()
		wantContent(t, f, map[string]int{"a": 1, "bad": 2, "c": 3})
		if want := [stateCount]int{Done: 3}; r.counts != want {
			t.Errorf("counts = %v, want %v", r.counts, want)
		}
	})
}

func TestBackoff(t *testing.T) {
	for _, tt := range []struct {
		failures int
		reason   Reason
		want     time.Duration
	}{
		{1, ReasonOther, 50 * time.Millisecond}, {2, ReasonOther, 100 * time.Millisecond},
		{5, ReasonOther, 800 * time.Millisecond}, {11, ReasonOther, 30 * time.Second},
		{1 << 30, ReasonOther, 30 * time.Second}, {11, ReasonAbsent, 5 * time.Second},
	} {
		s := Status{Failures: tt.failures, Reason: tt.reason}
		if got := backoff(s, 50*time.Millisecond, 30*time.Second, 5*time.Second); got != tt.want {
			t.Errorf("backoff after %d failures (%v) = %s, want %s", tt.failures, tt.reason, got, tt.want)
		}
	}
}

func TestRetriesBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		f.fail["bad"] = errInjected
		f.fail["never"] = fmt.Errorf("sctp: %w", datapath.ErrUnsupported)
		r := start(t, f)
		r.Apply(7, []Change[string, int]{put("bad", 1), put("never", 2)})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		// Ten delays that double from 50 ms add up to 51 s; then there is one attempt every 30 s:
		// about 29.
		if n := f.calls["bad"]; n < 25 || n > 32 {
			t.Errorf("%d attempts in ten minutes, want about 29", n)
		}
		if n := f.calls["never"]; n != 1 {
			t.Errorf("%d attempts of an unsupported row, want 1", n)
		}
		if s, _ := r.Status("never"); s.State != Failed || s.Reason != ReasonUnsupported {
			t.Errorf("status = %+v, want failed and unsupported", s)
		}
	})
}

func TestAbsentIsPendingUntilTriggered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		f.fail["port"] = fmt.Errorf("device eth7: %w", datapath.ErrAbsent)
		r := start(t, f)
		r.Apply(1, []Change[string, int]{put("port", 1)})
		time.Sleep(time.Minute)
		synctest.Wait()
		if s, _ := r.Status("port"); s.State != Pending || s.Reason != ReasonAbsent || s.Message == "" {
			t.Errorf("status = %+v, want pending, absent and a message", s)
		}
		f.set(func() { delete(f.fail, "port") })
		before := time.Now()
		r.Trigger()
		synctest.Wait()
		if s, _ := r.Status("port"); s.State != Done || time.Since(before) != 0 {
			t.Errorf("status after Trigger and %s = %+v, want done at once", time.Since(before), s)
		}
	})
}

func TestPrunesOnlyWhenInitialized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{"left over": 9, "adopted": 1})
		r := start(t, f)
		r.Apply(1, []Change[string, int]{put("adopted", 1)})
		time.Sleep(time.Minute)
		synctest.Wait()
		wantContent(t, f, map[string]int{"left over": 9, "adopted": 1})
		select {
		case <-r.Synced():
			t.Error("synced before the desired state was complete")
		default:
		}
		f.fail["keys"] = errInjected
		r.MarkInitialized()
		synctest.Wait()
		wantContent(t, f, map[string]int{"left over": 9, "adopted": 1})
		f.set(func() { delete(f.fail, "keys") })
		<-r.Synced()
		wantContent(t, f, map[string]int{"adopted": 1})
		// Rows that another program adds later are deleted as well.
		f.set(func() { f.rows["foreign"] = 4 })
		time.Sleep(6 * time.Second)
		synctest.Wait()
		wantContent(t, f, map[string]int{"adopted": 1})
	})
}

func TestRepairsExternalChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		notified := 0
		r := New(Options[string, int]{Table: f, Log: slog.New(slog.DiscardHandler), Notify: func(string, Status) { notified++ }})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.Run(ctx)
		r.Apply(1, []Change[string, int]{put("a", 1), put("b", 2)})
		synctest.Wait()
		f.set(func() { delete(f.rows, "b") })
		time.Sleep(6 * time.Second)
		synctest.Wait()
		wantContent(t, f, map[string]int{"a": 1, "b": 2})
		if n := r.Repairs(); n != 1 {
			t.Errorf("repairs = %d, want 1", n)
		}
		if notified != 3 {
			t.Errorf("%d notices, want 3: two rows and a repair", notified)
		}
		f.set(func() { clear(f.rows) })
		r.Trigger()
		synctest.Wait()
		wantContent(t, f, map[string]int{"a": 1, "b": 2})
		cancel()
		synctest.Wait()
	})
}

// TestNotifyEndsPending: if a client could have read the status Pending, the result is reported
// even if it equals the previous result.
func TestNotifyEndsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		notified := map[string]int{}
		r := startWith(t, f, Options[string, int]{Notify: func(k string, s Status) { notified[k+" "+s.State.String()]++ }})
		f.set(func() { f.fail["bad"] = datapath.ErrUnsupported })
		for revision := range uint64(5) {
			r.Apply(revision+1, []Change[string, int]{put("good", int(revision)), put("bad", int(revision))})
			if s, _ := r.Status("good"); s.State != Pending {
				t.Fatalf("status right after a change: %+v", s)
			}
			synctest.Wait()
		}
		if notified["good done"] != 5 || notified["bad failed"] != 5 {
			t.Errorf("after 5 changes of 2 rows: notices %v, want 5 of each", notified)
		}
	})
}

func TestVerifyError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		r := start(t, f)
		r.Apply(1, []Change[string, int]{put("port", 1)})
		synctest.Wait()
		f.set(func() {
			f.fail["verify port"] = datapath.ErrAbsent
			f.fail["port"] = datapath.ErrAbsent
		})
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if s, _ := r.Status("port"); s.State != Pending || s.Reason != ReasonAbsent {
			t.Errorf("status = %+v, want pending and absent", s)
		}
		if n := r.Repairs(); n != 0 {
			t.Errorf("repairs = %d, want none: nothing was repaired", n)
		}
	})
}

func TestRemoveAndWant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTable(map[string]int{})
		r := start(t, f)
		r.Apply(1, []Change[string, int]{put("a", 1)})
		synctest.Wait()
		f.set(func() { f.fail["a"] = errInjected })
		r.Apply(2, []Change[string, int]{del("a")})
		synctest.Wait()
		if _, ok := r.Status("a"); ok {
			t.Error("a removed row has a status")
		}
		wantContent(t, f, map[string]int{"a": 1})
		r.Apply(3, []Change[string, int]{put("a", 5)})
		f.set(func() { delete(f.fail, "a") })
		time.Sleep(time.Minute)
		synctest.Wait()
		wantContent(t, f, map[string]int{"a": 5})
		r.Apply(4, []Change[string, int]{del("a"), del("never there")})
		synctest.Wait()
		wantContent(t, f, map[string]int{})
		if r.counts != [stateCount]int{} {
			t.Errorf("counts = %v, want none", r.counts)
		}
	})
}

// TestConverges makes one call in three fail while rows are added and removed.
func TestConverges(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			f := newTable(map[string]int{"left over": 9, "k1": 77})
			f.random = rand.New(rand.NewPCG(seed, 0))
			notified := map[string]Status{}
			r := New(Options[string, int]{
				Table: f, Log: slog.New(slog.DiscardHandler),
				Notify: func(k string, s Status) { notified[k] = s },
			})
			ctx, cancel := context.WithCancel(t.Context())
			go r.Run(ctx)
			random, want := rand.New(rand.NewPCG(seed, 1)), map[string]int{}
			for revision := range uint64(40) {
				var changes []Change[string, int]
				for range random.IntN(5) {
					key := fmt.Sprint("k", random.IntN(8))
					if random.IntN(3) == 0 {
						delete(want, key)
						changes = append(changes, del(key))
					} else {
						want[key] = random.IntN(1000)
						changes = append(changes, put(key, want[key]))
					}
				}
				r.Apply(revision+1, changes)
				if revision == 20 {
					r.MarkInitialized()
				}
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
			}
			<-r.Synced()
			if err := waitDone(t.Context(), r); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			cancel()
			synctest.Wait()
			if got := f.content(); !maps.Equal(got, want) {
				t.Errorf("seed %d: the table holds %v, want %v", seed, got, want)
			}
			for key := range want {
				if s := notified[key]; s.State != Done {
					t.Errorf("seed %d: last notice of %s is %+v, want done", seed, key, s)
				}
			}
		})
	}
}
