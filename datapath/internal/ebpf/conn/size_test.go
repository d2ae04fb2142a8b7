// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// testTable is the size of a table with segments of 1024 connections.
type testTable struct {
	segments uint32
	used     uint32 // connections
	changing bool
	fails    error
}

func (t *testTable) Segments() (uint32, bool) { return t.segments, t.changing }
func (t *testTable) SegmentCapacity() uint32  { return 1024 }
func (t *testTable) SegmentBlocks() uint32    { return kernel.ConnBlocks(1024) }
func (t *testTable) SegmentBytes() uint64     { return 1 << 20 }
func (t *testTable) Fill(uint32) float64      { return float64(t.used) / float64(t.segments*1024) * 8 / 9 }
func (t *testTable) Resize(double bool) error {
	if t.fails != nil {
		t.changing = errors.Is(t.fails, kernel.ErrNoPlace)
		return t.fails
	}
	if t.changing {
		t.changing = false
		return nil
	}
	if double {
		t.segments *= 2
	} else {
		t.segments /= 2
	}
	return nil
}

// sizedTable returns a table between two numbers of connections, and looks that happen at
// intervals.
func sizedTable(t *testing.T, least, most uint32, memory *error) (table *testTable, z *sizes, look func(times int, every time.Duration)) {
	s := &Sweeper{options: Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), HasMemory: func(uint64) error { return *memory }}, shares: newShares(new(kernel.Shares))}
	table = &testTable{segments: 1}
	x := &tableSize{ConnTable: table, family: "IPv4", littleFrom: time.Now()}
	x.min, x.max = segmentLimits(table.SegmentBlocks(), least, most)
	z = &sizes{sweeper: s, tables: []*tableSize{x}, refused: map[string]error{}}
	s.sizes = z
	now := time.Now()
	return table, z, func(times int, every time.Duration) {
		for range times {
			now = now.Add(every)
			z.look(x, now)
		}
	}
}

// TestSizeFollows: the table is doubled at three quarters, earlier if it fills fast, and halved if
// less than a fifth was used for ten minutes; between its limits.
func TestSizeFollows(t *testing.T) {
	var memory error
	table, _, look := sizedTable(t, 2000, 16*1024, &memory)
	want := func(when string, segments uint32) {
		t.Helper()
		if table.segments != segments {
			t.Errorf("%s: %d segments, want %d", when, table.segments, segments)
		}
	}
	look(1, time.Second)
	want("at the beginning", 2)
	look(3, time.Second)
	want("empty", 2)
	table.used = 1500
	look(1, 10*time.Second)
	want("at 73 %, slowly", 2)
	table.used = 1540
	look(1, 10*time.Second)
	want("at 75 %", 4)
	look(1, time.Second)
	table.used = 1700
	look(1, 50*time.Millisecond)
	want("at 41 %, and it would be full in a second", 4)
	table.used = 1850
	look(1, 50*time.Millisecond)
	want("and again", 8)
	table.used = 16 * 1024
	look(10, 50*time.Millisecond)
	want("full", 16)
	table.used = 3000 // 18 %
	look(9, time.Minute)
	table.used = 4000
	look(1, time.Minute)
	table.used = 3000
	look(9, time.Minute)
	want("after nine minutes with little, twice", 16)
	look(3, time.Minute)
	want("after ten minutes with little", 8)
	table.used = 0
	look(100, time.Minute)
	want("empty for long", 2)
}

// TestSizeLimits: the limits that follow from the configuration and from the size of a segment,
// which an earlier configuration may have determined.
func TestSizeLimits(t *testing.T) {
	for _, c := range []struct{ segment, least, most, min, max uint32 }{
		{65536, 65536, 4194304, 1, 64},
		{65536, 65536, 65536, 1, 1},
		{65536, 0, 1 << 20, 1, 16},
		{65536, 1 << 20, 1 << 20, 16, 16},
		{65536, 100, 100, 1, 1},
		{65536, 70000, 100_000, 1, 1},
		{65536, 70000, 130_000, 2, 2},
		{1024, 1024, 1 << 30, 1, 64},
	} {
		if least, most := segmentLimits(kernel.ConnBlocks(c.segment), c.least, c.most); least != c.min || most != c.max {
			t.Errorf("segments of %d, %d to %d connections: %d to %d segments, want %d to %d", c.segment, c.least, c.most, least, most, c.min, c.max)
		}
	}
	for _, c := range []struct{ least, most uint32 }{{65536, 4194304}, {65536, 1 << 20}, {1000, 1000}, {0, 5000}, {3000, 100_000}, {1, 1 << 28}, {1 << 28, 1 << 28}} {
		blocks := kernel.SegmentBlocks(c.least, c.most)
		least, most := segmentLimits(blocks, c.least, c.most)
		all, need := uint64(blocks)*uint64(most), uint64(kernel.ConnBlocks(c.most))
		if all < need || all > need+64 || blocks > 1<<20 || blocks*least < kernel.ConnBlocks(max(1, c.least)) && least < most {
			t.Errorf("%d to %d connections: %d to %d segments of %d blocks, want %d blocks", c.least, c.most, least, most, blocks, need)
		}
	}
}

