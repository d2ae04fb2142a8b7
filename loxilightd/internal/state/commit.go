// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
)

// Transaction is a change that is applied as a whole or not at all.
type Transaction struct {
	Put     []*Object // created or updated; their revision does not matter
	Delete  []Key
	Replace *Scope
	// Owner is the owner on whose behalf objects are deleted. It matters only for [OwnerFile]: no
	// other owner can delete objects from files.
	Owner string

	IfRevision *uint64 // fail with Conflict unless the store is at this revision; nil: any revision
	DryRun     bool    // do everything but the commit

	// RequestID, if not empty, makes the transaction run at most once, even across restarts of
	// the daemon. Answer then creates the reply that a repetition receives.
	RequestID string
	Answer    func(*Result) []byte

	// Force allows Interfaces to be removed from devices that other objects need.
	Force    bool
	Observed Observed

	By Author // who makes the change, for the history
	// Confirm is the time after which the change is rolled back unless it is confirmed. Zero: no
	// confirmation is needed.
	Confirm time.Duration

	isRollback       bool   // rollback: owner and size checks do not apply
	restoredRevision uint64 // the revision that the rollback restores
	restored         *table // for an undo, the state after it; nil: not an undo
	force            bool   // skip rejected objects instead of failing
	revertsPending   bool   // rolls back the pending change
}

// Scope makes a transaction absolute: objects that belong to Owner, are of one of Kinds, and are
// not in Put are deleted.
type Scope struct {
	Owner string
	Kinds []string
}

// Result is the result of a transaction.
type Result struct {
	Revision uint64   // revision after the transaction; unchanged if nothing changed
	Changes  []Change // in the order of the transaction, but deletions of a Scope last
	// Answer is the reply to an earlier transaction with the same RequestID. If it is set, this
	// call has done nothing, and the other fields are unset.
	Answer []byte
	// Pending is the change that must be confirmed, with its deadline; nil: none must be.
	Pending     *Pending
	PendingLeft time.Duration // the time that remains to confirm Pending
	// Reverted is the unconfirmed change that this transaction rolled back; nil: none.
	Reverted *Pending
	// Left are the objects that a rollback did not restore although they differ from the restored
	// revision: objects from files, pods' objects, and objects that force skipped.
	Left     []Key
	Warnings []string  // which objects no longer receive packets from which devices
	Planned  *Snapshot // the state after a dry run
}

// Reason is why a transaction was rejected.
type Reason uint8

// The reasons.
const (
	Invalid     Reason = iota // the transaction contradicts itself
	Conflict                  // another owner holds the object, or the revision has changed
	Capacity                  // a table is full
	Unavailable               // the change could not be made durable
	NotKept                   // the history does not reach back to that revision
)

// Refusal is the error for a rejected transaction.
type Refusal struct {
	Reason  Reason
	Key     Key    // the object at fault; zero: none in particular
	Field   string // field of the object; may be empty
	Message string
}

func (r *Refusal) Error() string {
	head := ""
	if r.Key != (Key{}) {
		head = r.Key.String() + ": "
	}
	if r.Field != "" {
		head += r.Field + ": "
	}
	return head + r.Message
}

func refuse(reason Reason, k Key, field, format string, args ...any) *Refusal {
	return &Refusal{reason, k, field, fmt.Sprintf(format, args...)}
}

// Answer returns the stored reply to the transaction with the given RequestID; nil if there is
// none.
func (s *Store) Answer(requestID string) ([]byte, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	answer, err := s.disk.Answer(requestID)
	if err != nil {
		return nil, refuse(Unavailable, Key{}, "", "look up requestID: %v", err)
	}
	return answer, nil
}

// repeated returns the stored reply to the transaction with the given RequestID; nil if that
// transaction has not run before. The caller holds s.writer.
func (s *Store) repeated(requestID string) (*Result, error) {
	if requestID == "" {
		return nil, nil
	}
	answer, err := s.disk.Answer(requestID)
	if err != nil {
		return nil, refuse(Unavailable, Key{}, "", "look up requestID: %v", err)
	}
	if answer == nil {
		return nil, nil
	}
	return &Result{Answer: answer}, nil
}

