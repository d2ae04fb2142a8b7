// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// reading returns the content of a file, as [os.ReadFile] does.
type reading func(path string) ([]byte, error)

// files are open files of /proc, by path. They belong to the network namespace in which they were opened,
// and are read from their beginning each time: one or two system calls instead of nine.
type files map[string]int

// read is a [reading]. A file that cannot be read any more, because a module was unloaded, is opened again.
func (f files) read(path string) ([]byte, error) {
	fd, open := f[path]
	if !open {
		var err error
		if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		f[path] = fd
	}
	content, err := readAll(fd)
	if err == nil {
		return content, nil
	}
	unix.Close(fd) // it was open for reading only
	delete(f, path)
	if open {
		return f.read(path)
	}
	return nil, &fs.PathError{Op: "read", Path: path, Err: err}
}

func (f files) close() {
	for _, fd := range f {
		unix.Close(fd) // they were open for reading only
	}
	clear(f)
}

func readAll(fd int) (content []byte, err error) {
	var b [1 << 12]byte
	for {
		n, err := unix.Pread(fd, b[:], int64(len(content)))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return content, nil
		default:
			content = append(content, b[:n]...)
		}
	}
}
