// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// TestPruningIsDelayed: after a loss of the desired state, pruning is delayed by ten
// minutes and no longer, whatever date the clock shows then or later.
func TestPruningIsDelayed(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name   string
		report state.Report
		want   time.Duration // delay after the start; negative: no delay
	}{
		{"nothing was lost", state.Report{}, -time.Hour},
		{"just now", state.Report{Damage: &state.Damage{At: now.UTC()}}, lostStateGrace},
		{"four minutes ago", state.Report{Damage: &state.Damage{At: now.UTC().Add(-4 * time.Minute)}}, 6 * time.Minute},
		{"yesterday", state.Report{Damage: &state.Damage{At: now.UTC().Add(-24 * time.Hour)}}, -time.Hour},
		{"next year, the date was wrong then", state.Report{Damage: &state.Damage{At: now.UTC().Add(365 * 24 * time.Hour)}}, lostStateGrace},
		{"a page was lost", state.Report{RolledBack: true}, lostStateGrace},
	} {
		d := &loxilightd{report: &tt.report, started: now}
		got := d.pruneNotBefore()
		if left := got.Sub(now); left > tt.want || tt.want > 0 && left < tt.want-time.Second {
			t.Errorf("%s: held back until %s after the start, want %s", tt.name, left, tt.want)
		}
		if !got.IsZero() && got == got.Round(0) {
			t.Errorf("%s: held back by a clock that is set with the date", tt.name)
		}
	}
}
