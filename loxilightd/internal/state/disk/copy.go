// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// copySuffix is the suffix of the store's copy. The copy is complete and at most a few minutes
// old; a damaged store is recreated from it.
const copySuffix = ".copy"

// CopyPath returns the path of the copy of the file at path.
func CopyPath(path string) string { return path + copySuffix }

// ReplaceCopy replaces the copy of the file at path. It calls write with the path at which the new
// copy must be written, and keeps the old copy if that fails or if the new copy is damaged.
func ReplaceCopy(path string, write func(path string) error) error {
	path = CopyPath(path)
	err := write(path + ".new")
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
	return nil
}

// WriteFile writes the store as tx sees it to a new file and makes the file durable. It leaves as
// much free space on the file system as the new file occupies, so that further changes are
// possible.
func WriteFile(path string, tx *bbolt.Tx) error {
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

// Restore replaces the file at path with a duplicate of its copy. The error wraps [os.ErrNotExist]
// if there is no copy.
func Restore(path string) error {
	if lost, err := verify(CopyPath(path)); err != nil || lost {
		return errors.Join(err, lostMeta(lost))
	}
	if err := duplicate(path+".new", CopyPath(path)); err != nil {
		return err
	}
	return errors.Join(os.Rename(path+".new", path), syncDir(filepath.Dir(path)))
}

func lostMeta(lost bool) error {
	if lost {
		return bad("one of its meta pages is damaged")
	}
	return nil
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
