// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"

	"go.etcd.io/bbolt"

	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// bucketHistory contains the rows of the history. Versions without history do not access it.
var bucketHistory = []byte("history")

// Rows of the history: the entry of a revision, then its former objects in the order of their
// names. A former object is an object as it was before the revision. A row holds many former
// objects and is named after the first of them.
const (
	rowEntry  = 0
	rowFormer = 1
	rowBytes  = 64 << 10 // a row ends at this length
)

// Row is one row of the history.
type Row struct{ key, record []byte }

// Size returns the number of bytes that r occupies, without overhead.
func (r Row) Size() int64 { return int64(len(r.key) + len(r.record)) }

func entryKey(revision uint64) []byte { return append(record.NumberKey(revision), rowEntry) }

func formerKey(revision uint64, first string) []byte {
	return append(append(record.NumberKey(revision), rowFormer), first...)
}

// rowRevision returns the revision that a row belongs to.
func rowRevision(key []byte) (revision uint64, isEntry, ok bool) {
	if len(key) < 9 || key[8] == rowEntry && len(key) > 9 || key[8] > rowFormer {
		return 0, false, false
	}
	return binary.BigEndian.Uint64(key), key[8] == rowEntry, true
}

// FormerRows returns the rows of a revision's former objects: their names, in order, and their
// records. The record of an object that did not exist is nil.
func FormerRows(revision uint64, formers iter.Seq2[string, []byte]) (rows []Row) {
	var row Row
	end := func() {
		record.Seal(string(row.key), row.record)
		rows = append(rows, row)
		row = Row{}
	}
	for name, sealed := range formers {
		if row.key == nil {
			row = Row{formerKey(revision, name), make([]byte, record.SumSize, 4096)}
		}
		row.record = record.AppendString(row.record, name)
		if sealed != nil {
			row.record = record.AppendString(append(row.record, 1), string(sealed))
		} else {
			row.record = append(row.record, 0)
		}
		if len(row.record) >= rowBytes {
			end()
		}
	}
	if row.key != nil {
		end()
	}
	return rows
}

// decodeFormers calls the function each for the former objects in a row until it returns false. ok
// is false if the row is damaged.
func decodeFormers(key, row []byte, each func(name string, sealed []byte) bool) (ok bool) {
	payload, _, ok := record.Unseal(string(key), row)
	r := record.Reader{Rest: payload}
	for ok && len(r.Rest) > 0 {
		name, there := r.Text(), r.Byte()
		var sealed []byte
		if there == 1 {
			sealed = []byte(r.Text())
		}
		if ok = !r.Bad; ok && !each(name, sealed) {
			return true
		}
	}
	return ok
}

// History is the history in one transaction.
type History struct{ b *bbolt.Bucket }

// HistoryIn returns the history in a transaction; ok is false if the store was written by a version
// that kept no history.
func HistoryIn(tx *bbolt.Tx) (h History, ok bool) {
	b := tx.Bucket(bucketHistory)
	return History{b}, b != nil
}

// BeginHistory creates an empty history. If anew is set, it replaces the existing history.
func BeginHistory(tx *bbolt.Tx, anew bool) error {
	if anew {
		if err := tx.DeleteBucket(bucketHistory); err != nil {
			return err
		}
	}
	_, err := tx.CreateBucketIfNotExists(bucketHistory)
	return err
}

// Entries calls the function each for the entries, oldest first, until it returns an error. It also
// returns an error if a row is damaged, or does not belong to the entry before it.
func (h History) Entries(each func(revision uint64, entry []byte) error) error {
	last, found := uint64(0), false
	return h.b.ForEach(func(k, v []byte) error {
		revision, isEntry, ok := rowRevision(k)
		switch {
		case !ok:
			return fmt.Errorf("a row %x", k)
		case isEntry:
			entry, _, ok := record.Unseal(string(k), v)
			if !ok {
				return fmt.Errorf("the record of revision %d", revision)
			}
			last, found = revision, true
			return each(revision, entry)
		case !found || last != revision:
			return fmt.Errorf("objects of revision %d without its record", revision)
		}
		return nil
	})
}

// PutEntry writes the entry of a revision.
func (h History) PutEntry(revision uint64, entry []byte) error {
	key := entryKey(revision)
	sealed := append(make([]byte, record.SumSize, record.SumSize+len(entry)), entry...)
	record.Seal(string(key), sealed)
	return h.b.Put(key, sealed)
}

// Append adds a revision: its entry and the rows of its former objects.
func (h History) Append(revision uint64, entry []byte, formers []Row) error {
	h.b.FillPercent = 0.9 // rows are added in order
	for _, row := range formers {
		if err := h.b.Put(row.key, row.record); err != nil {
			return err
		}
	}
	return h.PutEntry(revision, entry)
}

// Delete deletes the rows of a revision.
func (h History) Delete(revision uint64) error {
	var keys [][]byte // collected first, since a cursor is unreliable after a deletion
	prefix, c := record.NumberKey(revision), h.b.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	for _, k := range keys {
		if err := h.b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// Formers calls the function each for the former objects of a revision, in the order of their
// names, starting after the name given by after, until it returns false. The record of an object
// that did not exist is nil.
func (h History) Formers(revision uint64, after string, each func(name string, sealed []byte) bool) error {
	prefix := append(record.NumberKey(revision), rowFormer)
	c := h.b.Cursor()
	k, v := seek(c, revision, after)
	for more := true; more && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		ok := decodeFormers(k, v, func(name string, sealed []byte) bool {
			more = name <= after || each(name, sealed)
			return more
		})
		if !ok {
			return fmt.Errorf("%w: objects of revision %d", ErrDamaged, revision)
		}
	}
	return nil
}

// seek moves c to the row of a revision that would contain the object with the given name, or to
// the next row if no such row exists.
func seek(c *bbolt.Cursor, revision uint64, name string) (k, v []byte) {
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

// Former returns the record of the object with the given name as it was before revision, if the
// revision changed it (touched). The record is nil if the object did not exist then, or if touched is
// false.
func (h History) Former(revision uint64, name string) (sealed []byte, touched bool, err error) {
	k, v := seek(h.b.Cursor(), revision, name)
	if !bytes.HasPrefix(k, append(record.NumberKey(revision), rowFormer)) {
		return nil, false, nil
	}
	ok := decodeFormers(k, v, func(n string, found []byte) bool {
		if n == name {
			sealed, touched = found, true
		}
		return n < name
	})
	if !ok {
		return nil, false, fmt.Errorf("%w: objects of revision %d", ErrDamaged, revision)
	}
	return sealed, touched, nil
}
