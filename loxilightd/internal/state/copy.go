// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// copySuffix is the suffix of the store's copy. The copy is complete and at most a few minutes
// old; a damaged store is recreated from it.
const copySuffix = ".copy"

// copyEvery is the minimum interval between two copies of a changing store.
const copyEvery = time.Minute

// KeepCopy keeps a copy of the store in the same directory until ctx ends. It calls failed only
// once for a series of failures.
func (s *Store) KeepCopy(ctx context.Context, failed func(error)) {
	t := time.NewTicker(copyEvery)
	defer t.Stop()
	reported := false
	for done := false; !done; {
		select {
		case <-t.C:
		case <-ctx.Done():
			done = true
		}
		err := s.Copy()
		if err != nil && !reported {
			failed(err)
		}
		reported = err != nil
	}
}

// Copy copies the store if it has changed since the last copy. Commits continue in the meantime.
func (s *Store) Copy() error {
	s.writer.Lock()
	revision := s.Snapshot().Revision
	if s.copied == revision {
		s.writer.Unlock()
		return nil
	}
	r, tx, err := s.beginRead()
	s.writer.Unlock()
	if err != nil {
		return err
	}
	path := s.path + copySuffix
	err = r.run(tx, func(*historyReader) error { return writeCopy(path+".new", tx) })
	if err == nil {
		_, err = verify(path + ".new")
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		_ = os.Remove(path + ".new") // unusable
		return fmt.Errorf("copy the store to %s: %w", path, err)
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	s.copied = revision
	return nil
}

// writeCopy writes the store as tx sees it to a new file and makes the file durable. It leaves as
// much free space on the file system as the copy occupies, so that further changes are possible.
func writeCopy(path string, tx *bbolt.Tx) error {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; free < 2*tx.Size()+little {
		return fmt.Errorf("%d KiB are free, and the store has %d KiB: %w", free>>10, tx.Size()>>10, unix.ENOSPC)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = tx.WriteTo(f); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// recreate replaces a damaged or missing store with its copy, or with an empty store if there is no
// usable copy.
func recreate(path string, damage *Damage, decode func(string, []byte) (Value, error)) (*disk, *content, error) {
	d, c, err := fromCopy(path, damage, decode)
	if err == nil {
		return d, c, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		damage.Cause += fmt.Sprintf("; its copy could not be used: %v", err)
		_ = os.Remove(path) // the duplicate of the copy; the copy itself stays
	}
	damage.Restored = 0
	if err := create(path, freshRevision(damage.At), damage); err != nil {
		return nil, nil, err
	}
	return openDisk(path, decode)
}

// fromCopy creates a store from its copy and records the damage in it.
func fromCopy(path string, damage *Damage, decode func(string, []byte) (Value, error)) (*disk, *content, error) {
	if lost, err := verify(path + copySuffix); err != nil || lost {
		return nil, nil, errors.Join(err, lostMeta(lost))
	}
	if err := duplicate(path+".new", path+copySuffix); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(os.Rename(path+".new", path), syncDir(filepath.Dir(path))); err != nil {
		return nil, nil, err
	}
	d, c, err := openDisk(path, decode)
	if err != nil {
		return nil, nil, err
	}
	damage.Restored = c.revision
	c.damage = damage
	if err := d.noteDamage(c); err != nil {
		return nil, nil, errors.Join(err, d.close())
	}
	return d, c, nil
}

func lostMeta(lost bool) error {
	if lost {
		return bad("one of its meta pages is damaged")
	}
	return nil
}

// noteDamage durably records that the store is a copy of a damaged store, under a revision that no
// client has seen.
func (d *disk) noteDamage(c *content) error {
	text, err := json.Marshal(c.damage)
	if err != nil {
		return err
	}
	err = d.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyDamage, text) })
	if err != nil {
		return err
	}
	rolledBack := c.rolledBack
	c.rolledBack = true
	err = d.finishOpen(c)
	c.rolledBack = rolledBack
	return err
}

// duplicate copies a file and makes the new file durable.
func duplicate(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() // it was only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}
