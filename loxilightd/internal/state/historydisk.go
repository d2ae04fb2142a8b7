// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// bucketHistory contains the rows of the history. Versions without history do not access it.
var bucketHistory = []byte("history")

// loadHistory reads the entries. It discards a history that is damaged, or that does not lead to
// the current revision because an older version has since changed the store; in that case, why
// contains the reason.
func (c *content) loadHistory(b *bbolt.Bucket) (why string) {
	if b == nil {
		return ""
	}
	err := b.ForEach(func(k, v []byte) error {
		revision, isEntry, ok := rowRevision(k)
		switch {
		case !ok:
			return fmt.Errorf("a row %x", k)
		case isEntry:
			e, ok := decodeEntry(revision, v)
			if !ok {
				return fmt.Errorf("the record of revision %d", revision)
			}
			if n := len(c.history); n > 0 && c.history[n-1].Revision != e.Previous {
				return fmt.Errorf("a gap before revision %d", revision)
			}
			c.history = append(c.history, *e)
		case len(c.history) == 0 || c.history[len(c.history)-1].Revision != revision:
			return fmt.Errorf("objects of revision %d without its record", revision)
		}
		return nil
	})
	n := len(c.history)
	if err == nil && n > 0 && c.history[n-1].Revision != c.Revision {
		err = fmt.Errorf("it leads to revision %d, and the store is at %d: another version has changed the store since", c.history[n-1].Revision, c.Revision)
	}
	if err != nil {
		c.history = nil
		return err.Error()
	}
	return ""
}

// beginHistory creates the bucket for the history. If anew is set, it replaces an unusable history.
func beginHistory(f *disk.File, anew bool) error {
	return f.Update(func(tx *bbolt.Tx) error {
		if anew {
			if err := tx.DeleteBucket(bucketHistory); err != nil {
				return err
			}
			if err := disk.Meta(tx).Delete(keyPending); err != nil {
				return err
			}
		}
		_, err := tx.CreateBucketIfNotExists(bucketHistory)
		return err
	})
}

// writeHistory adds the history of a commit to its transaction.
func writeHistory(tx *bbolt.Tx, w *write) error {
	b, meta := tx.Bucket(bucketHistory), disk.Meta(tx)
	if w.pending != nil {
		if err := meta.Put(keyPending, w.pending.encode()); err != nil {
			return err
		}
	} else if w.clearsPending {
		if err := meta.Delete(keyPending); err != nil {
			return err
		}
	}
	for _, revision := range w.evicted {
		if err := deleteRevision(b, revision); err != nil {
			return err
		}
	}
	for _, e := range w.rewritten {
		if err := b.Put(entryKey(e.Revision), encodeEntry(e)); err != nil {
			return err
		}
	}
	if w.entry == nil {
		return nil
	}
	b.FillPercent = 0.9 // rows are added in order
	for _, row := range w.formers {
		if err := b.Put(row.key, row.record); err != nil {
			return err
		}
	}
	return b.Put(entryKey(w.entry.Revision), encodeEntry(w.entry))
}

// deleteRevision deletes the rows of a revision.
func deleteRevision(b *bbolt.Bucket, revision uint64) error {
	var keys [][]byte // collected first, since a cursor is unreliable after a deletion
	prefix, c := record.NumberKey(revision), b.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// historyReader reads former objects in one transaction of the store. It contains the in-memory
// state of the store as of the start of that transaction.
type historyReader struct {
	b       *bbolt.Bucket
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
		r.b = tx.Bucket(bucketHistory)
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
	prefix := append(record.NumberKey(revision), rowFormer)
	c := r.b.Cursor()
	k, v := r.seek(c, revision, after)
	for more := true; more && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		ok := decodeFormers(k, v, func(name string, o *Object) bool {
			more = name <= after || each(name, o)
			return more
		})
		if !ok {
			return fmt.Errorf("%w: objects of revision %d", disk.ErrDamaged, revision)
		}
	}
	return nil
}

// seek moves c to the row of a revision that would contain the object with the given name, or to
// the next row if no such row exists.
func (r *historyReader) seek(c *bbolt.Cursor, revision uint64, name string) (k, v []byte) {
	want := formerKey(revision, name)
	k, v = c.Seek(want)
	if bytes.Equal(k, want) {
		return k, v
	}
	if k == nil {
		k, v = c.Last()
	} else {
		k, v = c.Prev()
	}
	if bytes.HasPrefix(k, want[:9]) {
		return k, v
	}
	return c.Seek(want)
}

// former returns the object with the given name as it was before revision, and whether the revision
// changed it.
func (r *historyReader) former(revision uint64, name string) (o *Object, touched bool, err error) {
	k, v := r.seek(r.b.Cursor(), revision, name)
	if !bytes.HasPrefix(k, append(record.NumberKey(revision), rowFormer)) {
		return nil, false, nil
	}
	ok := decodeFormers(k, v, func(n string, found *Object) bool {
		if n == name {
			o, touched = found, true
		}
		return n < name
	})
	if !ok {
		return nil, false, fmt.Errorf("%w: objects of revision %d", disk.ErrDamaged, revision)
	}
	return o, touched, nil
}

// evict returns which revisions must be deleted, so that the limits hold, before an entry with the
// given size in bytes is added. Revision keep and all later revisions stay.
func (l HistoryLimits) evict(history []Entry, bytes int64, keep uint64) (evicted []uint64) {
	count := len(history) + 1
	for i := range history {
		bytes += history[i].bytes
	}
	for i := range history {
		if count <= l.Revisions && bytes <= l.Bytes || keep != 0 && history[i].Revision >= keep {
			break
		}
		evicted = append(evicted, history[i].Revision)
		count, bytes = count-1, bytes-history[i].bytes
	}
	return evicted
}

// sortFormers sorts by name, as rows are.
func sortFormers(formers []former) {
	slices.SortFunc(formers, func(a, b former) int { return a.Key.compare(b.Key) })
}

// splitKey is the reverse of [Key.String].
func splitKey(text string) Key {
	kind, name, _ := strings.Cut(text, "/")
	return Key{kindName(kind), name}
}
