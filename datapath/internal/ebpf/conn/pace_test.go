// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"testing"
	"time"
)

// TestSweepHurries: the fuller the tables, the longer each piece of maintenance may take,
// within limits.
func TestSweepHurries(t *testing.T) {
	last := time.Duration(0)
	for used := -1.0; used < 3; used += 0.01 {
		got := budgetFor(used)
		if got < last || got < budget || got > hurried {
			t.Errorf("%.2f of the table: %s, and %s before", used, got, last)
		}
		last = got
	}
	if budgetFor(0.5) != budget || budgetFor(0.9) != hurried {
		t.Errorf("half: %s, nine tenths: %s; want %s and %s", budgetFor(0.5), budgetFor(0.9), budget, hurried)
	}
}
