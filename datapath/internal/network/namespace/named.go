// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	// dir is where ip netns keeps the names of namespaces.
	dir = "/run/netns"
	// nsfs is the file system type of namespaces.
	nsfs = 0x6e736673
)

// Find returns the ID of the namespace called name; false if none exists.
func Find(name string) (ID, bool) {
	path := filepath.Join(dir, name)
	var st unix.Stat_t
	var at unix.Statfs_t
	if unix.Statfs(path, &at) != nil || at.Type != nsfs || unix.Stat(path, &st) != nil {
		return ID{}, false
	}
	return ID{Dev: st.Dev, Ino: st.Ino}, true
}

// Create creates a namespace under the name that ip netns uses. It calls furnish on a thread in the
// namespace before the name appears.
func Create(name string, furnish func() error) error {
	path := filepath.Join(dir, name)
	err := prepareDir()
	if err == nil {
		err = touch(path)
	}
	if err == nil {
		err = onNewNamespace(func() error {
			if err := furnish(); err != nil {
				return err
			}
			// Last, so that the namespace is complete when its name appears.
			return unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, "")
		})
	}
	return err
}

// Delete removes the name of a namespace. The kernel deletes the namespace when nothing uses it any
// more.
func Delete(name string) error {
	path := filepath.Join(dir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o444)
	if err != nil {
		return err
	}
	return f.Close()
}

// prepareDir creates the directory as ip netns does: mounts in it propagate to other mount
// namespaces, and so do unmounts.
func prepareDir() error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil { // as ip netns does: mount once
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	err = unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
}

// onNewNamespace runs f on a thread in a network namespace of its own, which vanishes when f
// returns unless f keeps a reference to it.
func onNewNamespace(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
