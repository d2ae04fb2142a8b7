// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// Buckets of the store, and keys in the first bucket.
var (
	bucketMeta     = []byte("meta")
	bucketObjects  = []byte("objects")  // Kind/name: record
	bucketRequests = []byte("requests") // sequence number: reply
	buckets        = [][]byte{bucketMeta, bucketObjects, bucketRequests}

	keyHead   = []byte(headKey)
	keyDamage = []byte("damage")

	// keyPending is the change that will be rolled back unless it is confirmed.
	keyPending = []byte("pending")
)

// disk is the durable side of a store. Its methods are not safe for concurrent use.
type disk struct {
	db          *bbolt.DB
	head        head
	requests    requests
	broken      error // why nothing can be written any more
	path        string
	readOnly    error // why nothing can be written for now; nil: writing is possible
	initialized bool  // everything that opening the store requires to be written has been written

	noHistory bool // the store was written by a version that kept no history
}

// content is the content of a store when it was opened.
type content struct {
	head
	objects    []*Object
	requests   requests
	damage     *Damage
	unreadable []Unreadable
	rolledBack bool

	history     []Entry  // oldest first
	historyLost string   // why the history was lost; empty: it was not lost
	pending     *Pending // nil: no change waits for confirmation
}

// guarded runs f, which reads a memory-mapped file. If the file is damaged, bbolt panics or the
// kernel raises a fault; both become errDamaged.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errDamaged, r)
		}
	}()
	return f()
}

