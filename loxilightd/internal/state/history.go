// SPDX-License-Identifier: Apache-2.0

package state

import (
	"slices"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/state/timeline"
)

// The history and the pending change: see [timeline].
type (
	Clock         = timeline.Clock
	Pending       = timeline.Pending
	Entry         = timeline.Entry
	Author        = timeline.Author
	Confirmation  = timeline.Confirmation
	HistoryLimits = timeline.Limits
)

// The confirmations, and the method of a revision that rolls back an unconfirmed change.
const (
	NotAsked     = timeline.NotAsked
	Waiting      = timeline.Waiting
	Confirmed    = timeline.Confirmed
	RolledBack   = timeline.RolledBack
	MethodExpire = timeline.MethodExpire
)

// former is an object as it was before a revision.
type former struct {
	Key
	object *Object // nil: the object did not exist
}

// newEntry returns the entry for the plan p of t. The entry's size in bytes is not known yet.
func (p *plan) newEntry(t *Transaction, revision uint64, now time.Time) *Entry {
	e := &Entry{Revision: revision, Previous: p.base.Revision, Last: revision, At: now, Author: t.By, Restored: t.restoredRevision}
	owners := map[string]bool{}
	for _, c := range p.changes {
		switch c.Action {
		case Created:
			e.Created++
		case Updated:
			e.Updated++
		case Deleted:
			e.Deleted++
		}
	}
	for _, f := range p.formers {
		if f.object != nil {
			owners[f.object.Owner] = true
		}
	}
	for _, o := range p.puts {
		owners[o.Owner] = true
	}
	for owner := range owners {
		e.Owners = append(e.Owners, owner)
	}
	slices.Sort(e.Owners)
	e.Owners = e.Owners[:min(len(e.Owners), timeline.MaxOwners)]
	if t.Confirm > 0 {
		e.Confirmation = Waiting
	}
	return e
}

// isOmitted reports whether the history omits a change: a change of Entities alone. Pods come and
// go often, and would displace all other revisions.
func (p *plan) isOmitted(t *Transaction) bool {
	return t.Confirm == 0 && !t.isRollback && !slices.ContainsFunc(p.formers, func(f former) bool { return f.Kind != KindEntity })
}

// omit makes the latest entry of the history include an omitted revision.
func (s *Store) omit(w *write, revision uint64) {
	if history := s.History(); len(history) > 0 {
		latest := history[len(history)-1]
		latest.Last = revision
		w.rewritten = append(w.rewritten, &latest)
	}
}

// History returns the entries of the latest revisions, oldest first. The caller must not modify
// them.
func (s *Store) History() []Entry { return *s.history.Load() }

// setHistory updates the history after a commit: it removes the evicted entries, replaces the
// rewritten entries, and appends the new entry. The caller holds s.writer.
func (s *Store) setHistory(evicted []uint64, rewritten []*Entry, entry *Entry) {
	history := s.History()[len(evicted):]
	if len(rewritten) > 0 {
		history = slices.Clone(history) // readers still have the old slice
	}
	for _, e := range rewritten {
		if i, ok := timeline.Find(history, e.Revision); ok {
			history[i] = *e
		}
	}
	if entry != nil {
		history = append(history, *entry)
	}
	s.history.Store(&history)
}

// withConfirmation returns the entries of those revisions that are known, with their new
// confirmation.
func (s *Store) withConfirmation(revisions []uint64, c Confirmation) (entries []*Entry) {
	for _, revision := range revisions {
		i, _ := timeline.Find(s.History(), revision)
		e := s.History()[i]
		e.Confirmation = c
		entries = append(entries, &e)
	}
	return entries
}

// since returns the entries after revision, oldest first. It returns an error if the state at that
// revision is no longer available or never existed.
func (r *historyReader) since(revision uint64) ([]Entry, error) {
	history := r.history
	if revision == r.now.Revision {
		return nil, nil
	}
	if later, ok := timeline.Since(history, revision); ok && revision < r.now.Revision {
		return later, nil
	}
	oldest := r.now.Revision
	if len(history) > 0 {
		oldest = history[0].Previous
	}
	if revision > r.now.Revision {
		return nil, refuse(NotKept, Key{}, "revision", "%d does not exist: the daemon is at %d, and the oldest revision that is kept is %d", revision, r.now.Revision, oldest)
	}
	return nil, refuse(NotKept, Key{}, "revision", "%d is not kept: the daemon is at %d, and the oldest revision that is kept is %d; history.revisions and history.bytes in the configuration limit this",
		revision, r.now.Revision, oldest)
}

// Diff is what a revision changed in one object. A nil object did not exist.
type Diff struct {
	Key
	Before, After *Object
}

// Diffs calls the function each for the objects that a revision changed, in the order of their
// names, starting after the name given by after, until it returns false. each must not call the
// store.
func (s *Store) Diffs(revision uint64, after string, each func(Diff) bool) error {
	return s.readConcurrently(func(r *historyReader) error {
		i, ok := timeline.Find(r.history, revision)
		if !ok {
			_, err := r.since(revision)
			if err == nil {
				err = refuse(NotKept, Key{}, "revision", "the changes of %d are not kept", revision)
			}
			return err
		}
		later := r.history[i+1:]
		var failed error
		err := r.formers(revision, after, func(name string, before *Object) bool {
			d := Diff{Key: splitKey(name), Before: s.decoded(before)}
			if d.After, failed = r.at(later, d.Key); failed != nil {
				return false
			}
			return each(d)
		})
		if failed != nil {
			return failed
		}
		return err
	})
}

// At returns the object with key k as it was at revision, or nil if it did not exist.
func (s *Store) At(revision uint64, k Key) (o *Object, err error) {
	err = s.readConcurrently(func(r *historyReader) error {
		later, err := r.since(revision)
		if err == nil {
			o, err = r.at(later, k)
		}
		return err
	})
	return o, err
}

// at returns the object with key k as it was before the entries in later.
func (r *historyReader) at(later []Entry, k Key) (*Object, error) {
	for i := range later {
		o, touched, err := r.former(later[i].Revision, k.String())
		if err != nil || touched {
			return r.store.decoded(o), err
		}
	}
	return r.now.table.find(k), nil
}

// decoded sets the value of an object that was read from the history.
func (s *Store) decoded(o *Object) *Object {
	if o == nil {
		return nil
	}
	v, err := s.decode(o.Kind, []byte(o.Spec))
	if o.Value = v; err != nil {
		o.Value = opaque{}
	}
	return o
}
