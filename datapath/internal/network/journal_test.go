// SPDX-License-Identifier: Apache-2.0

package network

import (
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
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
		note(line{Kind: kindRoute, Name: "r", Route: &routeRecord{Key: routeKey{Metric: uint32(i)}}})
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
		if r := j.bridge("a"); r == nil || r.Device != "br0" || !slices.Equal(r.Addresses, []string{"10.1.0.1/24"}) || len(j.held.Bridges) != 1 {
			t.Errorf("bridges: %v", j.held.Bridges)
		}
		if r := j.route("r"); r == nil || r.Key.Metric != 4999 {
			t.Errorf("route: %v", r)
		}
		if err := j.close(); err != nil {
			t.Fatal(err)
		}
	}
}
