// SPDX-License-Identifier: Apache-2.0

// Package sysctl reads the sysctls of a network namespace again and again. It changes none.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Files are open sysctls. They belong to the network namespace in which they were opened, whatever
// thread reads them, and do not keep that namespace alive. So reading them takes one system call each,
// instead of a new thread that enters the namespace. Files are not safe for concurrent use.
type Files struct {
	names   []string
	fds     []int
	missing bool
}

// Open opens sysctls of the thread's network namespace, such as net/ipv4/ip_forward. It leaves out those
// that do not exist.
func Open(names ...string) (*Files, error) {
	f := &Files{}
	for _, name := range names {
		fd, err := unix.Open(filepath.Join("/proc/sys", name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) {
			f.missing = true
			continue
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("open sysctl %s: %w", name, err)
		}
		f.names, f.fds = append(f.names, name), append(f.fds, fd)
	}
	return f, nil
}

// Complete reports whether all sysctls existed when they were opened.
func (f *Files) Complete() bool { return !f.missing }

// Values returns the values of the sysctls, by name. An error that wraps [fs.ErrNotExist] means that the
// namespace, or a device, no longer exists.
func (f *Files) Values() (map[string]string, error) {
	values := make(map[string]string, len(f.fds))
	var b [64]byte // longer than any number
	for i, fd := range f.fds {
		n, err := unix.Pread(fd, b[:], 0)
		if err != nil {
			return nil, fmt.Errorf("read sysctl %s: %w", f.names[i], err)
		}
		values[f.names[i]] = strings.TrimSpace(string(b[:n]))
	}
	return values, nil
}

// Close closes the files; f may be nil.
func (f *Files) Close() {
	if f == nil {
		return
	}
	for _, fd := range f.fds {
		_ = unix.Close(fd) // open for reading only
	}
	f.fds, f.names = nil, nil
}
