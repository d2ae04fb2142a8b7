// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// lacksRoom reports whether err means that a writable file cannot be written for now. The network
// need not wait until it can.
func lacksRoom(err error) bool {
	for _, lack := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EFBIG} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// openSame opens the file at path for appending if its contents equal text. It returns nil if the
// contents differ, or the file cannot be written.
func openSame(path string, text []byte) (*os.File, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.Equal(content, text) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil && lacksRoom(err) {
		return nil, nil
	}
	return f, err
}

// writeSynced writes text to a new file, syncs the file, and returns it open. After an error, the
// file may exist.
func writeSynced(path string, text []byte) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	return f, err
}
