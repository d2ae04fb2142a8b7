// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/tick"
)

// A round of verification goes over the table in slices of sliceSize rows, and rests between them
// for restShare times the duration of a slice: it takes up at most about 1/33 of the time, or a
// fifth after a Trigger. Changed rows take precedence between slices.
const (
	sliceSize          = 32
	restShare          = 32
	restShareTriggered = 4
	listRetry          = time.Second // after the table could not be listed
)

// round is the state of one verification pass over the table, and contains the time at which the
// next pass is due.
type round[K comparable] struct {
	turn      int // counts attempts; see freshShare
	keys      []K // rows that remain to be verified in this round
	due       time.Time
	resume    time.Time // time of the next slice
	triggered bool      // a round was requested
	hurry     bool      // this round was requested
}

func (v *round[K]) nextAt() time.Time {
	switch {
	case len(v.keys) > 0:
		return v.resume
	case v.triggered:
		return time.Time{}
	default:
		return v.due
	}
}

// verifyStep starts a round or does one slice of a round, and reports whether it did any work.
func (r *Reconciler[K, V]) verifyStep(ctx context.Context) bool {
	r.mu.Lock()
	now := time.Now()
	if r.round.nextAt().After(now) {
		r.mu.Unlock()
		return false
	}
	if len(r.round.keys) == 0 {
		r.beginRound(now)
		initialized := r.initialized
		r.mu.Unlock()
		if initialized {
			r.prune(ctx)
		}
		return true
	}
	r.mu.Unlock()

	for done := 0; done < sliceSize && ctx.Err() == nil; done++ {
		key, ok := r.nextVerified(done)
		if !ok {
			break
		}
		r.verify(ctx, key)
	}

	r.mu.Lock()
	share := restShare
	if r.round.hurry {
		share = restShareTriggered
	}
	end := time.Now()
	r.round.resume = end.Add(time.Duration(share) * end.Sub(now))
	r.mu.Unlock()
	return true
}

// nextVerified takes the next row of the round. A slice ends early if a row has been changed,
// because verification can wait.
func (r *Reconciler[K, V]) nextVerified(done int) (key K, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.round.keys) == 0 || done > 0 && !r.fresh.empty() {
		return key, false
	}
	key = r.round.keys[0]
	r.round.keys = r.round.keys[1:]
	return key, true
}

// beginRound lists the rows to verify. The caller holds r.mu.
func (r *Reconciler[K, V]) beginRound(now time.Time) {
	r.round.hurry, r.round.triggered = r.round.triggered, false
	r.round.due, r.round.resume = now.Add(tick.Until(r.opts.VerifyInterval)), now
	r.round.keys = make([]K, 0, r.counts[Done])
	for key, w := range r.rows {
		if w.status.State == Done {
			r.round.keys = append(r.round.keys, key)
		}
	}
}

// verify verifies one row, and queues it to be applied again if it was changed externally, is
// outdated or cannot be verified.
func (r *Reconciler[K, V]) verify(ctx context.Context, key K) {
	r.mu.Lock()
	w, ok := r.rows[key]
	if !ok || w.status.State != Done {
		r.mu.Unlock()
		return
	}
	generation := w.generation
	r.mu.Unlock()

	intact, err := r.opts.Table.Verify(ctx, key)
	if intact && err == nil || ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	if w.generation != generation {
		r.mu.Unlock()
		return
	}
	message, outdated := "changed externally; being repaired", errors.Is(err, datapath.ErrOutdated)
	switch {
	case outdated:
		message = err.Error()
	case err != nil:
		message = fmt.Sprintf("cannot be verified: %v", err)
	default:
		r.repairs++
	}
	r.setStatus(w, Status{State: Pending, Revision: w.revision, Message: message})
	w.queued, w.reset = true, true
	r.fresh.push(key)
	r.mu.Unlock()
	if outdated {
		r.log.info("recreated", slog.String("object", fmt.Sprint(key)), slog.String("cause", message))
		return
	}
	r.log.warn("row failed its verification; applying it again", slog.String("object", fmt.Sprint(key)), slog.String("cause", message))
}

// prune deletes the rows in the table that are not desired.
func (r *Reconciler[K, V]) prune(ctx context.Context) {
	var present []K
	for key, err := range r.opts.Table.Keys(ctx) {
		if err != nil {
			r.log.warn("table cannot be listed, nothing is pruned", slog.String("error", err.Error()))
			r.mu.Lock()
			r.round.due = time.Now().Add(listRetry)
			r.mu.Unlock()
			return
		}
		present = append(present, key)
	}
	var undesired []K
	r.mu.Lock()
	r.pruned = true
	for _, key := range present {
		if _, ok := r.rows[key]; !ok && (r.opts.Keep == nil || !r.opts.Keep(key)) {
			r.want(0, Change[K, V]{Key: key, Remove: true})
			undesired = append(undesired, key)
		}
	}
	r.mu.Unlock()
	for _, key := range undesired {
		r.log.info("deleting an object that is not desired", slog.String("object", fmt.Sprint(key)))
	}
}
