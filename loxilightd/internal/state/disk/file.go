// SPDX-License-Identifier: Apache-2.0

// Package disk keeps the file of the store: a bbolt database that is verified before it is opened,
// with the rows of the history and the replies to earlier requests, and a copy that replaces the
// file if it is damaged. The package does not know what an object is: its caller encodes, decodes
// and counts the records of objects.
package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/loxilight/loxilight/loxilightd/internal/state/record"
)

// Errors of this package.
var (
	// ErrDamaged is wrapped by errors about data on disk that is not as it was written.
	ErrDamaged = errors.New("damaged")
	// ErrLocked is wrapped by errors that occur because another process has the store open.
	ErrLocked = errors.New("another process has the store open")
)

// Buckets of the file, and the key of the head in the first bucket.
var (
	bucketMeta     = []byte("meta")
	bucketObjects  = []byte("objects")  // name: record
	bucketRequests = []byte("requests") // sequence number: reply
	buckets        = [][]byte{bucketMeta, bucketObjects, bucketRequests}

	keyHead = []byte(headKey)
)

// Meta returns the bucket of the records that concern the store as a whole.
func Meta(tx *bbolt.Tx) *bbolt.Bucket { return tx.Bucket(bucketMeta) }

// Objects returns the bucket of the objects' records.
func Objects(tx *bbolt.Tx) *bbolt.Bucket { return tx.Bucket(bucketObjects) }

// File is the open file of a store. Its methods are not safe for concurrent use, but a transaction
// from [File.Begin] may be used concurrently with them.
type File struct {
	db          *bbolt.DB
	head        Head
	requests    requests
	broken      error // why nothing more can be written
	path        string
	rolledBack  bool
	readOnly    error // why nothing can be written for now; nil: writing is possible
	initialized bool  // everything that opening the store requires to be written has been written
}

// guarded runs f, which reads a memory-mapped file. If the file is damaged, bbolt panics or the
// kernel raises a fault; both become ErrDamaged.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	return f()
}

// Create makes a new store without objects, to which the function add adds records. The file gets
// its final name only once it is complete.
func Create(path string, revision uint64, add func(*bbolt.Tx) error) error {
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
		if err := add(tx); err != nil {
			return err
		}
		return Meta(tx).Put(keyHead, Head{Revision: revision}.encode())
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

// Open verifies and opens the file at path. It calls load, which reads and checks the records of
// the caller, with the head of the store. The error wraps [ErrDamaged], [os.ErrNotExist] or
// [ErrLocked] if one of them applies. The caller must call [File.Initialize] next.
func Open(path string, load func(tx *bbolt.Tx, head Head) error) (*File, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: not a file", ErrDamaged)
	}
	lost, err := verify(path)
	if err != nil {
		if !errors.Is(err, ErrLocked) && !errors.Is(err, ErrDamaged) && !isTransient(err) {
			err = fmt.Errorf("%w: %v", ErrDamaged, err)
		}
		return nil, err
	}
	f := &File{path: path, rolledBack: lost}
	err = guarded(func() error { return f.open(false) })
	if err != nil && isReadOnly(err) {
		f.readOnly = err
		err = guarded(func() error { return f.open(true) })
	}
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, ErrLocked
	case err != nil && isTransient(err):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	if err := guarded(func() error { return f.load(load) }); err != nil {
		// A damaged mapping is abandoned rather than closed, since closing would access it again.
		if !errors.Is(err, ErrDamaged) {
			err = errors.Join(err, f.db.Close())
		}
		return nil, err
	}
	return f, nil
}

// load reads and checks everything.
func (f *File) load(load func(*bbolt.Tx, Head) error) error {
	return f.db.View(func(tx *bbolt.Tx) error {
		for _, b := range buckets {
			if tx.Bucket(b) == nil {
				return fmt.Errorf("%w: no bucket %s", ErrDamaged, b)
			}
		}
		var version uint64
		var ok bool
		if f.head, version, ok = decodeHead(Meta(tx).Get(keyHead)); !ok {
			return fmt.Errorf("%w: the head is missing or wrong", ErrDamaged)
		}
		if version != format {
			return fmt.Errorf("%w: written in format %d, this version reads %d", ErrDamaged, version, format)
		}
		if err := load(tx, f.head); err != nil {
			return err
		}
		return f.requests.load(tx.Bucket(bucketRequests))
	})
}

