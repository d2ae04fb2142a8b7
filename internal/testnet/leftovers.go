// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const runDir = "/run"

// RemovePins removes pins and directories of pins. A running daemon may restore a pin while its
// directory is being removed; the removal then begins again.
func RemovePins(t T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		err := os.RemoveAll(path)
		for tries := 0; errors.Is(err, unix.ENOTEMPTY) && tries < 100; tries++ {
			err = os.RemoveAll(path)
		}
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// BPFFS mounts a BPF file system for this test alone and returns its path. When the test ends, its
// pins are removed, and programs that only these pins keep attached are detached.
func BPFFS(t T) string {
	t.Helper()
	RequireRoot(t)
	first.Do(func() { prepare(t) })
	dir := filepath.Join(runDir, UniqueName("bpf"))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatalf("BPF file system: %v", err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		os.Remove(dir)
		t.Fatalf("BPF file system on %s: %v", dir, err)
	}
	t.Cleanup(func() {
		if err := unmount(dir); err != nil {
			t.Logf("BPF file system on %s: %v", dir, err)
		}
	})
	return dir
}

func unmount(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
		return err
	}
	return os.Remove(dir)
}

// prepare runs before any namespace is made. The first ip netns command on a machine mounts the
// directory of namespace names onto itself; if that happened later, it would hide existing names,
// which then could not be removed.
func prepare(t T) {
	clearLeftovers(t)
	name := UniqueName("first")
	for _, verb := range []string{"add", "delete"} {
		if out, err := exec.Command("ip", "netns", verb, name).CombinedOutput(); err != nil {
			t.Fatalf("ip netns %s %s: %v: %s", verb, name, err, out)
		}
	}
}

// clearLeftovers removes the leftovers of test processes that have ended.
func clearLeftovers(t T) {
	for _, dir := range []string{netnsDir, runDir} {
		paths, err := filepath.Glob(filepath.Join(dir, namePrefix+"*"))
		if err != nil {
			t.Fatalf("leftovers: %v", err)
		}
		for _, path := range paths {
			if ownerLives(filepath.Base(path)) {
				continue
			}
			if dir == netnsDir {
				err = netns.DeleteNamed(filepath.Base(path))
			} else {
				err = unmount(path)
			}
			if err != nil {
				_ = os.Remove(path) // nothing was mounted on it
			}
		}
	}
}

// ownerLives reports whether the process whose id is in name is alive. It also returns true if name
// contains no process id.
func ownerLives(name string) bool {
	pid, _, _ := strings.Cut(strings.TrimPrefix(name, namePrefix), "-")
	n, err := strconv.Atoi(pid)
	return err != nil || unix.Kill(n, 0) != unix.ESRCH
}
