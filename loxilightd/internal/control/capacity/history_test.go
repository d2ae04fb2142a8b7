// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

const size = 1000

// filled returns a history with a reading of a table each minute, the last one at the given time.
func filled(table string, end time.Time, used ...uint64) *History {
	h := new(History)
	for i, n := range used {
		at := end.Add(-time.Duration(len(used)-1-i) * Interval)
		h.Add(at, map[string]datapath.Usage{table: {Used: n, Size: size}})
	}
	return h
}

// TestGrowth: growth is known once a reading is old enough, and relates to the reading of that age.
func TestGrowth(t *testing.T) {
	now := time.Now()
	h := filled("t", now, 100, 110, 120, 130, 140, 150)
	for name, c := range map[string]struct {
		table  string
		used   uint64
		size   uint64
		at     time.Time
		period time.Duration
		want   int64
		ok     bool
	}{
		"grows":               {"t", 155, size, now, Short, 55, true},
		"shrinks":             {"t", 20, size, now, Short, -80, true},
		"half a minute later": {"t", 155, size, now.Add(Interval / 2), Short, 50, true}, // 55 in 5.5 minutes
		"over an hour":        {"t", 155, size, now, Long, 0, false},
		"other table":         {"other", 155, size, now, Short, 0, false},
		"other size":          {"t", 155, 2 * size, now, Short, 0, false},
		"after a long pause":  {"t", 155, size, now.Add(2 * Short), Short, 0, false},
	} {
		if n, ok := h.Growth(c.table, datapath.Usage{Used: c.used, Size: c.size}, c.at, c.period); n != c.want || ok != c.ok {
			t.Errorf("%s: %d, %t; want %d, %t", name, n, ok, c.want, c.ok)
		}
	}
	var hour []uint64
	for i := range 3 * kept {
		hour = append(hour, uint64(i))
	}
	h = filled("t", now, hour...)
	last := datapath.Usage{Used: uint64(3*kept - 1), Size: size}
	if n, ok := h.Growth("t", last, now, Long); n != 60 || !ok {
		t.Errorf("growth %d, %t; want 60 in an hour", n, ok)
	}
	if len(h.readings) != kept {
		t.Errorf("%d readings are kept, want %d", len(h.readings), kept)
	}
	h.Add(now.Add(time.Second), map[string]datapath.Usage{"t": {Used: 5, Size: size}})
	if n, _ := h.Growth("t", last, now, Long); n != 60 {
		t.Errorf("growth %d after a reading that came too soon, want 60", n)
	}
}

// TestFills: tables that are nearly full, or that grow into it, and those that are not.
func TestFills(t *testing.T) {
	now := time.Now()
	const traffic, objects = "connections IPv6", "backends"
	for name, c := range map[string]struct {
		table  string
		used   []uint64 // by minute
		size   uint64
		fills  bool
		left   time.Duration
		fullIn time.Duration
	}{
		"empty":                 {traffic, []uint64{0}, size, false, 0, 0},
		"90 %":                  {traffic, []uint64{900}, size, true, 0, 0},
		"full":                  {traffic, []uint64{0, 0, 0, 0, 0, 1000}, size, true, 0, 0},
		"no size":               {traffic, []uint64{1}, 0, false, 0, 0},
		"89 %, stable":          {traffic, []uint64{890, 890, 890, 890, 890, 890}, size, false, 0, 0},
		"in 10 minutes":         {traffic, []uint64{400, 440, 480, 520, 560, 600}, size, true, 10 * time.Minute, 10 * time.Minute},
		"in 20 minutes":         {traffic, []uint64{500, 520, 540, 560, 580, 600}, size, false, 0, 20 * time.Minute},
		"shrinks":               {traffic, []uint64{800, 780, 760, 740, 720, 700}, size, false, 0, 0},
		"begins":                {traffic, []uint64{0, 80, 160, 240, 320, 400}, size, false, 0, 7*time.Minute + 30*time.Second},
		"unknown so far":        {traffic, []uint64{400, 600}, size, false, 0, 0},
		"more than its limit":   {traffic, []uint64{1200}, size, true, 0, 0},
		"objects, all at once":  {objects, []uint64{0, 0, 0, 0, 0, 600}, size, false, 0, 0},
		"objects, nearly full":  {objects, []uint64{0, 0, 0, 0, 0, 950}, size, true, 0, 0},
		"grows by one in 5 min": {traffic, []uint64{1, 1, 1, 1, 1, 2}, 1 << 30, false, 0, 0},
	} {
		u := datapath.Usage{Used: c.used[len(c.used)-1], Size: c.size}
		h := new(History)
		for i, n := range c.used {
			h.Add(now.Add(-time.Duration(len(c.used)-1-i)*Interval), map[string]datapath.Usage{c.table: {Used: n, Size: c.size}})
		}
		left, fills := h.Fills(c.table, u, now)
		if fills != c.fills || left.Round(time.Second) != c.left {
			t.Errorf("%s: %t in %s, want %t in %s", name, fills, left, c.fills, c.left)
		}
		if left, ok := h.FullIn(c.table, u, now); ok != (c.fullIn > 0) || left.Round(time.Second) != c.fullIn {
			t.Errorf("%s: full in %s, %t; want %s", name, left, ok, c.fullIn)
		}
	}
}
