// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// State is the progress of a row.
type State uint8

// States of a row.
const (
	Pending State = iota // not applied yet, or waiting for something absent
	Done                 // applied to the data plane
	Failed               // the data plane rejected the row
	Removed              // deleted from the data plane
	stateCount
)

// String returns the name of s.
func (s State) String() string {
	return [...]string{"pending", "done", "failed", "removed"}[s]
}

// Reason classifies the error of a row, for code that branches on it.
type Reason uint8

// Reasons of a row that is not done.
const (
	ReasonNone        Reason = iota // no error
	ReasonAbsent                    // [datapath.ErrAbsent]: tried again
	ReasonUnsupported               // [datapath.ErrUnsupported]: not tried again
	ReasonCapacity                  // [datapath.ErrCapacity]: tried again
	ReasonOther                     // tried again
)

// Status is the status of a row.
type Status struct {
	State    State
	Revision uint64 // revision of the desired state to which State refers
	Reason   Reason
	Message  string // empty when done
	Failures int    // consecutive failures
}

// IsUntried reports whether the status will still change by itself: no attempt has been made since
// the last change.
func (s Status) IsUntried() bool { return s.State == Pending && s.Failures == 0 }

// statusOf classifies the result of one attempt.
func statusOf(err error, revision uint64, failuresBefore int) Status {
	s := Status{State: Done, Revision: revision}
	if err == nil {
		return s
	}
	s.State, s.Reason, s.Message, s.Failures = Failed, ReasonOther, messageOf(err), failuresBefore+1
	switch {
	case errors.Is(err, datapath.ErrUnsupported):
		s.Reason = ReasonUnsupported
	case errors.Is(err, datapath.ErrAbsent):
		s.State, s.Reason = Pending, ReasonAbsent
	case errors.Is(err, datapath.ErrCapacity):
		s.Reason = ReasonCapacity
	}
	return s
}

// messageOf returns an error as one line, in which each of several joined errors appears only once.
func messageOf(err error) string {
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		again := func(before string) bool { return before == line || strings.HasSuffix(before, ": "+line) }
		if !slices.ContainsFunc(lines, again) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// sameOutcome reports whether two statuses look the same to a client.
func sameOutcome(a, b Status) bool {
	return a.State == b.State && a.Reason == b.Reason && a.Message == b.Message
}

// backoff returns the delay before a retry, which depends on the number of consecutive failures.
func backoff(s Status, minimum, maximum, absent time.Duration) time.Duration {
	if s.Reason == ReasonAbsent {
		maximum = min(maximum, absent)
	}
	d := minimum
	for i := 1; i < s.Failures && d < maximum; i++ {
		d *= 2
	}
	return min(d, maximum)
}

// Status returns the status of a row; false if the row does not exist.
func (r *Reconciler[K, V]) Status(key K) (Status, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, ok := r.rows[key]
	if !ok || w.remove {
		return Status{}, false
	}
	return w.status, true
}

// Desired returns the desired value of a row; false if the row is not desired.
func (r *Reconciler[K, V]) Desired(key K) (value V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, found := r.rows[key]; found && !w.remove {
		return w.value, true
	}
	return value, false
}

// Has reports whether a row is desired, or is to be deleted and still in the table.
func (r *Reconciler[K, V]) Has(key K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.rows[key]
	return ok
}

// IsSettled reports whether all desired rows are done, and all other rows are deleted.
func (r *Reconciler[K, V]) IsSettled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isSettled()
}

func (r *Reconciler[K, V]) isSettled() bool { return r.counts[Pending]+r.counts[Failed] == 0 }

// Removing returns the rows that are to be deleted. It is fast if all rows are done.
func (r *Reconciler[K, V]) Removing() (keys []K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isSettled() {
		return nil
	}
	for key, w := range r.rows {
		if w.remove {
			keys = append(keys, key)
		}
	}
	return keys
}

// RemovingCount returns how many rows are to be deleted.
func (r *Reconciler[K, V]) RemovingCount() int { return len(r.Removing()) }
