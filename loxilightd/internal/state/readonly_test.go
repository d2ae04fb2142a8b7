// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/loxilightd/internal/state/disk"
)

// smallDisk mounts a file system of 2 MiB, and returns its path and a function that remounts it.
func smallDisk(t *testing.T) (dir string, remount func(flags uintptr)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_ADMIN to mount")
	}
	dir = t.TempDir()
	mount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "size=2m"); err != nil {
			t.Fatal(err)
		}
	}
	mount(0)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func(flags uintptr) { t.Helper(); mount(unix.MS_REMOUNT | flags) }
}

// TestReadOnlyStore opens a store on a read-only file system: the store can be read, rejects
// changes, and accepts them again once the file system is writable.
func TestReadOnlyStore(t *testing.T) {
	dir, remount := smallDisk(t)
	s, _, err := Open(testConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	first := commit(t, s, &Transaction{Put: []*Object{service(t, "a", "198.51.100.1:80 1")}})
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "198.51.100.1:80 2")}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	remount(unix.MS_RDONLY)
	s, _ = open(t, testConfig(dir))
	if s.Snapshot().Len() != 1 || len(s.History()) != 2 {
		t.Errorf("%d objects, %d revisions", s.Snapshot().Len(), len(s.History()))
	}
	if o, err := s.At(first.Revision, Key{KindService, "a"}); err != nil || o == nil {
		t.Errorf("the history: %v, %v", o, err)
	}
	put := &Transaction{Put: []*Object{service(t, "b", "198.51.100.2:80 1")}}
	_, err = s.Commit(put)
	if r, _ := errors.AsType[*Refusal](err); r == nil || r.Reason != Unavailable || !strings.Contains(r.Message, "read-only file system") {
		t.Errorf("%v, want a refusal that says why", err)
	}
	if p := s.Problem(); !strings.Contains(p, "read-only") {
		t.Errorf("problem %q", p)
	}
	remount(0)
	commit(t, s, put)
	if p := s.Problem(); p != "" || s.Snapshot().Len() != 2 {
		t.Errorf("problem %q, %d objects", p, s.Snapshot().Len())
	}
}

// TestFullDisk opens a store on a full file system.
func TestFullDisk(t *testing.T) {
	dir, _ := smallDisk(t)
	s, _, err := Open(testConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, &Transaction{Put: []*Object{service(t, "a", "198.51.100.1:80 1")}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	f, err := os.Create(big)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, testConfig(dir))
	put := &Transaction{Put: []*Object{service(t, "b", "198.51.100.2:80 4000")}}
	put.Put[0].Labels = map[string]string{"long": strings.Repeat("x", 200<<10)}
	if _, err = s.Commit(put); !isRefusal(err, Unavailable) {
		t.Errorf("%v, want a refusal", err)
	}
	if p := s.Problem(); !strings.Contains(p, "full") {
		t.Errorf("problem %q", p)
	}
	if err := s.Copy(); err == nil {
		t.Error("a copy was made without room")
	}
	if err := os.Remove(big); err != nil {
		t.Fatal(err)
	}
	commit(t, s, put)
	if p := s.Problem(); p != "" || s.Snapshot().Len() != 2 {
		t.Errorf("problem %q, %d objects", p, s.Snapshot().Len())
	}
}

// TestCopyTakesThePlace damages or removes a store that has a copy.
func TestCopyTakesThePlace(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"garbage":   func(path string) error { return os.WriteFile(path, []byte("no store"), 0o600) },
		"truncated": func(path string) error { return os.Truncate(path, 9000) },
		"gone":      os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			cfg.InUse = true
			path := filepath.Join(cfg.Dir, fileName)
			if err := create(path, 0, nil); err != nil {
				t.Fatal(err)
			}
			s, _, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			copied := commit(t, s, &Transaction{Put: []*Object{service(t, "a", "198.51.100.1:80 1")}})
			if err := s.Copy(); err != nil {
				t.Fatal(err)
			}
			last := commit(t, s, &Transaction{Put: []*Object{service(t, "b", "198.51.100.2:80 1")}})
			if err := errors.Join(s.Close(), harm(path)); err != nil {
				t.Fatal(err)
			}
			s, report := open(t, cfg)
			if report.Damage == nil || report.Damage.Restored != copied.Revision {
				t.Errorf("report %+v", report.Damage)
			}
			now := s.Snapshot()
			if now.Len() != 1 || now.Revision <= last.Revision {
				t.Errorf("%d objects at revision %d, want 1 after %d", now.Len(), now.Revision, last.Revision)
			}
			commit(t, s, &Transaction{Put: []*Object{service(t, "c", "198.51.100.3:80 1")}})
		})
	}
}

// TestDamagedCopy: neither the store nor its copy is usable, so the store starts empty.
func TestDamagedCopy(t *testing.T) {
	cfg := testConfig(t.TempDir())
	path := filepath.Join(cfg.Dir, fileName)
	for _, file := range []string{path, disk.CopyPath(path)} {
		if err := os.WriteFile(file, []byte("no store"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, report := open(t, cfg)
	if report.Damage == nil || report.Damage.Restored != 0 || !strings.Contains(report.Damage.Cause, "copy") || s.Snapshot().Len() != 0 {
		t.Errorf("report %+v, %d objects", report.Damage, s.Snapshot().Len())
	}
}
