// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
)

// TestFlowtable: a flowtable with offloaded connections is accepted; an empty one is not.
func TestFlowtable(t *testing.T) {
	if !flowtableIn("inet") {
		t.Skip("needs a kernel with flowtables, and root")
	}
	const connections, packets = 100, 5000
	b := &bench{rounds: 0, packetCount: packets} // only the warm-up round
	for _, works := range []bool{true, false} {
		r, err := newRig(pathFlowtable)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		if err := r.attachFlowtable(); err != nil {
			t.Fatal(err)
		}
		if !works {
			if err := r.node.run("flush chain inet bench forward; add rule inet bench forward ct state established counter name slow;"+
				"add rule inet bench forward ct state new counter name slow", "nft", "-f", "-"); err != nil {
				t.Fatal(err)
			}
		}
		rigs := []*rig{r}
		before, err := shortcutsOf(context.Background(), rigs)
		if err != nil {
			t.Fatal(err)
		}
		if err := establish(r, onNode, r.flowsTo(onNode, connections, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := packetRate(r, onNode, packets); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"packets":     b.wantTaken(context.Background(), rigs, before, connections, trackedShare),
			"share":       before.wantShare(context.Background(), rigs, connections),
			"connections": wantOffloaded(rigs, connections),
		} {
			if (err == nil) != works {
				t.Errorf("works %v, %s: %v", works, what, err)
			}
		}
		if err := wantOffloaded(rigs, connections+1); err == nil {
			t.Error("there are more connections than were made")
		}
	}
}

// TestForwardingCells: columns and cells match, with and without the flowtable's path.
func TestForwardingCells(t *testing.T) {
	f := forwarding{base: pathKernel}
	c := comparison{rounds: []map[string]float64{{pathKernel: 2e6, pathFlowtable: 4e6, pathOurs: 6e6}}}
	for _, tt := range []struct {
		paths       []string
		head, cells string
	}{
		{[]string{pathKernel, pathFlowtable, pathOurs},
			"to|kernel routing|nftables flowtable|loxilight|loxilight to nftables flowtable",
			"here|2.00|2.00 (2.00–2.00)|3.00 (3.00–3.00)|1.50 (1.50–1.50)"},
		{[]string{pathKernel, pathOurs}, "to|kernel routing|loxilight", "here|2.00|3.00 (3.00–3.00)"},
	} {
		if got := strings.Join(f.header(tt.paths, "to"), "|"); got != tt.head {
			t.Errorf("header of %q: %s, want %s", tt.paths, got, tt.head)
		}
		if got := strings.Join(f.cells(c, tt.paths[1:], 1e6, "%.2f", "here"), "|"); got != tt.cells {
			t.Errorf("cells of %q: %s, want %s", tt.paths, got, tt.cells)
		}
	}
}

// TestReportOfAnEmulatedMachine: the report names the emulation, and compares nothing with
// targets.
func TestReportOfAnEmulatedMachine(t *testing.T) {
	r := &report{machine: "Linux 6.12, 1 CPUs (some)", rounds: 5, emulated: true}
	r.section("Packets", "Many.", "a").row("1")
	r.atMost("one change", 51, 50, "ms")
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"`make bench-kernels`", "This machine is emulated", "Linux 6.12, 1 CPUs", "the median of 5 rounds", "## Packets"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "Targets") || r.missed != 0 {
		t.Errorf("targets are in it: %d missed", r.missed)
	}
}
