// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// little is the amount of free space, in bytes, below which changes may fail.
const little = 1 << 20

// isReadOnly reports whether err means that the store can be read but not written now.
func isReadOnly(err error) bool {
	for _, lack := range []error{unix.EROFS, unix.EACCES, unix.EPERM, unix.ENOSPC, unix.EDQUOT, unix.EFBIG} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// open opens the file, which has already been verified.
func (d *disk) open(readOnly bool) (err error) {
	d.db, err = bbolt.Open(d.path, 0o600, &bbolt.Options{
		Timeout: time.Second, FreelistType: bbolt.FreelistMapType, InitialMmapSize: mapped, ReadOnly: readOnly,
	})
	if err == nil {
		d.db.AllocSize = growBy
	}
	return err
}

// needWritable reopens a read-only store for writing if that is possible now.
func (d *disk) needWritable() error {
	if d.readOnly == nil {
		return nil
	}
	refused := fmt.Errorf("%s could only be read when the daemon started (%w): repair or remount its file system, then try again", d.path, d.readOnly)
	if err := unix.Access(d.path, unix.W_OK); err != nil {
		return refused
	}
	if !d.initialized {
		return fmt.Errorf("%s could only be read when the daemon started (%w): restart the daemon", d.path, d.readOnly)
	}
	if !d.db.IsReadOnly() {
		d.readOnly = nil
		return nil
	}
	return guarded(func() error {
		if err := d.db.Close(); err != nil { // waits for readers of the history
			return err
		}
		err := d.open(false)
		if err == nil {
			d.readOnly = nil
			return nil
		}
		if again := d.open(true); again != nil {
			d.broken = fmt.Errorf("the store cannot be opened any more: %w", errors.Join(err, again))
		}
		return refused
	})
}

// noteFailure records why a change could not be made durable; nil means that it was made durable.
func (s *Store) noteFailure(err error) {
	if err == nil {
		s.failure.Store(nil)
		return
	}
	s.failure.Store(&err)
}

// Problem returns why changes are, or soon will be, rejected, or an empty string if there is no
// problem.
func (s *Store) Problem() string {
	dir := filepath.Dir(s.path)
	failed := s.failure.Load()
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	free := st.Bavail * uint64(st.Bsize)
	switch {
	case err == nil && st.Flags&unix.ST_RDONLY != 0:
		return fmt.Sprintf("the file system of the state directory %s is read-only: changes are refused, the stored state stays in force; mount it read-write", dir)
	case err == nil && free < little:
		return fmt.Sprintf("the file system of the state directory %s is full (%d KiB free): changes that need room are refused, the stored state stays in force; free some space", dir, free>>10)
	case failed != nil && errors.Is(*failed, unix.EIO):
		return fmt.Sprintf("the state directory %s has I/O errors, and the last change was refused: the stored state stays in force; see dmesg for the disk, then systemctl restart loxilightd: %v", dir, *failed)
	case failed != nil && (err != nil || !errors.Is(*failed, unix.ENOSPC) && !errors.Is(*failed, unix.EROFS)):
		return fmt.Sprintf("the last change could not be made durable, and was refused: %v", *failed)
	}
	return ""
}