// Initialize calls write, which writes what the newly opened store needs before it can be used. If
// the file can only be read, the store can be used, but accepts no changes.
func (f *File) Initialize(write func() error) error {
	err := write()
	if err != nil && !isReadOnly(err) {
		return errors.Join(err, f.db.Close())
	}
	if err != nil {
		f.readOnly = err
	}
	f.initialized = err == nil
	return nil
}

// Path returns the path of the file.
func (f *File) Path() string { return f.path }

// Head returns the head of the store.
func (f *File) Head() Head { return f.head }

// RolledBack reports whether a page was damaged when the file was opened, so that the last commit
// may be lost.
func (f *File) RolledBack() bool { return f.rolledBack }

// ReadOnly returns why nothing can be written for now; nil: writing is possible.
func (f *File) ReadOnly() error { return f.readOnly }

// Commit calls write in a transaction. It makes the changes durable, together with the head that
// write returns and with a reply, or makes no change.
func (f *File) Commit(r Reply, write func(*bbolt.Tx) (Head, error)) error {
	var head Head
	var stored *remembered
	err := f.Update(func(tx *bbolt.Tx) (err error) {
		if head, err = write(tx); err != nil {
			return err
		}
		if r.RequestID != "" {
			if stored, err = f.requests.put(tx.Bucket(bucketRequests), r); err != nil {
				return err
			}
		}
		return Meta(tx).Put(keyHead, head.encode())
	})
	if err != nil {
		return err
	}
	f.head = head
	f.requests.note(stored)
	return nil
}

// Update calls change in a transaction, which is made durable as a whole or not at all. After an
// error, it checks whether the store is unchanged; if not, it marks the store as broken, because
// memory and disk must not diverge.
func (f *File) Update(change func(*bbolt.Tx) error) error {
	if f.broken != nil {
		return f.broken
	}
	if err := f.needWritable(); err != nil {
		return err
	}
	err := guarded(func() error { return f.db.Update(change) })
	if err == nil {
		return nil
	}
	asBefore := guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			if h, _, ok := decodeHead(Meta(tx).Get(keyHead)); !ok || h != f.head {
				return errors.New("the store has changed on disk")
			}
			return nil
		})
	})
	if errors.Is(err, ErrDamaged) || asBefore != nil {
		f.broken = fmt.Errorf("the store failed and accepts no changes before a restart: %w", errors.Join(err, asBefore))
		return f.broken
	}
	return err
}

// Begin starts a transaction that reads the store as it is now. [Read] must end it.
func (f *File) Begin() (tx *bbolt.Tx, err error) {
	if f.broken != nil {
		return nil, f.broken
	}
	err = guarded(func() (err error) {
		tx, err = f.db.Begin(false)
		return err
	})
	return tx, err
}

// Read calls read, which reads in the transaction tx, and ends tx.
func Read(tx *bbolt.Tx, read func() error) error {
	defer func() { _ = tx.Rollback() }() // nothing to lose: it only reads
	return guarded(read)
}

// Answer returns the stored reply for a request id; nil if none is stored.
func (f *File) Answer(id string) (answer []byte, err error) {
	seq, ok := f.requests.find(id)
	if !ok {
		return nil, nil
	}
	err = guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			_, answer, err = decodeRequest(seq, tx.Bucket(bucketRequests).Get(record.NumberKey(seq)))
			return err
		})
	})
	return answer, err
}

// Close closes the file. Later changes are rejected.
func (f *File) Close() error {
	if f.broken != nil {
		return nil // do not access the mapped memory again
	}
	f.broken = errors.New("the store is closed")
	return f.db.Close()
}
