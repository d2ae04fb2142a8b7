// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// TestPinsRestored deletes every pin under traffic. Health must be degraded until the daemon
// has restored all of them, and a kill -9 after that loses no packet and no connection.
func TestPinsRestored(t *testing.T) {
	for _, attach := range []string{"tcx", "tc"} {
		t.Run(attach, func(t *testing.T) { restorePins(t, attach) })
	}
}

func restorePins(t *testing.T, attach string) {
	requireAttach(t, attach)
	s, fronts := balanced(t, attach)
	var traffic []*testtraffic.Traffic
	for _, front := range fronts {
		traffic = append(traffic, testtraffic.Start(t, s.client, front, testtraffic.Load{Flows: 8, Packets: 1000, Connections: 10, Lasting: 8}))
	}
	want := s.pins()
	for _, delete := range []struct {
		what string
		do   func()
	}{
		{"files", s.deletePins},
		{"the folder", func() { testnet.RemovePins(t, s.PinDir) }},
	} {
		before := s.Repairs()
		delete.do()
		begin := time.Now()
		testnet.Eventually(t, patience, "pins are restored after the deletion of "+delete.what, func() bool {
			missing := len(without(want, s.existingPins())) > 0
			status, err := s.Client.Status(t.Context())
			if err != nil {
				return false
			}
			// The status is read after the check of the pins, so it can only be newer.
			if missing && !t.Failed() && status.Health.State == "ok" && len(without(want, s.existingPins())) > 0 {
				t.Errorf("%s: health is ok while pins are missing", delete.what)
			}
			return !missing
		})
		t.Logf("%s: restored after %s, %d repairs", delete.what, time.Since(begin).Round(time.Millisecond), s.Repairs()-before)
		if s.Repairs() == before {
			t.Errorf("%s: no repair was counted", delete.what)
		}
	}
	s.unmountPins(want)
	s.healthy()
	if got := s.pins(); !slices.Equal(got, want) {
		t.Errorf("too much is pinned: %v; too little: %v", without(got, want), without(want, got))
	}
	s.Kill()
	s.Start()
	s.ready()
	for _, tr := range traffic {
		tr.ExpectUnharmed(t)
	}
}

// TestSlowPathGone: while the daemon is dead, the programs open new connections. If another program
// deletes the pins of the slow path then, new connections are dropped, since no rule has allowed
// them; established connections and ARP continue; and a start restores everything.
func TestSlowPathGone(t *testing.T) {
	for _, attach := range []string{"tcx", "tc"} {
		t.Run(attach, func(t *testing.T) {
			requireAttach(t, attach)
			s, fronts := balanced(t, attach)
			s.ObjectFile("60-rules.yaml", rule("all", 1, "allow", "forward, input, output", ""))
			s.reload()
			want := s.pins()
			traffic := testtraffic.Start(t, s.client, fronts[0], testtraffic.Load{Flows: 4, Packets: 1000, Lasting: 4})
			time.Sleep(time.Second) // the slow path asks the rules again about packets of the tick of the reload
			s.Release()
			s.Kill()
			for _, front := range fronts {
				if _, err := s.quick(front); err != nil {
					t.Errorf("%s, while the daemon is dead: %v", front, err)
				}
			}
			slow, err := filepath.Glob(filepath.Join(s.PinDir, "layout-*", "ports", "*", "*", "slow_*"))
			if err != nil || len(slow) == 0 {
				t.Fatalf("pins of the slow path: %q, %v", slow, err)
			}
			for _, path := range slow {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			for _, front := range fronts { // the kernel frees the array a little later
				testnet.Eventually(t, patience, "no new connection to "+front, func() bool {
					_, err := s.quick(front)
					return err != nil
				})
			}
			s.Start()
			s.ready()
			for _, front := range fronts {
				if _, err := s.quick(front); err != nil {
					t.Errorf("%s, after the start: %v", front, err)
				}
			}
			if n := s.Counters("", "").Drops["no_slow_path"]; n < 2 {
				t.Errorf("%d drops with reason no_slow_path, want one for each connection", n)
			}
			if got := s.pins(); len(got) != len(want) {
				t.Errorf("pins before %q, after the start %q", want, got)
			}
			traffic.ExpectUnharmed(t)
		})
	}
}

// unmountPins unmounts the BPF file system lazily (the daemon has it open), which health must
// report, and mounts it again: then the pins are restored.
func (s *site) unmountPins(want []string) {
	s.t.Helper()
	at := filepath.Dir(s.PinDir)
	if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
		s.t.Fatal(err)
	}
	testnet.Eventually(s.t, patience, "health names the command", func() bool {
		status, err := s.Client.Status(s.t.Context())
		return err == nil && slices.ContainsFunc(status.Health.Messages, func(m string) bool { return strings.Contains(m, "mount -t bpf") })
	})
	if err := unix.Mount("bpf", at, "bpf", 0, ""); err != nil {
		s.t.Fatal(err)
	}
	testnet.Eventually(s.t, patience, "pins are restored on the new file system", func() bool { return len(without(want, s.existingPins())) == 0 })
}

// deletePins deletes all pins, and leaves their directories.
func (s *site) deletePins() {
	s.t.Helper()
	err := filepath.WalkDir(s.PinDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Remove(path)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// existingPins is like pins, for a directory that may not exist.
func (s *site) existingPins() (paths []string) {
	_ = filepath.WalkDir(s.PinDir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			paths = append(paths, strings.TrimPrefix(path, s.PinDir))
		}
		return nil
	})
	return paths
}

// healthy waits until the daemon reports no problem.
func (s *site) healthy() {
	s.t.Helper()
	testnet.Eventually(s.t, patience, "health is ok", func() bool {
		status, err := s.Client.Status(s.t.Context())
		return err == nil && status.Health.State == "ok"
	})
}
