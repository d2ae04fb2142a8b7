// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
	"github.com/loxilight/loxilight/loxilightd/internal/state/timeline"
)

// Keys in the bucket [disk.Meta].
var (
	keyDamage = []byte("damage")

	// keyPending is the change that will be rolled back unless it is confirmed.
	keyPending = []byte(timeline.PendingKey)
)

// content is the content of a store when it was opened.
type content struct {
	disk.Head
	objects    []*Object
	damage     *Damage
	unreadable []Unreadable
	rolledBack bool

	history     []Entry  // oldest first
	historyLost string   // why the history was lost; empty: it was not lost
	noHistory   bool     // the store was written by a version that kept no history
	pending     *Pending // nil: no change waits for confirmation
}

// create makes a new, empty store.
func create(path string, revision uint64, damage *Damage) error {
	return disk.Create(path, revision, func(tx *bbolt.Tx) error {
		if damage == nil {
			return nil
		}
		text, err := json.Marshal(damage)
		if err != nil {
			return err
		}
		return disk.Meta(tx).Put(keyDamage, text)
	})
}

// openFile opens and checks the store at path. The error wraps disk.ErrDamaged, os.ErrNotExist or
// disk.ErrLocked if one of them applies.
func openFile(path string, decode func(string, []byte) (Value, error)) (*disk.File, *content, error) {
	c := &content{}
	f, err := disk.Open(path, func(tx *bbolt.Tx, head disk.Head) error {
		c.Head = head
		return c.load(tx, decode)
	})
	if err != nil {
		return nil, nil, err
	}
	c.rolledBack = f.RolledBack()
	if err := f.Initialize(func() error { return c.finishOpen(f) }); err != nil {
		return nil, nil, err
	}
	return f, c, nil
}

// finishOpen writes what a newly opened store needs before it can be used.
func (c *content) finishOpen(f *disk.File) error {
	if c.noHistory || c.historyLost != "" {
		if err := beginHistory(f, !c.noHistory); err != nil {
			return err
		}
	}
	if !c.rolledBack {
		return nil
	}
	w := &write{revision: freshRevision(time.Now()), count: int(c.Count)}
	w.entry = &Entry{Revision: w.revision, Previous: c.Revision, Last: w.revision, At: time.Now().UTC(), Author: Author{UID: os.Getuid(), Method: "recover"}}
	if err := w.commit(f); err != nil {
		return err
	}
	c.Revision = w.revision
	c.history = append(c.history, *w.entry)
	return nil
}

// load reads and checks everything.
func (c *content) load(tx *bbolt.Tx, decode func(string, []byte) (Value, error)) error {
	if text := disk.Meta(tx).Get(keyDamage); text != nil {
		if err := json.Unmarshal(text, &c.damage); err != nil {
			return fmt.Errorf("%w: record of earlier damage: %v", disk.ErrDamaged, err)
		}
	}
	if err := c.loadObjects(disk.Objects(tx), decode); err != nil {
		return err
	}
	if history, ok := disk.HistoryIn(tx); ok {
		c.historyLost = c.loadHistory(history)
	} else {
		c.noHistory = true
	}
	c.loadPending(disk.Meta(tx).Get(keyPending))
	return nil
}

func (c *content) loadObjects(b *bbolt.Bucket, decode func(string, []byte) (Value, error)) error {
	var count, sum uint64
	err := b.ForEach(func(k, v []byte) (err error) {
		o, ok := decodeObject(string(k), v)
		if !ok {
			return fmt.Errorf("%w: object %q", disk.ErrDamaged, k)
		}
		count++
		sum += uint64(o.crc)
		if o.Value, err = decode(o.Kind, []byte(o.Spec)); err != nil {
			c.unreadable = append(c.unreadable, Unreadable{o.Key, err})
			o.Value = opaque{}
		}
		c.objects = append(c.objects, o)
		return nil
	})
	if err == nil && (count != c.Count || sum != c.Sum) {
		err = fmt.Errorf("%w: %d objects, which are not the %d that were written", disk.ErrDamaged, count, c.Count)
	}
	return err
}

