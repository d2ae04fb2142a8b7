// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
)

// historyReader reads former objects in one transaction of the store. It contains the in-memory
// state of the store as of the start of that transaction.
type historyReader struct {
	rows    disk.History
	now     *Snapshot
	history []Entry
	store   *Store
}

// read calls f with a reader. The caller holds s.writer.
func (s *Store) read(f func(*historyReader) error) error {
	r, tx, err := s.beginRead()
	if err != nil {
		return err
	}
	return r.run(tx, f)
}

// readConcurrently is like read, but for callers that do not hold s.writer: commits continue while
// f runs.
func (s *Store) readConcurrently(f func(*historyReader) error) error {
	s.writer.Lock()
	r, tx, err := s.beginRead()
	s.writer.Unlock()
	if err != nil {
		return err
	}
	return r.run(tx, f)
}

// beginRead starts reading the history as it is now. The caller holds s.writer.
func (s *Store) beginRead() (r *historyReader, tx *bbolt.Tx, err error) {
	if tx, err = s.disk.Begin(); err != nil {
		return nil, nil, refuse(Unavailable, Key{}, "", "read the history: %v", err)
	}
	return &historyReader{now: s.Snapshot(), history: s.History(), store: s}, tx, nil
}

func (r *historyReader) run(tx *bbolt.Tx, f func(*historyReader) error) error {
	err := disk.Read(tx, func() error {
		r.rows, _ = disk.HistoryIn(tx)
		return f(r)
	})
	var refusal *Refusal
	if err != nil && !errors.As(err, &refusal) {
		return refuse(Unavailable, Key{}, "", "read the history: %v", err)
	}
	return err
}

// formers calls the function each for the former objects of a revision, in the order of their
// names, starting after the name given by after, until it returns false.
func (r *historyReader) formers(revision uint64, after string, each func(name string, o *Object) bool) error {
	sound := true
	err := r.rows.Formers(revision, after, func(name string, sealed []byte) bool {
		var o *Object
		o, sound = decodeFormer(name, sealed)
		return sound && each(name, o)
	})
	if err == nil && !sound {
		err = fmt.Errorf("%w: objects of revision %d", disk.ErrDamaged, revision)
	}
	return err
}

// former returns the object with the given name as it was before revision, if the revision changed it
// (touched). o is nil if the object did not exist then, or if touched is false.
func (r *historyReader) former(revision uint64, name string) (o *Object, touched bool, err error) {
	sealed, touched, err := r.rows.Former(revision, name)
	if err != nil || !touched {
		return nil, false, err
	}
	o, ok := decodeFormer(name, sealed)
	if !ok {
		return nil, false, fmt.Errorf("%w: objects of revision %d", disk.ErrDamaged, revision)
	}
	return o, true, nil
}

// decodeFormer decodes a former object; nil: the object did not exist.
func decodeFormer(name string, sealed []byte) (o *Object, ok bool) {
	if sealed == nil {
		return nil, true
	}
	return decodeObject(name, sealed)
}

// rowsOf returns the rows of former objects, and sorts formers by name, as rows are.
func rowsOf(revision uint64, formers []former) []disk.Row {
	slices.SortFunc(formers, func(a, b former) int { return a.Key.compare(b.Key) })
	return disk.FormerRows(revision, func(yield func(string, []byte) bool) {
		for _, f := range formers {
			var sealed []byte
			if f.object != nil {
				sealed, _ = recordOf(f.object)
			}
			if !yield(f.Key.String(), sealed) {
				return
			}
		}
	})
}

// splitKey is the reverse of [Key.String].
func splitKey(text string) Key {
	kind, name, _ := strings.Cut(text, "/")
	return Key{kindName(kind), name}
}
