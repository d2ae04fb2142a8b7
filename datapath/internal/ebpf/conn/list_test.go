// SPDX-License-Identifier: Apache-2.0

package conn

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
	states, err := kernel.EnumNames(spec.Types, "ct_state", "CT_")
	if err != nil {
		t.Fatal(err)
	}
	want := map[datapath.Protocol][]string{
		datapath.TCP:    {"syn-sent", "syn-received", "established", "established", "fin-wait", "time-wait", "closed", "closed"},
		datapath.SCTP:   {"syn-sent", "syn-received", "established", "established", "fin-wait", "time-wait", "closed", "closed"},
		datapath.UDP:    {"unreplied", "replied", "replied", "one-way", "replied", "replied", "replied", "replied"},
		datapath.ICMPv6: {"unreplied", "replied", "replied", "one-way", "replied", "replied", "replied", "replied"},
	}
	for protocol, words := range want {
		if len(states) != len(words) {
			t.Fatalf("states of the C source: %q, want %d", states, len(words))
		}
		for state, word := range words {
			if got := stateName(states, uint8(state), protocol); got != word {
				t.Errorf("protocol %d, state %s: %q, want %q", protocol, states[state], got, word)
			}
		}
	}
	if got := stateName(states, 17, datapath.TCP); got != "17" {
		t.Errorf("an unknown state: %q, want 17", got)
	}
}
