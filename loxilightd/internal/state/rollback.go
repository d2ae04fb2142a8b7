// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"os"
	"slices"
	"time"
)

// Rollback is a change back to what was. It is one new revision.
type Rollback struct {
	// Revision is the one to go back to: the objects of all owners but [OwnerFile]
	// and [OwnerCNI] become as they were then.
	Revision uint64
	// Undo, where it is not zero, takes Revision's place: the change of that
	// revision, which waits for its confirmation, is taken back, and no other.
	Undo uint64
	// Owner, if not empty, leaves the objects of others as they are. With [OwnerCNI] there is
	// nothing that goes back.
	Owner string

	// The rest is as in a [Transaction].
	By         Author
	IfRevision *uint64
	DryRun     bool
	Confirm    time.Duration
	RequestID  string
	Answer     func(*Result) []byte

	// MaxBytes refuses to read more of the history than that; 0: all of it is read.
	MaxBytes int64

	force bool // what cannot go back stays, and nothing else does for it
}

// Rollback goes back, or refuses with a [*Refusal]. What stands in files, and what goes with pods, stays;
// the result says what of it would be different.
func (s *Store) Rollback(r *Rollback) (*Result, error) {
	if r.DryRun {
		return s.goBackOrUndo(r, s.look)
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	if result, err := s.repeated(r.RequestID); result != nil || err != nil {
		return result, err
	}
	return s.goBackOrUndo(r, s.read)
}

// reading is how the history is read: with s.writer held, or without.
type reading func(func(*historyReader) error) error

func (s *Store) goBackOrUndo(r *Rollback, read reading) (*Result, error) {
	if r.Undo != 0 {
		w := s.waiting.Load()
		if w == nil || w.Revision != r.Undo {
			return nil, refuse(Conflict, Key{}, "undo", "the change of revision %d does not wait to be confirmed (any more): go back to a revision instead", r.Undo)
		}
		return s.undo(w, r, read)
	}
	return s.goBack(r, read)
}

// tooLong refuses to read all of entries where that is more than r may.
func (r *Rollback) tooLong(entries []Entry) error {
	bytes := int64(0)
	for i := range entries {
		bytes += entries[i].bytes
	}
	if r.MaxBytes == 0 || bytes <= r.MaxBytes {
		return nil
	}
	return refuse(Capacity, Key{}, "revision", "between it and now %d MiB of history have to be read, and %d MiB at most are for a user who may only read: ask an admin, or for a later revision",
		bytes>>20, r.MaxBytes>>20)
}

// goBack carries out a rollback to a revision.
func (s *Store) goBack(r *Rollback, read reading) (*Result, error) {
	then := map[Key]*Object{}
	err := read(func(h *historyReader) error {
		later, err := h.since(r.Revision)
		if err == nil {
			err = r.tooLong(later)
		}
		if err != nil {
			return err
		}
		for i := range slices.Backward(later) {
			err := h.formers(later[i].Revision, "", func(name string, o *Object) bool {
				then[splitKey(name)] = o
				return true
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	t := r.transaction()
	t.restored = r.Revision
	w := s.waiting.Load()
	t.settles = w != nil && r.Revision <= w.base && (r.Owner == "" || len(w.all) == 1 && w.all[r.Owner])
	return s.restore(t, then, r.Owner)
}

// undo takes back the change that waits.
func (s *Store) undo(w *waiting, r *Rollback, read reading) (*Result, error) {
	then := map[Key]*Object{}
	err := read(func(h *historyReader) error {
		if i, ok := find(h.history, w.Revision); ok {
			if err := r.tooLong(h.history[i : i+1]); err != nil {
				return err
			}
		}
		return h.formers(w.Revision, "", func(name string, o *Object) bool {
			then[splitKey(name)] = o
			return true
		})
	})
	if err != nil {
		return nil, err
	}
	t := r.transaction()
	t.restored, t.settles = w.base, true
	return s.restore(t, then, "")
}

// transaction is r as a transaction, without its objects.
func (r *Rollback) transaction() *Transaction {
	return &Transaction{
		By: r.By, IfRevision: r.IfRevision, DryRun: r.DryRun, Confirm: r.Confirm, RequestID: r.RequestID, Answer: r.Answer,
		restores: true, force: r.force,
	}
}

func belongsTo(o *Object, owner string) bool { return o != nil && o.Owner == owner }

// restore makes the objects of owner (empty: of all) be as they were then.
func (s *Store) restore(t *Transaction, then map[Key]*Object, owner string) (*Result, error) {
	keys := make([]Key, 0, len(then))
	for k := range then {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, Key.compare)
	var left []Key
	now := s.Snapshot()
	for _, k := range keys {
		was, is := s.understood(then[k]), now.dark[k]
		if o, ok := now.Get(k); ok {
			is = o
		}
		isFile, wasFile := belongsTo(is, OwnerFile), belongsTo(was, OwnerFile)
		mine := owner == "" || belongsTo(is, owner) || belongsTo(was, owner)
		switch {
		case mine && (belongsTo(is, OwnerCNI) || belongsTo(was, OwnerCNI)):
			if is == nil || was == nil || !is.same(was) {
				left = append(left, k)
			}
			if is != nil && !isFile && is.Owner != OwnerCNI && owner != OwnerCNI { // it was not there, the pod's was
				t.Delete = append(t.Delete, k)
			}
		case isFile && was != nil && !wasFile && mine:
			return nil, refuse(Conflict, k, "owner", "was of owner %s then, and stands in the object files now: take it out there, then reload, or leave it out", was.Owner)
		case isFile && (was == nil || !is.same(was)):
			left = append(left, k)
		case isFile || !mine:
		case wasFile:
			left = append(left, k)
			if is != nil {
				t.Delete = append(t.Delete, k)
			}
		case was != nil:
			t.Put = append(t.Put, was)
		case is != nil:
			t.Delete = append(t.Delete, k)
		}
	}
	result, err := s.commit(t)
	for t.force && err != nil {
		refusal, _ := errors.AsType[*Refusal](err)
		if refusal == nil || !t.leave(refusal.Key) {
			return nil, err
		}
		left = append(left, refusal.Key)
		result, err = s.commit(t)
	}
	if result != nil {
		result.Left = left
	}
	return result, err
}

// leave takes an object out of the transaction. It is false if it is not in it.
func (t *Transaction) leave(k Key) bool {
	before := len(t.Put) + len(t.Delete)
	t.Put = slices.DeleteFunc(t.Put, func(o *Object) bool { return o.Key == k })
	t.Delete = slices.DeleteFunc(t.Delete, func(d Key) bool { return d == k })
	return len(t.Put)+len(t.Delete) < before
}

// Expire takes back the change that waits for its confirmation if its time is
// over, and returns it. It returns nil if there is none. An error means that it is
// to be tried again.
func (s *Store) Expire() (*Pending, *Result, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	w := s.waiting.Load()
	if w == nil || s.clock.left(&w.Pending) > 0 {
		return nil, nil, nil
	}
	result, err := s.undo(w, &Rollback{By: Author{UID: os.Getuid(), User: "loxilightd", Method: MethodExpire}, force: true}, s.read)
	return &w.Pending, result, err
}

// Confirm makes the change of revision, which waits for it, stay. Confirming what
// was confirmed is no error.
func (s *Store) Confirm(revision uint64) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	w, history := s.waiting.Load(), s.History()
	i, known := find(history, revision)
	switch {
	case w == nil && known && history[i].Confirmation == Confirmed:
		return nil
	case known && history[i].Confirmation == TakenBack:
		return refuse(Conflict, Key{}, "revision", "the change of revision %d was taken back: it was not confirmed in time, or somebody did it", revision)
	case w == nil:
		return refuse(Conflict, Key{}, "revision", "no change waits to be confirmed")
	case w.Revision != revision:
		return refuse(Conflict, Key{}, "revision", "the change that waits to be confirmed is that of revision %d, not of %d", w.Revision, revision)
	case s.clock.left(&w.Pending) == 0:
		return refuse(Conflict, Key{}, "revision", "too late: the change of revision %d is being taken back", revision)
	}
	confirmed := s.became(revision, Confirmed)
	now := s.Snapshot()
	err := s.disk.write(&write{revision: now.Revision, count: now.Len() + len(now.dark), rewritten: confirmed, settled: true})
	if err != nil {
		return refuse(Unavailable, Key{}, "", "the confirmation could not be made durable, so it was not made: %v", err)
	}
	s.waiting.Store(nil)
	s.setHistory(nil, confirmed, nil)
	return nil
}
