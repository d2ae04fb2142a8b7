// SPDX-License-Identifier: Apache-2.0

package security

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testnet"
)

// smallDisk mounts a file system of a few MiB as the daemon's state directory.
func (s *controlSite) smallDisk() {
	s.t.Helper()
	dir := s.StateDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=6m,mode=0700"); err != nil {
		s.t.Fatalf("mount %s: %v", dir, err)
	}
	s.t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			s.t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// diskObjects are a bridge, so that the network has state to store, and a group.
const diskObjects = `
kind: Bridge
name: br
spec: {device: brdisk, addresses: [198.51.100.1/24]}
---
kind: AddressGroup
name: kept
spec: {members: [192.0.2.0/24]}
`

func (s *controlSite) change(text string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := s.Client.Apply(ctx, api.ApplyParams{Objects: []api.Object{{Kind: "AddressGroup", Name: "change", Spec: []byte(text)}}})
	return err
}

// health returns the daemon's report of its health.
func (s *controlSite) health() string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	st, err := s.Client.Status(ctx)
	if err != nil {
		s.t.Fatalf("status: %v", err)
	}
	return st.Health.State + " " + strings.Join(st.Health.Messages, "; ")
}

// serves fails the test unless the daemon starts with the stored objects, rejects a change with a
// message that contains all words, and reports the reason in its health.
func (s *controlSite) serves(words ...string) {
	s.t.Helper()
	s.Start()
	if out := s.LLCLI("get", "AddressGroup", "kept", "-o", "yaml"); !strings.Contains(out, "192.0.2.0/24") {
		s.t.Errorf("what is stored: %s", out)
	}
	s.LLCLI("get", "Bridge", "br")
	err := s.change(`{"members":[` + numbered(`"10.%d.0.0/16"`, 3000) + "," + numbered(`"2001:db8:%x::/48"`, 500_000) + `]}`)
	if err == nil || !strings.Contains(err.Error(), "durable") {
		s.t.Errorf("a change: %v, want a refusal since it cannot be made durable", err)
	}
	health := s.health()
	for _, w := range append(words, "degraded", s.StateDir()) {
		if !strings.Contains(health, w) {
			s.t.Errorf("health: %s; want %q in it", health, w)
		}
	}
}

// TestR5FullDisk kills the daemon while its disk is full, and starts it again.
func TestR5FullDisk(t *testing.T) {
	s := newControlSite(t)
	s.smallDisk()
	s.Start()
	s.Apply(diskObjects)
	big := filepath.Join(s.StateDir(), "big")
	f, err := os.Create(big)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.serves("full")
	if err := os.Remove(big); err != nil {
		t.Fatal(err)
	}
	testnet.Eventually(t, patience, "changes are made again", func() bool { return s.change(`{"members":["203.0.113.0/24"]}`) == nil })
	if h := s.health(); strings.Contains(h, s.StateDir()) {
		t.Errorf("health with room again: %s", h)
	}
}

// TestR5ReadOnlyDisk starts the daemon on a read-only state directory.
func TestR5ReadOnlyDisk(t *testing.T) {
	s := newControlSite(t)
	s.smallDisk()
	s.Start()
	s.Apply(diskObjects)
	s.Kill()
	if err := unix.Mount("tmpfs", s.StateDir(), "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	s.serves("read-only")
	// The daemon has a mount namespace of its own.
	out, err := exec.Command("nsenter", "--target", strconv.Itoa(s.Process().PID()), "--mount", "mount", "-o", "remount,rw", s.StateDir()).CombinedOutput()
	if err != nil {
		t.Fatalf("remount: %v: %s", err, out)
	}
	if err := unix.Mount("tmpfs", s.StateDir(), "tmpfs", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.change(`{"members":["203.0.113.0/24"]}`); err != nil {
		t.Errorf("a change with the directory writable again: %v", err)
	}
	if h := s.health(); strings.Contains(h, s.StateDir()) {
		t.Errorf("health with the directory writable again: %s", h)
	}
	s.Stop()
	s.Start()
	s.LLCLI("get", "AddressGroup", "change")
}

// TestR5FileSize starts the daemon with a limit on the size of files that its store exceeds.
func TestR5FileSize(t *testing.T) {
	s := newControlSite(t)
	s.Start()
	s.Apply(diskObjects)
	s.Kill()
	s.limited("ulimit -f 8") // in blocks of 512 bytes
	s.Start()
	s.LLCLI("get", "AddressGroup", "kept")
	err := s.change(`{"members":[` + numbered(`"10.0.%d.0/24"`, 3000) + `]}`)
	t.Logf("a change: %v", err)
	if err != nil && !strings.Contains(s.health(), "degraded") {
		t.Errorf("health: %s", s.health())
	}
	s.LLCLI("get", "AddressGroup", "kept")
}

// TestR8TooFewFiles starts the daemon with so few file descriptors that it cannot take over the
// pins of an earlier run: a later start may succeed.
func TestR8TooFewFiles(t *testing.T) {
	s := newControlSite(t)
	s.Start()
	s.Kill()
	for _, limit := range []string{"ulimit -n 64", "ulimit -n 128", "ulimit -n 200", "ulimit -n 500"} {
		s.limited(limit)
		p := s.Launch()
		if code, err := p.Wait(patience); err != nil || code != 1 {
			t.Errorf("%s: exit code %d, %v, want 1", limit, code, err)
		}
		if out := p.Output(); !strings.Contains(out, "file descriptors are free") {
			t.Errorf("%s: the daemon does not say what is missing:\n%s", limit, out)
		}
	}
	s.limited("true")
	s.Start()
}

// TestR10DamagedStore damages the store of a stopped daemon: the copy beside it takes its place.
func TestR10DamagedStore(t *testing.T) {
	s := newControlSite(t)
	s.Start()
	s.Apply(diskObjects)
	s.Stop()
	path := filepath.Join(s.StateDir(), "state.db")
	if err := os.WriteFile(path, []byte("no store at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Start()
	if out := s.LLCLI("get", "AddressGroup", "kept", "-o", "yaml"); !strings.Contains(out, "192.0.2.0/24") {
		t.Errorf("what was stored: %s", out)
	}
	if h := s.health(); !strings.Contains(h, "copy") {
		t.Errorf("health: %s, want that a copy is used", h)
	}
	if err := s.change(`{"members":["203.0.113.0/24"]}`); err != nil {
		t.Errorf("a change: %v", err)
	}
}
