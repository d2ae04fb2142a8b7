// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatchMounts: a mount and an unmount are reported.
func TestWatchMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_ADMIN")
	}
	done := make(chan struct{})
	defer close(done)
	changed, err := WatchMounts(done)
	if err != nil {
		t.Fatal(err)
	}
	<-changed // the state at first
	dir := t.TempDir()
	wait := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(5 * time.Second):
			t.Errorf("the %s was not reported", what)
		}
	}
	if err := unix.Mount("loxilight-test", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	wait("mount")
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	wait("unmount")
}
