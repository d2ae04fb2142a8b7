// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDiskFull fills a small file system in a separate mount namespace: changes for which there is
// no room are rejected and change nothing, existing objects can still be read, and changes succeed
// again once there is room.
func TestDiskFull(t *testing.T) {
	if os.Getenv("LOXILIGHT_TEST_FULL") == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs CAP_SYS_ADMIN for a file system of its own")
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestDiskFull$", "-test.v")
		cmd.Env = append(os.Environ(), "LOXILIGHT_TEST_FULL="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestDiskFull") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir := os.Getenv("LOXILIGHT_TEST_FULL")
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m")); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(filepath.Join(dir, "state"))
	s, _, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fillUp := func() *Transaction {
		t.Helper()
		for turn := range 10000 {
			var put []*Object
			for i := range 50 {
				put = append(put, service(t, fmt.Sprintf("%s-%d-%d", strings.Repeat("n", 200), s.Snapshot().Revision, i), fmt.Sprintf("10.%d.%d.%d:80 1", s.Snapshot().Revision%256, turn%256, i)))
			}
			tr := &Transaction{Put: put}
			if _, err := s.Commit(tr); err != nil {
				return tr
			}
		}
		t.Fatal("the file system was never full")
		return nil
	}
	first := fillUp()
	wantRefusal(t, s, first, Unavailable, "", "", "no space left")
	count := s.Snapshot().Len()
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	commit(t, s, first)
	wantRefusal(t, s, fillUp(), Unavailable, "", "", "no space left")
	before := dump(s.Snapshot())
	s, report := reopen(t, s, cfg)
	closed(t, s)
	if after := dump(s.Snapshot()); after != before || report.Damage != nil || report.RolledBack || s.Snapshot().Len() <= count {
		t.Errorf("after the restart there are %d objects, %+v; want %d lines", s.Snapshot().Len(), report, strings.Count(before, "\n"))
	}
}
