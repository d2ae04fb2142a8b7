// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// freshShare is how many changed rows are tried for each retried row, so that neither starves the
// other.
const freshShare = 16

// attempt is a copy of one row for an attempt without the lock.
type attempt[K comparable, V any] struct {
	row        *row[K, V]
	key        K
	value      V
	remove     bool
	begin      bool // other rows must be tried before this row releases something
	generation uint64
}

// step does one piece of work and reports whether there was any to do.
func (r *Reconciler[K, V]) step(ctx context.Context) bool {
	if r.verifyRequested(ctx) {
		return true
	}
	a, ok := r.next(time.Now())
	if ok {
		r.try(ctx, a)
		return true
	}
	return r.verifyStep(ctx)
}

// next removes the next row to try from its queue.
func (r *Reconciler[K, V]) next(now time.Time) (attempt[K, V], bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.nextRow(now)
	if w == nil {
		return attempt[K, V]{}, false
	}
	begin := r.exclusive != nil && !w.begun && !w.remove && !r.fresh.empty()
	return attempt[K, V]{w, w.key, w.value, w.remove, begin, w.generation}, true
}

func (r *Reconciler[K, V]) nextRow(now time.Time) *row[K, V] {
	due := len(r.retries) > 0 && !r.retries[0].retryAt.After(now)
	r.round.turn++
	if due && (r.fresh.empty() || r.round.turn%freshShare == 0) {
		w := r.retries[0]
		r.retries.remove(w)
		return w
	}
	key, ok := r.fresh.pop()
	if !ok {
		return nil
	}
	w := r.rows[key]
	w.queued = false
	return w
}

// try applies one row to the table and records the result.
func (r *Reconciler[K, V]) try(ctx context.Context, a attempt[K, V]) {
	var err error
	complete := true
	switch {
	case a.remove:
		err = r.opts.Table.Delete(ctx, a.key)
	case a.begin:
		complete, err = r.exclusive.Begin(ctx, a.key, a.value)
	default:
		err = r.opts.Table.Update(ctx, a.key, a.value)
	}
	switch {
	case ctx.Err() != nil: // Run is stopping: the row may be intact
	case err == nil && !complete:
		r.again(a)
	default:
		r.record(a, err)
	}
}

// again queues a row for which Begin has been called, behind the rows that changed along with it.
func (r *Reconciler[K, V]) again(a attempt[K, V]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.row.generation == a.generation {
		a.row.begun, a.row.queued = true, true
		r.fresh.push(a.key)
	}
}

// record stores the result of an attempt, unless the row was changed during the attempt: in that
// case, the row has already been queued again, and the next attempt counts.
func (r *Reconciler[K, V]) record(a attempt[K, V], err error) {
	r.mu.Lock()
	w := a.row
	if w.generation != a.generation {
		r.mu.Unlock()
		return
	}
	w.untried = false
	s := statusOf(err, w.revision, w.status.Failures)
	if err == nil && w.remove {
		s.State = Removed
	}
	r.setStatus(w, s)
	switch {
	case s.State == Removed:
		delete(r.rows, w.key)
		r.counts[Removed]--
	case err != nil && s.Reason != ReasonUnsupported:
		rest := backoff(s, r.opts.MinBackoff, r.opts.MaxBackoff, r.opts.AbsentBackoff)
		r.retries.add(w, time.Now().Add(rest))
	}
	r.release(w.key)
	before := w.notified
	changed := !sameOutcome(before, s) || s.State == Done && before.Revision == 0
	// A client may have read Pending in between: it must be notified of the new status.
	notify := changed || w.reset
	w.reset = false
	if changed {
		w.notified = s
	}
	r.mu.Unlock()
	if r.opts.Notify != nil && notify {
		r.opts.Notify(w.key, s)
	}
	if changed {
		r.logOutcome(w.key, before, s)
	}
}

// logOutcome logs a result that has changed.
func (r *Reconciler[K, V]) logOutcome(key K, before, now Status) {
	name := slog.String("object", fmt.Sprint(key))
	switch {
	case now.State == Failed && now.Reason == ReasonUnsupported:
		r.log.warn("not supported by the data plane", name, slog.String("error", now.Message))
	case now.State == Failed:
		r.log.warn("not applied, will be tried again", name, slog.String("error", now.Message))
	case now.State == Pending:
		r.log.warn("waiting for a requirement", name, slog.String("error", now.Message))
	case before.Failures > 0:
		r.log.info("applied after failures", name, slog.Int("failures", before.Failures))
	}
}

// markSynced closes Synced once all rows have been tried.
func (r *Reconciler[K, V]) markSynced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.initialized || !r.pruned || !r.fresh.empty() {
		return
	}
	select {
	case <-r.synced:
	default:
		close(r.synced)
	}
}

// idle returns the time until work is due.
func (r *Reconciler[K, V]) idle() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	d := r.round.nextAt().Sub(now)
	if len(r.retries) > 0 {
		d = min(d, r.retries[0].retryAt.Sub(now))
	}
	if !r.fresh.empty() || len(r.requests) > 0 {
		d = 0
	}
	return max(d, 0)
}
