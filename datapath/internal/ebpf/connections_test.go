// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestStateNames: every state of the C source has names in the API.
func TestStateNames(t *testing.T) {
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	d := &DataPlane{}
	if err := d.readNames(spec); err != nil {
		t.Fatal(err)
	}
	want := map[datapath.Protocol][]string{
		datapath.TCP:    {"syn-sent", "syn-received", "established", "fin-wait", "time-wait", "closed", "closed"},
		datapath.SCTP:   {"syn-sent", "syn-received", "established", "fin-wait", "time-wait", "closed", "closed"},
		datapath.UDP:    {"unreplied", "replied", "replied", "replied", "replied", "replied", "replied"},
		datapath.ICMPv6: {"unreplied", "replied", "replied", "replied", "replied", "replied", "replied"},
	}
	for protocol, words := range want {
		if len(d.states) != len(words) {
			t.Fatalf("states of the C source: %q, want %d", d.states, len(words))
		}
		for state, word := range words {
			if got := d.stateName(uint8(state), protocol); got != word {
				t.Errorf("protocol %d, state %s: %q, want %q", protocol, d.states[state], got, word)
			}
		}
	}
	if got := d.stateName(17, datapath.TCP); got != "17" {
		t.Errorf("an unknown state: %q, want 17", got)
	}
}
