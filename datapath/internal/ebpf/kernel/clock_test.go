// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"testing"
	"time"
)

func TestMonotonicOffset(t *testing.T) {
	for table, want := range map[string]time.Duration{
		"monotonic           0         0\nboottime            0         0\n": 0,
		"monotonic       86400         5\nboottime          172800     0\n":  24*time.Hour + 5,
		"monotonic       -3600 500000000\nboottime            0         0\n": -time.Hour + time.Second/2,
		"boottime 7 7\n":  0,
		"monotonic x 0\n": 0,
	} {
		if got := MonotonicOffset(table); got != want {
			t.Errorf("%q: %v, want %v", table, got, want)
		}
	}
}
