// SPDX-License-Identifier: Apache-2.0

package state

import "sort"

// Action is the result for one object.
type Action uint8

// The actions. The change log contains only the first three.
const (
	Created Action = iota
	Updated
	Deleted
	Unchanged
	Absent // should be deleted, but did not exist
)

// String returns the name of a in the API.
func (a Action) String() string {
	return [...]string{"created", "updated", "deleted", "unchanged", "absent"}[a]
}

// Change is the result for one object.
type Change struct {
	Key
	Action   Action
	Revision uint64 // revision of the commit; 0 if nothing was committed
}

// logSize limits the change log, in changes.
const logSize = 1 << 16

// changeLog contains the latest changes, in the order of their revisions.
type changeLog struct {
	oldest  uint64 // all changes after this revision are present
	changes []Change
}

func (l *changeLog) add(changes []Change) {
	l.changes = append(l.changes, changes...)
	if len(l.changes) <= logSize+logSize/4 {
		return
	}
	cut := len(l.changes) - logSize
	for cut < len(l.changes) && l.changes[cut].Revision == l.changes[cut-1].Revision {
		cut++ // the changes of a revision are kept together or not at all
	}
	l.oldest = l.changes[cut-1].Revision
	l.changes = append([]Change(nil), l.changes[cut:]...)
}

// Changes returns the changes made after revision since, in order, and the revision to which they
// lead. ok is false if the log does not reach back that far, or if the store was never at that
// revision; the caller then needs a new [Snapshot]. The caller must not modify the changes.
func (s *Store) Changes(since uint64) (changes []Change, revision uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	revision = s.Snapshot().Revision
	if since < s.log.oldest || since > revision {
		return nil, revision, false
	}
	all := s.log.changes
	i := sort.Search(len(all), func(i int) bool { return all[i].Revision > since })
	return all[i:len(all):len(all)], revision, true
}

// Watch reports which objects have changed. It records each object once, however often it changed,
// so a slow reader costs little.
type Watch struct {
	store  *Store
	signal chan struct{}
	dirty  map[Key]struct{} // protected by store.mu
}

// Watch starts a watch. At first, all objects count as changed.
func (s *Store) Watch() *Watch {
	w := &Watch{store: s, signal: make(chan struct{}, 1), dirty: map[Key]struct{}{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := range s.Snapshot().All() {
		w.dirty[o.Key] = struct{}{}
	}
	s.watches[w] = struct{}{}
	w.signal <- struct{}{}
	return w
}

// C receives a value when changes are available.
func (w *Watch) C() <-chan struct{} { return w.signal }

// Take returns a snapshot and the keys, in no particular order, of the objects that have changed
// since the last call. If the snapshot does not contain a key, its object has been deleted.
func (w *Watch) Take() (*Snapshot, []Key) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	keys := make([]Key, 0, len(w.dirty))
	for k := range w.dirty {
		keys = append(keys, k)
	}
	w.dirty = map[Key]struct{}{}
	return w.store.Snapshot(), keys
}

// Close ends the watch. Nothing more is sent on C.
func (w *Watch) Close() {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	delete(w.store.watches, w)
}

// add records changes. The caller holds w.store.mu.
func (w *Watch) add(changes []Change) {
	for _, c := range changes {
		w.dirty[c.Key] = struct{}{}
	}
	select {
	case w.signal <- struct{}{}:
	default:
	}
}