// loadHistory reads the entries. It discards a history that is damaged, or that does not lead to
// the current revision because an older version has since changed the store; in that case, why
// contains the reason.
func (c *content) loadHistory(h disk.History) (why string) {
	err := h.Entries(func(revision uint64, entry []byte) error {
		e, ok := timeline.DecodeEntry(revision, entry)
		if !ok {
			return fmt.Errorf("the record of revision %d", revision)
		}
		if n := len(c.history); n > 0 && c.history[n-1].Last != e.Previous {
			return fmt.Errorf("a gap before revision %d", revision)
		}
		c.history = append(c.history, *e)
		return nil
	})
	n := len(c.history)
	if err == nil && n > 0 && c.history[n-1].Last != c.Revision {
		err = fmt.Errorf("it leads to revision %d, and the store is at %d: another version has changed the store since", c.history[n-1].Last, c.Revision)
	}
	if err != nil {
		c.history = nil
		return err.Error()
	}
	return ""
}

// beginHistory starts a history. If anew is set, it replaces an unusable history.
func beginHistory(f *disk.File, anew bool) error {
	return f.Update(func(tx *bbolt.Tx) error {
		if anew {
			if err := disk.Meta(tx).Delete(keyPending); err != nil {
				return err
			}
		}
		return disk.BeginHistory(tx, anew)
	})
}

// write is one commit.
type write struct {
	revision uint64
	puts     []*Object
	deletes  []*Object
	replaced []*Object // objects that puts and deletes replace
	count    int       // number of objects afterwards, including opaque objects
	reply    disk.Reply

	entry         *Entry // history entry; nil: no new revision
	formers       []disk.Row
	evicted       []uint64 // revisions whose history is deleted
	rewritten     []*Entry // older entries with updated information
	pending       *Pending // nil: unchanged
	clearsPending bool     // no change is waiting for confirmation any longer
}

// commit makes w durable, as a whole or not at all.
func (w *write) commit(f *disk.File) error {
	head := disk.Head{Revision: w.revision, Count: uint64(w.count), Sum: f.Head().Sum}
	for _, o := range w.replaced {
		head.Sum -= uint64(o.crc)
	}
	slices.SortFunc(w.puts, func(a, b *Object) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return f.Commit(w.reply, func(tx *bbolt.Tx) (disk.Head, error) {
		objects := disk.Objects(tx)
		for _, o := range w.deletes {
			if err := objects.Delete([]byte(o.Key.String())); err != nil {
				return head, err
			}
		}
		for _, o := range w.puts { // in key order, which is fastest for the tree
			sealed := encodeObject(o)
			head.Sum += uint64(o.crc)
			if err := objects.Put([]byte(o.Key.String()), sealed); err != nil {
				return head, err
			}
		}
		return head, w.writeHistory(tx)
	})
}

// writeHistory adds the history of a commit to its transaction.
func (w *write) writeHistory(tx *bbolt.Tx) error {
	meta := disk.Meta(tx)
	if w.pending != nil {
		if err := meta.Put(keyPending, w.pending.Encode()); err != nil {
			return err
		}
	} else if w.clearsPending {
		if err := meta.Delete(keyPending); err != nil {
			return err
		}
	}
	h, _ := disk.HistoryIn(tx) // exists: see finishOpen
	for _, revision := range w.evicted {
		if err := h.Delete(revision); err != nil {
			return err
		}
	}
	for _, e := range w.rewritten {
		if err := h.PutEntry(e.Revision, e.Encode()); err != nil {
			return err
		}
	}
	if w.entry == nil {
		return nil
	}
	return h.Append(w.entry.Revision, w.entry.Encode(), w.formers)
}
