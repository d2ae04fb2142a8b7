// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

// TestBlameUntilPublished: while a new image is prepared, or could not be put in force, packets obey
// the previous image, whose cells have other ids.
func TestBlameUntilPublished(t *testing.T) {
	p := &Policies{blame: newBlame()}
	cell := func(name string) map[policy.CellID]policy.Cell {
		return map[policy.CellID]policy.Cell{7: {Others: policy.Verdicts{Enforced: policy.Verdict{Action: policy.Deny, Policy: name}}}}
	}
	want := func(when, name string) {
		t.Helper()
		if d := p.Blame(&kernel.Sample{PolicyCell: nameOf(cell(name)[7])}); d == nil || d.Policy != name {
			t.Errorf("%s: %+v, want %s", when, d, name)
		}
	}
	p.blame.reset()
	p.blame.add(cell("first"))
	p.blame.publish()
	want("in force", "first")
	p.blame.reset()
	want("a new image is prepared", "first")
	p.blame.add(cell("second"))
	want("a new image is written", "first")
	p.blame.publish()
	want("the new image is in force", "second")
}