// create makes a new, empty store. The file gets its final name only once it is complete.
func create(path string, revision uint64, damage *Damage) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("new store: %w", err)
	}
	db, err := bbolt.Open(fresh, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return fmt.Errorf("new store %s: %w", fresh, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range buckets {
			if _, err := tx.CreateBucket(b); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		if damage != nil {
			text, err := json.Marshal(damage)
			if err != nil {
				return err
			}
			if err := meta.Put(keyDamage, text); err != nil {
				return err
			}
		}
		return meta.Put(keyHead, head{format: format, revision: revision}.encode())
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("new store %s: %w", fresh, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("new store: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	defer f.Close() // the file is only read: nothing to lose
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// openDisk opens and checks the store at path. The error wraps errDamaged, os.ErrNotExist or
// ErrLocked if one of them applies.
func openDisk(path string, decode func(string, []byte) (Value, error)) (*disk, *content, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, nil, err
	} else if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%w: not a file", errDamaged)
	}
	lost, err := verify(path)
	if err != nil {
		if !errors.Is(err, ErrLocked) && !errors.Is(err, errDamaged) && !isTransient(err) {
			err = fmt.Errorf("%w: %v", errDamaged, err)
		}
		return nil, nil, err
	}
	c, d := &content{rolledBack: lost}, &disk{path: path}
	err = guarded(func() error { return d.open(false) })
	if err != nil && isReadOnly(err) {
		d.readOnly = err
		err = guarded(func() error { return d.open(true) })
	}
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, nil, ErrLocked
	case err != nil && isTransient(err):
		return nil, nil, err
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %v", errDamaged, err)
	}
	if err := guarded(func() error { return d.load(c, decode) }); err != nil {
		// A damaged mapping is abandoned rather than closed, since closing would access it again.
		if !errors.Is(err, errDamaged) {
			err = errors.Join(err, d.db.Close())
		}
		return nil, nil, err
	}
	d.head, d.requests = c.head, c.requests
	if err := d.finishOpen(c); err != nil && !isReadOnly(err) {
		return nil, nil, errors.Join(err, d.db.Close())
	} else if err != nil {
		d.readOnly = err
	}
	d.initialized = d.readOnly == nil || !c.rolledBack && !d.noHistory && c.historyLost == ""
	return d, c, nil
}

// mapped is the address space reserved for the store, in bytes. A larger file must be mapped again,
// and remapping waits for all readers of the history.
const mapped = 1 << 30

// growBy is the minimum by which the file grows, in bytes.
const growBy = 32 << 10

// finishOpen writes what a newly opened store needs before it can be used.
func (d *disk) finishOpen(c *content) error {
	if d.noHistory || c.historyLost != "" {
		if err := d.beginHistory(!d.noHistory); err != nil {
			return err
		}
	}
	if !c.rolledBack {
		return nil
	}
	w := &write{revision: freshRevision(time.Now()), count: int(c.count)}
	w.entry = &Entry{Revision: w.revision, Previous: c.revision, At: time.Now().UTC(), Author: Author{UID: os.Getuid(), Method: "recover"}}
	if err := d.write(w); err != nil {
		return err
	}
	c.revision = w.revision
	c.history = append(c.history, *w.entry)
	return nil
}

// isTransient reports whether err is a lack of permission or of a system resource, which may be
// over before the next start, rather than damage to the store.
func isTransient(err error) bool {
	for _, lack := range []error{
		unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOMEM, unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.EINTR,
	} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// load reads and checks everything.
func (d *disk) load(c *content, decode func(string, []byte) (Value, error)) error {
	return d.db.View(func(tx *bbolt.Tx) error {
		for _, b := range buckets {
			if tx.Bucket(b) == nil {
				return fmt.Errorf("%w: no bucket %s", errDamaged, b)
			}
		}
		if err := c.loadMeta(tx.Bucket(bucketMeta)); err != nil {
			return err
		}
		if err := c.loadObjects(tx.Bucket(bucketObjects), decode); err != nil {
			return err
		}
		d.noHistory = tx.Bucket(bucketHistory) == nil
		c.historyLost = c.loadHistory(tx.Bucket(bucketHistory))
		c.loadPending(tx.Bucket(bucketMeta).Get(keyPending))
		return c.requests.load(tx.Bucket(bucketRequests))
	})
}

func (c *content) loadMeta(b *bbolt.Bucket) error {
	var ok bool
	if c.head, ok = decodeHead(b.Get(keyHead)); !ok {
		return fmt.Errorf("%w: the head is missing or wrong", errDamaged)
	}
	if c.format != format {
		return fmt.Errorf("%w: written in format %d, this version reads %d", errDamaged, c.format, format)
	}
	if text := b.Get(keyDamage); text != nil {
		if err := json.Unmarshal(text, &c.damage); err != nil {
			return fmt.Errorf("%w: record of earlier damage: %v", errDamaged, err)
		}
	}
	return nil
}

func (c *content) loadObjects(b *bbolt.Bucket, decode func(string, []byte) (Value, error)) error {
	var count, sum uint64
	err := b.ForEach(func(k, v []byte) (err error) {
		o, ok := decodeObject(string(k), v)
		if !ok {
			return fmt.Errorf("%w: object %q", errDamaged, k)
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
	if err == nil && (count != c.count || sum != c.sum) {
		err = fmt.Errorf("%w: %d objects, which are not the %d that were written", errDamaged, count, c.count)
	}
	return err
}

// write is one commit.
type write struct {
	revision  uint64
	puts      []*Object
	deletes   []*Object
	replaced  []*Object // objects that puts and deletes replace
	count     int       // number of objects afterwards, including opaque objects
	requestID string    // empty: none
	answer    []byte

	entry         *Entry // history entry; nil: no new revision
	formers       []formerRow
	evicted       []uint64 // revisions whose history is deleted
	rewritten     []*Entry // older entries with updated information
	pending       *Pending // nil: unchanged
	clearsPending bool     // no change is waiting for confirmation any longer
}

// write makes w durable, as a whole or not at all.
func (d *disk) write(w *write) error {
	h := head{format: format, revision: w.revision, count: uint64(w.count), sum: d.head.sum}
	for _, o := range w.replaced {
		h.sum -= uint64(o.crc)
	}
	slices.SortFunc(w.puts, func(a, b *Object) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	var remembered *remembered
	err := d.update(func(tx *bbolt.Tx) error {
		objects := tx.Bucket(bucketObjects)
		for _, o := range w.deletes {
			if err := objects.Delete([]byte(o.Key.String())); err != nil {
				return err
			}
		}
		for _, o := range w.puts { // in key order, which is fastest for the tree
			record := encodeObject(o)
			h.sum += uint64(o.crc)
			if err := objects.Put([]byte(o.Key.String()), record); err != nil {
				return err
			}
		}
		if w.requestID != "" {
			var err error
			if remembered, err = d.requests.put(tx.Bucket(bucketRequests), w.requestID, w.answer); err != nil {
				return err
			}
		}
		if err := writeHistory(tx, w); err != nil {
			return err
		}
		return tx.Bucket(bucketMeta).Put(keyHead, h.encode())
	})
	if err != nil {
		return err
	}
	d.head = h
	d.requests.note(remembered)
	return nil
}

// update runs f in a transaction of the store. After an error, it checks whether the store is
// unchanged; if not, it marks the store as broken, because memory and disk must not diverge.
func (d *disk) update(f func(*bbolt.Tx) error) error {
	if d.broken != nil {
		return d.broken
	}
	if err := d.needWritable(); err != nil {
		return err
	}
	err := guarded(func() error { return d.db.Update(f) })
	if err == nil {
		return nil
	}
	asBefore := guarded(func() error {
		return d.db.View(func(tx *bbolt.Tx) error {
			if h, ok := decodeHead(tx.Bucket(bucketMeta).Get(keyHead)); !ok || h != d.head {
				return errors.New("the store is not as before")
			}
			return nil
		})
	})
	if errors.Is(err, errDamaged) || asBefore != nil {
		d.broken = fmt.Errorf("the store failed and accepts no changes before a restart: %w", errors.Join(err, asBefore))
		return d.broken
	}
	return err
}

// answer returns the stored reply for a request id; nil if none is stored.
func (d *disk) answer(id string) (answer []byte, err error) {
	seq, ok := d.requests.find(id)
	if !ok {
		return nil, nil
	}
	err = guarded(func() error {
		return d.db.View(func(tx *bbolt.Tx) error {
			_, answer, err = decodeRequest(seq, tx.Bucket(bucketRequests).Get(record.NumberKey(seq)))
			return err
		})
	})
	return answer, err
}

func (d *disk) close() error {
	if d.broken != nil {
		return nil // do not access the mapped memory again
	}
	d.broken = errors.New("the store is closed")
	return d.db.Close()
}
