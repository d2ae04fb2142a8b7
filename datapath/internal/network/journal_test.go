// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/route"
)

func TestVLANsOfAPort(t *testing.T) {
	const pvid, untagged = 2, 4
	got := vlansOf(&datapath.BridgePort{
		PVID: 7, VLANs: []datapath.VLANRange{{First: 10, Last: 12}}, Untagged: []datapath.VLANRange{{First: 7, Last: 7}, {First: 12, Last: 12}},
	})
	want := map[uint16]uint16{7: pvid | untagged, 10: 0, 11: 0, 12: untagged}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for v, flags := range want {
		if is, ok := got[v]; !ok || is != flags {
			t.Errorf("VLAN %d: got %d %v, want %d", v, is, ok, flags)
		}
	}
}

func TestJournalSurvivesWhatIsCutOff(t *testing.T) {
	dir := t.TempDir()
	j, err := openJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	note := func(l line) {
		t.Helper()
		if err := j.note(l); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5000 {
		note(line{Kind: kindRoute, Name: "r", Route: &routeRecord{Key: route.Key{Metric: uint32(i)}}})
	}
	note(line{Kind: kindBridge, Name: "a", Bridge: &bridgeRecord{Device: "br0", Addresses: []string{"10.1.0.1/24"}}})
	note(line{Kind: kindBridge, Name: "b", Bridge: &bridgeRecord{Device: "br1"}})
	note(line{Kind: kindBridge, Name: "b"})
	if j.lines > 1100 {
		t.Errorf("%d lines for three records", j.lines)
	}
	if _, err := j.file.WriteString(`{"kind":"bridge","na`); err != nil {
		t.Fatal(err)
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if j, err = openJournal(dir); err != nil {
			t.Fatal(err)
		}
		if r := j.bridge("a"); r == nil || r.Device != "br0" || !slices.Equal(r.Addresses, []string{"10.1.0.1/24"}) || len(j.current.Bridges) != 1 {
			t.Errorf("bridges: %v", j.current.Bridges)
		}
		if r := j.route("r"); r == nil || r.Key.Metric != 4999 {
			t.Errorf("route: %v", r)
		}
		if err := j.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestJournalWithoutRoom opens a journal on a full file system: unchanged, then after a reboot.
func TestJournalWithoutRoom(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_SYS_ADMIN to mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	first, err := openJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	bridge := line{Kind: kindBridge, Name: "a", Bridge: &bridgeRecord{Device: "br0"}}
	if err := errors.Join(first.note(bridge), first.close()); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(first.path())
	if err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	j, err := openJournal(dir)
	if err != nil || j.bridge("a") == nil {
		t.Fatalf("%v; want the recorded state", err)
	}
	if after, err := os.Stat(j.path()); err != nil || !os.SameFile(before, after) {
		t.Errorf("the journal was rewritten although nothing changed, %v", err)
	}
	if err := os.WriteFile(j.path(), []byte(`{"boot":"another"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if j, err = openJournal(dir); err != nil {
		t.Fatal(err)
	}
	if err := j.note(bridge); err != nil || j.problem() == nil {
		t.Errorf("%v, problem %v; want that the network continues, and a problem", err, j.problem())
	}
	if err := os.Remove(big); err != nil {
		t.Fatal(err)
	}
	if err := j.problem(); err != nil {
		t.Errorf("problem with room again: %v", err)
	}
	if records, err := readJournal(dir); err != nil || len(records.Bridges) != 1 {
		t.Errorf("%d bridges are remembered, %v", len(records.Bridges), err)
	}
	if err := j.close(); err != nil {
		t.Error(err)
	}
}