// TestSizeRefused: a table that cannot grow is reported until it can, and clients share what there
// is.
func TestSizeRefused(t *testing.T) {
	memory := errors.New("no memory")
	table, z, look := sizedTable(t, 1024, 8*1024, &memory)
	check := func(when string, segments, capacity uint32, reported string) {
		t.Helper()
		all := fmt.Sprint(z.problems())
		if got := z.sweeper.shares.kernel.CapacityOf[IPv4]; table.segments != segments || got != capacity || !strings.Contains(all, reported) || reported == "" && all != "[]" {
			t.Errorf("%s: %d segments, shares of %d, reported %s; want %d, %d, %q", when, table.segments, got, all, segments, capacity, reported)
		}
	}
	z.sweeper.shares.setCapacity(z.capacity())
	check("at the beginning", 1, 8*1024, "")
	table.used = 1000
	look(100, 50*time.Millisecond)
	check("refused", 1, 1024, "the table of IPv4 connections cannot grow beyond 1024: no memory")
	memory = nil
	look(1, time.Minute)
	check("with memory", 2, 8*1024, "")
	table.used, table.fails = 2000, errors.New("failed")
	look(1, time.Minute)
	check("failed", 2, 2048, "failed")
	table.fails = nil
	look(20, time.Minute)
	check("no pass has ended since", 2, 2048, "failed")
	table.used = 100
	look(1, time.Minute)
	check("not full any more", 2, 8*1024, "")
}

// TestSizeContinues: a change of size that an earlier run began, or for which entries have no
// place, is continued.
func TestSizeContinues(t *testing.T) {
	var memory error
	table, z, look := sizedTable(t, 1024, 8*1024, &memory)
	table.segments, table.changing, table.used = 4, true, 2000
	look(1, time.Second)
	if table.segments != 4 || table.changing {
		t.Errorf("%+v, want the change ended", table)
	}
	table.used, table.fails = 4000, kernel.ErrNoPlace
	look(1, time.Second)
	if table.fails = nil; !table.changing {
		t.Errorf("%+v, want a change under way", table)
	}
	s := z.sweeper
	s.ended, s.took = time.Now().Add(10*time.Second), time.Second
	look(1, time.Minute)
	if table.changing {
		t.Errorf("%+v, want the change ended", table)
	}
}

// wideTable is a table whose segments have room for more connections.
type wideTable struct{ testTable }

func (t *wideTable) SegmentCapacity() uint32 { return 65_536 }

// TestPauseFollowsRoom: tables are looked at the less often, the longer they last at the highest rate
// of new connections.
func TestPauseFollowsRoom(t *testing.T) {
	for _, c := range []struct {
		segments, most uint32
		used           float64 // segments
		want           time.Duration
	}{
		{1, 16, 0, lookQuiet}, {2, 16, 0, lookQuiet}, {4, 16, 1.5, 500 * time.Millisecond},
		{8, 16, 1, time.Second}, {8, 16, 6, lookQuiet}, {16, 16, 16, time.Second},
	} {
		x := &tableSize{ConnTable: &wideTable{testTable{segments: c.segments}}, max: c.most, used: c.used}
		z := &sizes{sweeper: &Sweeper{options: Options{IsIdle: func() bool { return false }}}, tables: []*tableSize{x}}
		if got := z.pause(false); got != c.want {
			t.Errorf("%d of %d segments, %.1f used: a pause of %s, want %s", c.segments, c.most, c.used, got, c.want)
		}
		if got := z.pause(true); got != lookBusy {
			t.Errorf("a busy table: a pause of %s, want %s", got, lookBusy)
		}
	}
}
