// SPDX-License-Identifier: Apache-2.0

// Package timeline describes the revisions in the history of the store, and the change that waits
// for confirmation: their records on disk, limits and deadlines. It does not access the disk.
package timeline

import (
	"encoding/binary"
	"sort"
	"strconv"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// Limits on the history if the configuration sets none.
const (
	DefaultRevisions    = 1000
	DefaultHistoryBytes = 64 << 20
)

// Limits limit how much of earlier revisions is kept. The latest revision and a revision
// that waits for confirmation are kept regardless of their size.
type Limits struct {
	Revisions int   // zero: [DefaultRevisions]
	Bytes     int64 // zero: [DefaultHistoryBytes]
}

// Author is the user who made a revision, and the method that was called.
type Author struct {
	UID    int
	User   string // name of UID; empty: UID has no name
	Method string // method of the channel; [MethodExpire]: the daemon itself
}

// MethodExpire is the method of a revision that rolls back an unconfirmed change.
const MethodExpire = "expire"

// OrDefault returns l with the default in place of each zero.
func (l Limits) OrDefault() Limits {
	if l.Revisions == 0 {
		l.Revisions = DefaultRevisions
	}
	if l.Bytes == 0 {
		l.Bytes = DefaultHistoryBytes
	}
	return l
}

// Confirmation is the state of a change that must be confirmed.
type Confirmation uint8

// The confirmations.
const (
	NotAsked  Confirmation = iota
	Waiting                // in force until its deadline
	Confirmed              // permanent
	RolledBack
)

// String returns the name in the API; the name of NotAsked is empty.
func (c Confirmation) String() string {
	return [...]string{"", "waiting", "confirmed", "rolled-back"}[c]
}

// Entry describes one revision. The objects as they were before the revision are on disk.
type Entry struct {
	Revision uint64
	Previous uint64 // the revision before it
	// Last is Revision, or the last of the omitted revisions that follow it: a change of Entities
	// alone.
	Last uint64
	At   time.Time
	Author
	Owners                    []string // owners of the objects that changed, at most MaxOwners of them
	Created, Updated, Deleted int
	Restored                  uint64 // the revision that a rollback restored; zero: not a rollback
	Confirmation              Confirmation

	Bytes int64 // size on disk
}

// MaxOwners limits how many owners are named in an [Entry].
const MaxOwners = 8

// entryFormat is the version of the entry records. A history with a different version is discarded.
const entryFormat = 1

// Encode returns the record of an entry.
func (e *Entry) Encode() []byte {
	buf := binary.AppendUvarint(make([]byte, 0, 128), entryFormat)
	buf = binary.AppendUvarint(buf, e.Previous)
	buf = binary.LittleEndian.AppendUint64(buf, uint64(e.At.UnixNano()))
	buf = binary.AppendVarint(buf, int64(e.UID))
	buf = record.AppendString(record.AppendString(buf, e.User), e.Method)
	buf = binary.AppendUvarint(buf, uint64(len(e.Owners)))
	for _, owner := range e.Owners {
		buf = record.AppendString(buf, owner)
	}
	for _, n := range []uint64{uint64(e.Created), uint64(e.Updated), uint64(e.Deleted), e.Restored, uint64(e.Confirmation), uint64(e.Bytes)} {
		buf = binary.AppendUvarint(buf, n)
	}
	if e.Last > e.Revision { // other versions ignore what follows
		buf = binary.AppendUvarint(buf, e.Last)
	}
	return buf
}

// DecodeEntry is the reverse of [Entry.Encode]. It does not retain any part of entry.
func DecodeEntry(revision uint64, entry []byte) (*Entry, bool) {
	r := record.Reader{Rest: entry}
	if r.Uvarint() != entryFormat {
		return nil, false
	}
	e := &Entry{Revision: revision, Previous: r.Uvarint(), At: r.Time(), Author: Author{UID: int(r.Varint()), User: r.Text(), Method: r.Text()}}
	for range min(r.Uvarint(), MaxOwners) {
		e.Owners = append(e.Owners, r.Text())
	}
	for _, n := range []*int{&e.Created, &e.Updated, &e.Deleted} {
		*n = int(r.Uvarint())
	}
	e.Restored = r.Uvarint()
	e.Confirmation = Confirmation(r.Uvarint())
	e.Bytes = int64(r.Uvarint())
	if e.Last = revision; len(r.Rest) > 0 {
		e.Last = r.Uvarint()
	}
	return e, !r.Bad && e.Confirmation <= RolledBack
}

// Find returns the index of revision in a history.
func Find(history []Entry, revision uint64) (i int, ok bool) {
	i = sort.Search(len(history), func(i int) bool { return history[i].Revision >= revision })
	return i, i < len(history) && history[i].Revision == revision
}

// Since returns the entries after a revision, oldest first; false if the revision is older than the
// history. A revision after the last entry is omitted, or does not exist.
func Since(history []Entry, revision uint64) ([]Entry, bool) {
	for i := range history {
		first := history[i].Previous
		if i > 0 {
			first = history[i-1].Revision
		}
		if first <= revision && revision <= history[i].Previous {
			return history[i:], true
		}
	}
	n := len(history)
	return nil, n > 0 && history[n-1].Revision <= revision
}

// Evict returns which revisions must be deleted, so that the limits hold, before an entry with the
// given size in bytes is added. Revision keep and all later revisions stay.
func (l Limits) Evict(history []Entry, bytes int64, keep uint64) (evicted []uint64) {
	count := len(history) + 1
	for i := range history {
		bytes += history[i].Bytes
	}
	for i := range history {
		if count <= l.Revisions && bytes <= l.Bytes || keep != 0 && history[i].Revision >= keep {
			break
		}
		evicted = append(evicted, history[i].Revision)
		count, bytes = count-1, bytes-history[i].Bytes
	}
	return evicted
}

// String returns the name of a user for use in messages.
func (a Author) String() string {
	if a.User != "" {
		return a.User
	}
	return "user id " + strconv.Itoa(a.UID)
}
