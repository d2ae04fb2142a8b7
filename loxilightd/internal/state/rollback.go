// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/state/timeline"
)

// Rollback restores an earlier state. It creates one new revision.
type Rollback struct {
	// Revision is the revision to restore: the objects of all owners but [OwnerFile] and [OwnerCNI]
	// are restored to their state at that revision.
	Revision uint64
	// Undo, if not zero, replaces Revision: only the change of that revision, which must be waiting
	// for confirmation, is rolled back.
	Undo uint64
	// Owner, if not empty, limits the rollback to objects of that owner. With [OwnerCNI] nothing
	// is rolled back.
	Owner string

	// The following fields are as in a [Transaction].
	By         Author
	IfRevision *uint64
	DryRun     bool
	Confirm    time.Duration
	RequestID  string
	Answer     func(*Result) []byte

	// MaxBytes limits how many bytes of history may be read; a rollback that needs more is
	// rejected. 0: no limit.
	MaxBytes int64

	force bool // skip objects that cannot be restored, rather than failing because of them
}

// Rollback restores an earlier state, or fails with a [*Refusal]. Objects from files and pods'
// objects are not changed; the result lists which of them differ.
func (s *Store) Rollback(r *Rollback) (*Result, error) {
	if r.DryRun {
		return s.rollbackOrUndo(r, s.readConcurrently)
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	if result, err := s.repeated(r.RequestID); result != nil || err != nil {
		return result, err
	}
	return s.rollbackOrUndo(r, s.read)
}

// reading calls a function with a historyReader, either with s.writer held or without.
type reading func(func(*historyReader) error) error

func (s *Store) rollbackOrUndo(r *Rollback, read reading) (*Result, error) {
	if r.Undo != 0 {
		w := s.waiting.Load()
		if w != nil && slices.Contains(w.Joined, r.Undo) {
			return nil, s.refuseJoined(w, "undo", r.Undo)
		}
		if w == nil || w.Revision != r.Undo {
			return nil, refuse(Conflict, Key{}, "undo", "the change of revision %d is not pending: roll back to a revision instead", r.Undo)
		}
		return s.undo(w, r, read)
	}
	return s.rollbackTo(r, read)
}

// tooLong returns an error if reading all of entries would exceed r.MaxBytes.
func (r *Rollback) tooLong(entries []Entry) error {
	bytes := int64(0)
	for i := range entries {
		bytes += entries[i].Bytes
	}
	if r.MaxBytes == 0 || bytes <= r.MaxBytes {
		return nil
	}
	return refuse(Capacity, Key{}, "revision", "%d MiB of history since then must be read, and a user who may only read is limited to %d MiB: ask an admin, or choose a later revision",
		bytes>>20, r.MaxBytes>>20)
}

// rollbackTo carries out a rollback to a revision.
func (s *Store) rollbackTo(r *Rollback, read reading) (*Result, error) {
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
	t.restoredRevision = r.Revision
	w := s.waiting.Load()
	t.revertsPending = w != nil && r.Revision <= w.base && (r.Owner == "" || len(w.all) == 1 && w.all[r.Owner])
	return s.restore(t, then, r.Owner)
}

// refuseJoined returns an error if the waiting change w should be confirmed or rolled back by one
// of its earlier revisions: the caller may not know about the changes that have joined it since.
func (s *Store) refuseJoined(w *waiting, field string, revision uint64) error {
	later := w.Revisions()
	later = later[slices.Index(later, revision)+1:]
	list := make([]string, 0, len(later))
	for _, r := range later {
		list = append(list, strconv.FormatUint(r, 10))
	}
	return refuse(Conflict, Key{}, field, "later changes have joined the change of revision %d, and all end together: %s (the last one by %s); review them (llcli history REVISION), then confirm all (llcli confirm %d) or roll all back (llcli rollback --last)",
		revision, strings.Join(list, ", "), w.Author, w.Revision)
}

// undo rolls back the waiting change.
func (s *Store) undo(w *waiting, r *Rollback, read reading) (*Result, error) {
	then := map[Key]*Object{}
	err := read(func(h *historyReader) error {
		revisions, entries := w.Revisions(), []Entry(nil)
		for _, revision := range revisions {
			if i, ok := timeline.Find(h.history, revision); ok {
				entries = append(entries, h.history[i])
			}
		}
		if err := r.tooLong(entries); err != nil {
			return err
		}
		for _, revision := range slices.Backward(revisions) {
			err := h.formers(revision, "", func(name string, o *Object) bool {
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
	t.restoredRevision, t.restored, t.revertsPending = w.base, w.back, true
	return s.restore(t, then, "")
}

// transaction returns r as a transaction that has no objects yet.
func (r *Rollback) transaction() *Transaction {
	return &Transaction{
		By: r.By, IfRevision: r.IfRevision, DryRun: r.DryRun, Confirm: r.Confirm, RequestID: r.RequestID, Answer: r.Answer,
		isRollback: true, force: r.force,
	}
}

func belongsTo(o *Object, owner string) bool { return o != nil && o.Owner == owner }

// restore makes the objects that belong to owner, or to any owner if owner is empty, equal to the
// objects in then.
func (s *Store) restore(t *Transaction, then map[Key]*Object, owner string) (*Result, error) {
	keys := make([]Key, 0, len(then))
	for k := range then {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, Key.compare)
	var left []Key
	now := s.Snapshot()
	for _, k := range keys {
		leave, err := t.revert(k, s.decoded(then[k]), now.table.find(k), owner)
		if err != nil {
			return nil, err
		}
		if leave {
			left = append(left, k)
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

// revert adds to t what turns the object with key k, which is now is, into was; nil: it does not
// exist. It returns true if the object is left as it is, in part or as a whole. Objects of the CNI and
// of the object files are not reverted, nor, if owner is not empty, those of other owners.
func (t *Transaction) revert(k Key, was, is *Object, owner string) (left bool, err error) {
	isFile, wasFile := belongsTo(is, OwnerFile), belongsTo(was, OwnerFile)
	mine := owner == "" || belongsTo(is, owner) || belongsTo(was, owner)
	switch {
	case mine && (belongsTo(is, OwnerCNI) || belongsTo(was, OwnerCNI)):
		if is == nil || was == nil || !is.same(was) {
			left = true
		}
		// The object did not exist at that revision, or was a pod's object.
		if is != nil && !isFile && is.Owner != OwnerCNI && owner != OwnerCNI {
			t.Delete = append(t.Delete, k)
		}
	case isFile && was != nil && !wasFile && mine:
		return false, refuse(Conflict, k, "owner", "had the owner %s then, but is now defined in the object files: remove it there, then reload, or exclude it", was.Owner)
	case isFile && (was == nil || !is.same(was)):
		return true, nil
	case isFile || !mine:
	case wasFile:
		left = true
		if is != nil {
			t.Delete = append(t.Delete, k)
		}
	case was != nil:
		t.Put = append(t.Put, was)
	case is != nil:
		t.Delete = append(t.Delete, k)
	}
	return left, nil
}

// leave removes an object from the transaction. It returns false if the transaction does not
// contain it.
func (t *Transaction) leave(k Key) bool {
	before := len(t.Put) + len(t.Delete)
	t.Put = slices.DeleteFunc(t.Put, func(o *Object) bool { return o.Key == k })
	t.Delete = slices.DeleteFunc(t.Delete, func(d Key) bool { return d == k })
	return len(t.Put)+len(t.Delete) < before
}

// Expire rolls back the pending change if its deadline has passed. It returns the change and the
// result, or nil if there is nothing to roll back. The caller must retry after an error.
func (s *Store) Expire() (*Pending, *Result, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	w := s.waiting.Load()
	if w == nil || s.clock.Left(&w.Pending) > 0 {
		return nil, nil, nil
	}
	result, err := s.undo(w, &Rollback{By: Author{UID: os.Getuid(), User: "loxilightd", Method: MethodExpire}, force: true}, s.read)
	return &w.Pending, result, err
}

// Confirm makes the waiting change with the given revision permanent. Confirming it again is not an
// error.
func (s *Store) Confirm(revision uint64) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	w, history := s.waiting.Load(), s.History()
	i, known := timeline.Find(history, revision)
	switch {
	case w == nil && known && history[i].Confirmation == Confirmed:
		return nil
	case w != nil && slices.Contains(w.Joined, revision):
		return s.refuseJoined(w, "revision", revision)
	case known && history[i].Confirmation == RolledBack:
		return refuse(Conflict, Key{}, "revision", "the change of revision %d was rolled back: it was not confirmed in time, or a user rolled it back", revision)
	case w == nil:
		return refuse(Conflict, Key{}, "revision", "no change is pending")
	case w.Revision != revision:
		return refuse(Conflict, Key{}, "revision", "the pending change has revision %d, not %d", w.Revision, revision)
	case s.clock.Left(&w.Pending) == 0:
		return refuse(Conflict, Key{}, "revision", "too late: the change of revision %d is being rolled back", revision)
	}
	confirmed := s.withConfirmation(w.Revisions(), Confirmed)
	now := s.Snapshot()
	change := write{revision: now.Revision, count: now.table.count, rewritten: confirmed, clearsPending: true}
	err := change.commit(s.disk)
	s.noteFailure(err)
	if err != nil {
		return refuse(Unavailable, Key{}, "", "the confirmation could not be made durable, so it was not made: %v", err)
	}
	s.waiting.Store(nil)
	s.setHistory(nil, confirmed, nil)
	return nil
}
