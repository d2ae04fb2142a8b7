// SPDX-License-Identifier: Apache-2.0

package channel

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRunning is returned if another daemon uses the run directory.
var ErrRunning = errors.New("already running")

// RunLock is the lock of a run directory. The kernel releases it when the process ends, however
// it ends.
type RunLock struct{ file *os.File }

// Lock creates the run directory if necessary and locks it. A daemon must do this first, before it
// uses sockets, state or the data plane: the error is [ErrRunning] if another daemon of the same
// instance is running.
func Lock(runDir, group string) (*RunLock, error) {
	if group == "" {
		group = "loxilight"
	}
	if err := makeRunDir(runDir, groupID(group)); err != nil {
		return nil, err
	}
	path := filepath.Join(runDir, "loxilightd.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, fmt.Errorf("lock of the run directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer func() { _ = f.Close() }() // it was only read
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("loxilightd is %w in %s%s: stop it first, or give this instance another runDir",
				ErrRunning, runDir, holder(f))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// The pid is a hint for users; only the lock counts.
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintf("%d\n", os.Getpid()))); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", path, err), f.Close())
	}
	return &RunLock{f}, nil
}

// Close releases the lock. The file stays: removing it would let two daemons lock two different
// files with the same name.
func (l *RunLock) Close() error { return l.file.Close() }

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func holder(f *os.File) string {
	b := make([]byte, 16)
	n, _ := f.ReadAt(b, 0) // io.EOF, since the file is shorter
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return " (pid " + pid + ")"
	}
	return ""
}

// makeRunDir creates dir with mode 0750 for group, or checks that only its owner can create files
// in an existing directory. It does not change a directory that does not look like one of ours.
func makeRunDir(dir string, group int) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	err := os.Mkdir(dir, 0o750)
	if err == nil {
		err = os.Chmod(dir, 0o750) // whatever the umask
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir() || !ok:
		return fmt.Errorf("run directory %s: not a directory", dir)
	case int(stat.Uid) != os.Geteuid() && stat.Uid != 0:
		return fmt.Errorf("run directory %s: belongs to user %d: give it to the daemon's user, or choose another runDir", dir, stat.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("run directory %s: others can write to it (mode %#o): chmod it to 0750, or choose another runDir", dir, info.Mode().Perm())
	}
	if group >= 0 && int(stat.Gid) != group && info.Mode().Perm() == 0o750 && int(stat.Uid) == os.Geteuid() {
		if err := os.Chown(dir, -1, group); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	return nil
}

// bind creates a listening socket at path with mode 0660 for group. The socket gets its mode before
// its name. bind replaces the socket of a killed daemon, but neither the socket of a running daemon
// nor a file of another type.
func bind(path string, group int) (*net.UnixListener, error) {
	if err := mayReplace(path); err != nil {
		return nil, err
	}
	fresh := path + ".new"
	if len(fresh) > 107 { // sun_path
		return nil, fmt.Errorf("socket %s: the path is longer than 103 bytes: choose a shorter runDir", path)
	}
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if group >= 0 {
		err = os.Chown(fresh, -1, group)
	}
	err = errors.Join(err, os.Chmod(fresh, 0o660))
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), l.Close(), os.Remove(fresh))
	}
	return l, nil
}

func mayReplace(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("socket %s: another file is at this path (%s): move it away, or choose another runDir", path, info.Mode().Type())
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("socket %s: another process listens there (%w): stop it first", path, ErrRunning)
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil // left behind by a killed daemon
	}
	return fmt.Errorf("socket %s: is it in use? %w", path, err)
}
