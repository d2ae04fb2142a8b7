// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestIOErrors makes the disk fail under a store: the store serves reads, rejects changes and
// reports why, and opening it again does not mistake the failure for damage. After the disk
// recovers, all acknowledged changes exist.
func TestIOErrors(t *testing.T) {
	dir := t.TempDir()
	disk := testnet.NewDisk(t, dir)
	s, _, err := Open(testConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "198.51.100.1:80 1")}})
	disk.Fail()
	put := &Transaction{Put: []*Object{service(t, "b", "198.51.100.2:80 1")}}
	_, err = s.Commit(put)
	if r, _ := errors.AsType[*Refusal](err); r == nil || r.Reason != Unavailable || !strings.Contains(r.Message, "input/output error") {
		t.Errorf("%v, want a refusal that says why", err)
	}
	if p := s.Problem(); !strings.Contains(p, dir) || !strings.Contains(p, "I/O errors") || !strings.Contains(p, "dmesg") {
		t.Errorf("problem %q", p)
	}
	if s.Snapshot().Len() != 1 {
		t.Errorf("%d objects, want 1", s.Snapshot().Len())
	}
	if err := s.Close(); err != nil {
		t.Logf("close: %v", err)
	}
	if s, report, err := Open(testConfig(dir)); err == nil {
		t.Errorf("opened on a disk that fails: %+v", report)
		_ = s.Close()
	} else if !errors.Is(err, unix.EIO) {
		t.Errorf("open: %v, want EIO", err)
	}
	disk.Repair()
	s, report, err := Open(testConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	if report.Damage != nil || s.Snapshot().Len() != 1 {
		t.Errorf("with the disk again: %d objects, report %+v", s.Snapshot().Len(), report)
	}
	commit(t, s, put)
	if p := s.Problem(); p != "" {
		t.Errorf("problem %q", p)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
