// SPDX-License-Identifier: Apache-2.0

// Package reconcile makes the tables of a data plane follow the desired state.
//
// The package holds the desired state of each row, applies it, retries failures, repairs external
// changes, and keeps the status of each row. It knows neither the meaning of a row nor where the
// desired state comes from or is stored.
package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// Options configure a [Reconciler]. Durations that are zero have their defaults.
type Options[K comparable, V any] struct {
	Table datapath.Table[K, V]
	Log   *slog.Logger
	// Notify is called with each result that differs from the status that Status returned before,
	// from the goroutine of Run and with no lock held. It is therefore called after each change and
	// after each repair. A deleted row has State Removed.
	Notify func(K, Status)
	// Keep reports whether a row in the table stays although it is not desired; nil: none does.
	Keep func(K) bool

	MinBackoff time.Duration // after the first failure of a row; default 50 ms
	MaxBackoff time.Duration // after many failures; default 30 s
	// AbsentBackoff limits the delay before retrying a row that waits for something; default 5 s.
	AbsentBackoff time.Duration
	// VerifyInterval is the maximum time between the starts of two rounds of verification; default
	// 5 s. A round over a large table takes longer.
	VerifyInterval time.Duration
}

// Change is a change to one row of desired state.
type Change[K comparable, V any] struct {
	Key    K
	Value  V
	Remove bool // Value is ignored
}

// Reconciler makes one table follow the desired state. All of its methods are safe for concurrent
// use; Run must be called only once.
type Reconciler[K comparable, V any] struct {
	opts      Options[K, V]
	exclusive datapath.ExclusiveTable[K, V] // the table, if it is an ExclusiveTable
	wake      chan struct{}
	log       limitedLog

	mu          sync.Mutex
	rows        map[K]*row[K, V]
	fresh       fifo[K]         // rows that were changed
	retries     retryHeap[K, V] // rows that failed, by time of the next attempt
	waiters     map[*waiter[K]]struct{}
	counts      [stateCount]int
	initialized bool // all sources have provided their desired state
	pruned      bool // the table has been searched once for rows that are not desired
	synced      chan struct{}
	repairs     uint64
	round       round[K]
	requests    []request[K] // requested verifications
}

// row is one row of desired state and its status.
type row[K comparable, V any] struct {
	key        K
	value      V
	remove     bool
	revision   uint64
	generation uint64 // incremented by each change: a result counts only for the generation that was tried
	queued     bool   // in fresh
	untried    bool   // not tried since the last change
	begun      bool   // Begin has been called since the last change: see [datapath.ExclusiveTable]
	heapIndex  int    // in retries; -1: not in it
	retryAt    time.Time
	status     Status
	notified   Status // the last status passed to Notify
	reset      bool   // the status has been set to Pending since then
}

// New returns a Reconciler that does nothing before Run.
func New[K comparable, V any](opts Options[K, V]) *Reconciler[K, V] {
	setDefault(&opts.MinBackoff, 50*time.Millisecond)
	setDefault(&opts.MaxBackoff, 30*time.Second)
	setDefault(&opts.AbsentBackoff, 5*time.Second)
	setDefault(&opts.VerifyInterval, 5*time.Second)
	exclusive, _ := opts.Table.(datapath.ExclusiveTable[K, V])
	return &Reconciler[K, V]{
		opts:      opts,
		exclusive: exclusive,
		wake:      make(chan struct{}, 1),
		log:       limitedLog{log: opts.Log},
		rows:      make(map[K]*row[K, V]),
		waiters:   make(map[*waiter[K]]struct{}),
		synced:    make(chan struct{}),
	}
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// Apply takes rows of desired state as of revision. It returns immediately; the rows are Pending
// until Run has tried them.
func (r *Reconciler[K, V]) Apply(revision uint64, changes []Change[K, V]) {
	r.mu.Lock()
	for _, c := range changes {
		r.want(revision, c)
	}
	r.mu.Unlock()
	r.signal()
}

// want records one change. The caller holds r.mu.
func (r *Reconciler[K, V]) want(revision uint64, c Change[K, V]) {
	w, ok := r.rows[c.Key]
	if !ok {
		w = &row[K, V]{key: c.Key, heapIndex: -1}
		r.rows[c.Key] = w
		r.counts[Pending]++
	}
	w.value, w.remove, w.revision = c.Value, c.Remove, revision
	w.generation++
	w.untried, w.begun = true, false
	r.setStatus(w, Status{State: Pending, Revision: revision, Message: "not applied yet"})
	w.reset = true
	r.retries.remove(w)
	if !w.queued {
		w.queued = true
		r.fresh.push(c.Key)
	}
}

// setStatus updates the status and the counts by state. The caller holds r.mu.
func (r *Reconciler[K, V]) setStatus(w *row[K, V], s Status) {
	r.counts[w.status.State]--
	r.counts[s.State]++
	w.status = s
}

// MarkInitialized reports that the desired state is complete: from now on, rows in the table that
// are not desired are deleted.
func (r *Reconciler[K, V]) MarkInitialized() {
	r.mu.Lock()
	r.initialized = true
	r.round.due, r.round.keys = time.Time{}, nil // prune immediately
	r.mu.Unlock()
	r.signal()
}

// Trigger starts the next round of verification immediately, and retries rows that wait for
// something absent. Call it when the environment has changed.
func (r *Reconciler[K, V]) Trigger() {
	r.mu.Lock()
	r.round.triggered = true
	if !r.round.hurry {
		r.round.keys = nil // the round in progress is too slow: restart it
	}
	now := time.Now()
	var absent []*row[K, V]
	for _, w := range r.retries {
		if w.status.Reason == ReasonAbsent {
			absent = append(absent, w)
		}
	}
	for _, w := range absent {
		r.retries.remove(w)
		r.retries.add(w, now)
	}
	r.mu.Unlock()
	r.signal()
}

func (r *Reconciler[K, V]) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Synced is closed when the desired state is complete and every row, whether desired or to be
// deleted, has been tried once.
func (r *Reconciler[K, V]) Synced() <-chan struct{} { return r.synced }

// Repairs returns the number of external changes that have been repaired.
func (r *Reconciler[K, V]) Repairs() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.repairs
}

// Run applies, retries and verifies rows until ctx ends.
func (r *Reconciler[K, V]) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if r.step(ctx) {
			continue
		}
		r.markSynced()
		timer := time.NewTimer(r.idle())
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}
