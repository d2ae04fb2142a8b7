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

// TestSweepsArePaced: with many connections, the interval grows, so that passes take at most a third
// of a percent of a processor; not beyond its limit, and not if it is configured.
func TestSweepsArePaced(t *testing.T) {
	for _, c := range []struct{ longest, worked, want time.Duration }{
		{time.Minute, 0, 0},
		{time.Minute, 16 * time.Millisecond, 0},
		{time.Minute, 100 * time.Millisecond, 25 * time.Second},
		{time.Minute, time.Second, 55 * time.Second},
		{0, time.Second, 0},
	} {
		s := &Sweeper{options: Options{Interval: 5 * time.Second, Longest: c.longest, IsIdle: func() bool { return false }}, worked: c.worked}
		if got := s.postponed(); got != c.want {
			t.Errorf("with passes of %v and a limit of %v, the next one is postponed by %v, want %v", c.worked, c.longest, got, c.want)
		}
	}
}
