// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// mountinfo becomes readable after each change to the mounts of the process.
const mountinfo = "/proc/self/mountinfo"

// WatchMounts returns a channel, with room for one, that receives after changes to the mounts of the
// process until done is closed. Mounts and unmounts that propagate from other mount namespaces count.
func WatchMounts(done <-chan struct{}) (<-chan struct{}, error) {
	fd, err := unix.Open(mountinfo, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", mountinfo, err)
	}
	file := os.NewFile(uintptr(fd), mountinfo)
	raw, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{}) // fails if changes cannot be waited for
	}
	if err != nil {
		_ = file.Close() // it was only read
		return nil, fmt.Errorf("watch %s: %w", mountinfo, err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		<-done
		_ = file.Close() // it was only read
	}()
	go func() {
		// It ends with an error when the file is closed.
		_ = raw.Read(func(uintptr) (stop bool) {
			select {
			case changed <- struct{}{}:
			default: // a change is already reported
			}
			return false
		})
	}()
	return changed, nil
}
