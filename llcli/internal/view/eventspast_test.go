// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"
	"time"
)

func TestParseSince(t *testing.T) {
	zone := time.FixedZone("west", -3*3600)
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, zone)
	for text, want := range map[string]string{
		"10m":                  "2026-03-04T04:56:07-03:00",
		"1h30m":                "2026-03-04T03:36:07-03:00",
		"2d":                   "2026-03-02T05:06:07-03:00",
		"04:30":                "2026-03-04T04:30:00-03:00",
		"05:06:07":             "2026-03-04T05:06:07-03:00",
		"05:06:08":             "2026-03-03T05:06:08-03:00",
		"23:59":                "2026-03-03T23:59:00-03:00",
		"2026-03-01":           "2026-03-01T00:00:00-03:00",
		"2026-03-01 14:15":     "2026-03-01T14:15:00-03:00",
		"2026-03-01 14:15:16":  "2026-03-01T14:15:16-03:00",
		"2026-03-04T07:00:00Z": "2026-03-04T07:00:00Z",
	} {
		got, err := parseSince(text, now)
		if err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%q is %s (%v), want %s", text, got.Format(time.RFC3339), err, want)
		}
	}
	for _, text := range []string{"", "10", "-5m", "-1d", "tomorrow", "25:00", "d", "2026-13-01"} {
		if got, err := parseSince(text, now); err == nil {
			t.Errorf("%q is read as %s", text, got)
		}
	}
}
