// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/bbolt"

	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
)

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
	_, tx, err := s.beginRead()
	s.writer.Unlock()
	if err != nil {
		return err
	}
	err = disk.ReplaceCopy(s.path, func(path string) error {
		return disk.Read(tx, func() error { return disk.WriteFile(path, tx) })
	})
	if err != nil {
		return err
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	s.copied = revision
	return nil
}

// recreate replaces a damaged or missing store with its copy, or with an empty store if there is no
// usable copy.
func recreate(path string, damage *Damage, decode func(string, []byte) (Value, error)) (*disk.File, *content, error) {
	f, c, err := fromCopy(path, damage, decode)
	if err == nil {
		return f, c, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		damage.Cause += fmt.Sprintf("; its copy could not be used: %v", err)
		_ = os.Remove(path) // the duplicate of the copy; the copy itself stays
	}
	damage.Restored = 0
	if err := create(path, freshRevision(damage.At), damage); err != nil {
		return nil, nil, err
	}
	return openFile(path, decode)
}

// fromCopy creates a store from its copy and records the damage in it.
func fromCopy(path string, damage *Damage, decode func(string, []byte) (Value, error)) (*disk.File, *content, error) {
	if err := disk.Restore(path); err != nil {
		return nil, nil, err
	}
	f, c, err := openFile(path, decode)
	if err != nil {
		return nil, nil, err
	}
	damage.Restored = c.Revision
	c.damage = damage
	if err := c.noteDamage(f); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, c, nil
}

// noteDamage durably records that the store is a copy of a damaged store, under a revision that no
// client has seen.
func (c *content) noteDamage(f *disk.File) error {
	text, err := json.Marshal(c.damage)
	if err != nil {
		return err
	}
	err = f.Update(func(tx *bbolt.Tx) error { return disk.Meta(tx).Put(keyDamage, text) })
	if err != nil {
		return err
	}
	rolledBack := c.rolledBack
	c.rolledBack = true
	err = c.finishOpen(f)
	c.rolledBack = rolledBack
	return err
}