// Commit applies t as a whole, or rejects it with a [*Refusal]. When it returns without an error,
// the changes are durable. It is safe for concurrent use; commits are serialized. A dry run does
// not block other commits.
func (s *Store) Commit(t *Transaction) (*Result, error) {
	if t.DryRun {
		return s.commit(t)
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	if result, err := s.repeated(t.RequestID); result != nil || err != nil {
		return result, err
	}
	return s.commit(t)
}

// maxTries is how often a dry run is planned again because the store has changed in the meantime.
const maxTries = 3

// commit carries out a transaction that is not a repetition. The caller holds s.writer, except for
// a dry run.
func (s *Store) commit(t *Transaction) (*Result, error) {
	base := s.Snapshot()
	p, err := s.plan(t)
	// A concurrent commit may have mixed two states in the plan: plan again, up to maxTries times.
	for tries := 0; t.DryRun && base != s.Snapshot() && tries < maxTries; tries++ {
		base = s.Snapshot()
		p, err = s.plan(t)
	}
	if err != nil {
		return nil, err
	}
	result := &Result{Revision: p.base.Revision, Changes: p.changes, Warnings: p.warnings}
	changed := len(p.formers) > 0
	if t.DryRun {
		result.Planned = newSnapshot(p.base.Revision, p.edit.done(), maps.Clone(p.counts), p.cost)
		return result, nil
	}
	if !changed && t.RequestID == "" && !t.revertsPending {
		return result, nil
	}
	w := write{
		puts: slices.Clone(p.puts), deletes: p.dropped, clearsPending: t.revertsPending,
		replaced: p.replaced, count: p.edit.count,
	}
	if changed {
		result.Revision++
	}
	switch {
	case changed && p.isOmitted(t):
		s.omit(&w, result.Revision)
	case changed:
		s.remember(t, p, &w, result)
	}
	if before := s.waiting.Load(); before != nil && t.revertsPending {
		w.rewritten = s.withConfirmation(before.Revisions(), RolledBack)
		result.Reverted = &before.Pending
	}
	w.revision = result.Revision
	for _, o := range p.puts {
		o.Revision = result.Revision
	}
	if t.RequestID != "" {
		w.reply = disk.Reply{RequestID: t.RequestID, Answer: t.Answer(result)}
	}
	w.rewritten = slices.DeleteFunc(w.rewritten, func(e *Entry) bool { return slices.Contains(w.evicted, e.Revision) })
	err = w.commit(s.disk)
	s.noteFailure(err)
	if err != nil {
		return nil, refuse(Unavailable, Key{}, "", "the change could not be made durable, so it was not made: %v", err)
	}
	s.noteWaiting(p, &w)
	s.setHistory(w.evicted, w.rewritten, w.entry)
	if changed {
		s.publish(p, result)
	}
	return result, nil
}

// remember computes what the history must record about a change.
func (s *Store) remember(t *Transaction, p *plan, w *write, result *Result) {
	w.entry = p.newEntry(t, result.Revision, s.clock.Now().Round(0).UTC())
	w.formers = rowsOf(result.Revision, p.formers)
	for _, row := range w.formers {
		w.entry.Bytes += row.Size()
	}
	keep := uint64(0)
	before := s.waiting.Load()
	if before != nil && t.revertsPending {
		before = nil
	}
	if before != nil {
		keep = before.Revisions()[0]
	}
	w.evicted = s.limits.Evict(s.History(), w.entry.Bytes, keep)
	switch {
	case t.Confirm > 0 && before != nil:
		w.pending = before.Pending.Join(result.Revision, t.By)
	case t.Confirm > 0:
		w.pending = s.clock.Begin(result.Revision, t.Confirm, t.By)
	}
	if w.pending != nil {
		result.Pending, result.PendingLeft = w.pending, s.clock.Left(w.pending)
	}
}

// noteWaiting updates the pending change, if any.
func (s *Store) noteWaiting(p *plan, w *write) {
	if w.pending == nil {
		if w.clearsPending {
			s.waiting.Store(nil)
		} else if p.back != nil {
			s.waiting.Store(s.waiting.Load().with(p.back))
		}
		return
	}
	var waits *waiting
	if len(w.pending.Joined) > 0 {
		waits = s.waiting.Load().extend(w.pending)
	} else {
		waits = newWaiting(w.pending, p.base.Revision)
		waits.back = p.base.table
	}
	for _, f := range p.formers {
		waits.reserve(f.Key, f.object, p.edit.find(f.Key))
	}
	s.waiting.Store(waits)
}

// publish makes a durable plan the current state. The caller holds s.writer.
func (s *Store) publish(p *plan, result *Result) {
	s.reclaim(p)
	logged := make([]Change, 0, len(p.puts)+len(p.dropped))
	for _, c := range p.changes {
		if c.Action <= Deleted {
			c.Revision = result.Revision
			logged = append(logged, c)
		}
	}
	snapshot := newSnapshot(result.Revision, p.edit.done(), maps.Clone(p.counts), p.cost)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshot.Store(snapshot)
	s.log.add(logged)
	for w := range s.watches {
		w.add(logged)
	}
}

// reclaim updates the claims with the objects in a plan.
func (s *Store) reclaim(p *plan) {
	s.claiming.Lock()
	defer s.claiming.Unlock()
	for _, o := range p.replaced {
		o.Value.claims(func(c claim, _ func() string) {
			if s.claims[c] == o.Key {
				delete(s.claims, c)
			}
		})
	}
	for _, o := range p.puts {
		o.Value.claims(func(c claim, _ func() string) { s.claims[c] = o.Key })
	}
}
