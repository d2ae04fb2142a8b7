// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// mapped is the address space reserved for the store, in bytes. A larger file must be mapped again,
// and remapping waits for all readers of the history.
const mapped = 1 << 30

// growBy is the minimum by which the file grows, in bytes.
const growBy = 32 << 10

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

// open opens the file, which has already been verified.
func (f *File) open(readOnly bool) (err error) {
	f.db, err = bbolt.Open(f.path, 0o600, &bbolt.Options{
		Timeout: time.Second, FreelistType: bbolt.FreelistMapType, InitialMmapSize: mapped, ReadOnly: readOnly,
	})
	if err == nil {
		f.db.AllocSize = growBy
	}
	return err
}

// needWritable reopens a read-only store for writing if that is possible now.
func (f *File) needWritable() error {
	if f.readOnly == nil {
		return nil
	}
	refused := fmt.Errorf("%s could only be read when the daemon started (%w): repair or remount its file system, then try again", f.path, f.readOnly)
	if err := unix.Access(f.path, unix.W_OK); err != nil {
		return refused
	}
	if !f.initialized {
		return fmt.Errorf("%s could only be read when the daemon started (%w): restart the daemon", f.path, f.readOnly)
	}
	if !f.db.IsReadOnly() {
		f.readOnly = nil
		return nil
	}
	return guarded(func() error {
		if err := f.db.Close(); err != nil { // waits for readers of the history
			return err
		}
		err := f.open(false)
		if err == nil {
			f.readOnly = nil
			return nil
		}
		if again := f.open(true); again != nil {
			f.broken = fmt.Errorf("the store can no longer be opened: %w", errors.Join(err, again))
		}
		return refused
	})
}

// Problem returns why changes to a store in the directory dir are, or soon will be, rejected; empty:
// no problem. failed is why the last change could not be made durable; nil: it was made durable.
func Problem(dir string, failed error) string {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	free := st.Bavail * uint64(st.Bsize)
	switch {
	case err == nil && st.Flags&unix.ST_RDONLY != 0:
		return fmt.Sprintf("the file system of the state directory %s is read-only: changes are refused, the stored state stays in force; mount it read-write", dir)
	case err == nil && free < little:
		return fmt.Sprintf("the file system of the state directory %s is full (%d KiB free): changes that need room are refused, the stored state stays in force; free some space", dir, free>>10)
	case failed != nil && errors.Is(failed, unix.EIO):
		return fmt.Sprintf("the state directory %s has I/O errors, and the last change was refused: the stored state stays in force; see dmesg for the disk, then systemctl restart loxilightd: %v", dir, failed)
	case failed != nil && (err != nil || !errors.Is(failed, unix.ENOSPC) && !errors.Is(failed, unix.EROFS)):
		return fmt.Sprintf("the last change could not be made durable, and was refused: %v", failed)
	}
	return ""
}
