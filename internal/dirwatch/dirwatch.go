// SPDX-License-Identifier: Apache-2.0

// Package dirwatch reports that entries of directories were created, deleted or renamed. It does not
// report which.
package dirwatch

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const events = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// Watcher watches directories. Its methods are safe for concurrent use.
type Watcher struct {
	file    *os.File // of inotify(7)
	changed chan struct{}
}

// New returns a Watcher that watches nothing yet.
func New() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &Watcher{file: os.NewFile(uintptr(fd), "inotify"), changed: make(chan struct{}, 1)}
	go w.read()
	return w, nil
}

// Changed returns a channel, with room for one, that receives after changes.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Add watches a directory, unless it is watched already. The watch ends when the directory is deleted
// or its file system is unmounted, which is reported as a change.
func (w *Watcher) Add(dir string) error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	failed := raw.Control(func(fd uintptr) { _, err = unix.InotifyAddWatch(int(fd), dir, events) })
	if failed != nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	return nil
}

// Close ends the watches.
func (w *Watcher) Close() { _ = w.file.Close() } // it was only read

func (w *Watcher) read() {
	for b := make([]byte, 1<<12); ; {
		if _, err := w.file.Read(b); err != nil {
			return // closed
		}
		select {
		case w.changed <- struct{}{}:
		default: // a change is already reported
		}
	}
}
