// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// neededFiles is how many file descriptors must be free for a start: a takeover uses some 250, and
// a large table of connections, each device and each client of the channel need further ones.
const neededFiles = 512

// CheckFiles returns an error that wraps [unix.EMFILE] if fewer than 512 file descriptors are free.
// Without this check, a shortage looks like a kernel without some feature: the library that loads
// programs takes any error of a probe for that.
func CheckFiles() error {
	open := make([]int, 0, neededFiles)
	defer func() {
		for _, fd := range open {
			_ = unix.Close(fd) // nothing was written
		}
	}()
	for range neededFiles {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%d file descriptors are free, and %d are needed: raise the limit (LimitNOFILE= of the unit, ulimit -n): %w",
				len(open), neededFiles, err)
		}
		open = append(open, fd)
	}
	return nil
}
