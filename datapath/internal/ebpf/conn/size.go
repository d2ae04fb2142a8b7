// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"fmt"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/tick"
)

// When the number of segments of a connection table changes. Use is relative to the number of
// connections for which the table is made; it has room for an eighth more.
const (
	doubleAt   = 0.75
	doubleFor  = 2 * time.Second // or if it would be full after that time
	halveAt    = 0.2
	halveFor   = 10 * time.Minute // if less was used for so long
	busyAt     = 0.2
	busyFor    = 5 * time.Second // as doubleFor, to look more often
	retryAfter = 10 * time.Second
	// At that many new connections a second, the smallest table of automatic size is full after 370 ms.
	// Ten looks a second at idle tables took 0.5 % of a core.
	fastest    = 200_000
	lookQuiet  = 250 * time.Millisecond
	lookSeldom = time.Second     // while a table has room for so long
	lookIdle   = 5 * time.Second // while no programs are attached
	lookBusy   = 50 * time.Millisecond
	lookBlocks = 128 // read for an estimate
)

// sizes keep the sizes of the connection tables between two limits, as they fill and empty.
type sizes struct {
	sweeper *Sweeper
	tables  []*tableSize  // by family, IPv4 first
	woken   chan struct{} // signalled when programs are attached
	stop    chan struct{}
	stopped sync.WaitGroup

	mu      sync.Mutex
	refused map[string]error // by family: why its table, which is nearly full, is not doubled
}

// tableSize is the size of the table of a family.
type tableSize struct {
	kernel.ConnTable
	family   string
	min, max uint32 // segments

	used       float64 // segments in use when it was looked at last, and the time
	seen       time.Time
	fills      bool      // it would be full soon then
	littleFrom time.Time // since when little is in use
	// A change that failed is tried again when that time has come, and a pass has ended since: each
	// try makes the current one begin anew.
	retry, failed time.Time
}

func newSizes(s *Sweeper) *sizes {
	z := &sizes{sweeper: s, woken: make(chan struct{}, 1), stop: make(chan struct{}), refused: make(map[string]error)}
	for i, t := range s.options.Tables.ConnTables() {
		x := &tableSize{ConnTable: t, littleFrom: time.Now(), family: [...]string{IPv4: "IPv4", IPv6: "IPv6"}[i]}
		n, _ := t.Segments()
		x.used = t.Fill(lookBlocks) * 9 / 8 * float64(n)
		x.min, x.max = segmentLimits(t.SegmentBlocks(), s.options.MinConnections, s.options.MaxConnections)
		z.tables = append(z.tables, x)
	}
	s.shares.setCapacity(z.capacity())
	return z
}

// segmentLimits returns the smallest and the largest number of segments with that many blocks.
func segmentLimits(blocks, minConnections, maxConnections uint32) (least, most uint32) {
	need, all := kernel.ConnBlocks(max(1, minConnections)), kernel.ConnBlocks(maxConnections)
	for most = 1; most < kernel.ConnSegments && most*blocks < all && 2*most*blocks <= all+all/4; most *= 2 {
	}
	if kernel.ConnSegments*blocks < all {
		return 1, most // with one segment, the next start makes larger ones
	}
	for least = 1; least < most && least*blocks < need; least *= 2 {
	}
	return least, most
}

// start follows the load until close.
func (z *sizes) start() {
	z.stopped.Go(func() {
		for busy := false; ; {
			select {
			case <-z.stop:
				return
			case <-tick.After(z.pause(busy)):
			case <-z.woken:
			}
			busy = false
			for _, t := range z.tables {
				busy = z.look(t, time.Now()) || busy
			}
		}
	})
}

// pause returns the time between two looks. busy is set if the next look must be soon.
func (z *sizes) pause(busy bool) time.Duration {
	switch {
	case busy:
		return lookBusy
	case z.sweeper.options.IsIdle():
		return lookIdle
	}
	pause := lookSeldom
	for _, t := range z.tables {
		for pause > lookQuiet && !t.lasts(pause) {
			pause /= 2
		}
	}
	return pause
}

// lasts reports whether the table can be looked at after a pause: half as much time again passes
// before it is full, however fast connections begin. Of a table that cannot grow, nothing is missed.
func (t *tableSize) lasts(pause time.Duration) bool {
	n, _ := t.Segments()
	free := (float64(n) - t.used) * float64(t.SegmentCapacity())
	return n >= t.max || free >= 1.5*fastest*pause.Seconds()
}

func (z *sizes) close() {
	close(z.stop)
	z.stopped.Wait()
}

// look changes the size of a table if necessary, and reports whether the next look must be soon.
func (z *sizes) look(t *tableSize, now time.Time) bool {
	n, changing := t.Segments()
	used := t.Fill(lookBlocks) * 9 / 8
	in := used * float64(n)
	fills, nears := false, false
	if passed := now.Sub(t.seen); passed > 0 && !t.seen.IsZero() {
		more := max(0, in-t.used) / float64(n) / float64(passed)
		fills = used >= doubleAt/2 && used+more*float64(doubleFor) >= 1
		nears = used >= busyAt && used+more*float64(busyFor) >= 1
	}
	soon := fills && t.fills // twice in a row, since it is an estimate
	t.used, t.seen, t.fills = in, now, fills
	if used >= halveAt || n <= t.min {
		t.littleFrom = now
	}
	double := n < t.min || n < t.max && (used >= doubleAt || soon)
	halve := n > t.max && 2*used < doubleAt || n > t.min && now.Sub(t.littleFrom) >= halveFor
	if !double && used < doubleAt {
		z.setRefused(t, nil)
	}
	if (double || halve || changing) && now.After(t.retry) && (t.failed.IsZero() || z.sweeper.passedSince(t.failed)) {
		z.resize(t, double, now)
	}
	return changing || n < t.max && nears
}

// resize doubles or halves the number of segments of a table, or continues a change that is under
// way.
func (z *sizes) resize(t *tableSize, double bool, now time.Time) {
	before, changing := t.Segments()
	if double && !changing {
		if err := z.sweeper.options.HasMemory(uint64(before) * t.SegmentBytes()); err != nil {
			z.setRefused(t, err)
			t.retry = now.Add(retryAfter)
			return
		}
	}
	began := time.Now()
	err := z.sweeper.between(func() error { return t.Resize(double) })
	n, _ := t.Segments()
	log := z.sweeper.options.Log.With("family", t.family, "segments", n, "connections", n*t.SegmentCapacity())
	if err != nil {
		log.Warn("table of connections cannot be resized; retrying", "error", err)
		t.retry, t.failed = now.Add(retryAfter), now
		z.sweeper.Kick()
		if double {
			z.setRefused(t, err)
		}
		return
	}
	log.Info("table of connections is resized", "segments_before", before, "took", time.Since(began).Round(time.Millisecond))
	z.setRefused(t, nil)
	t.seen, t.littleFrom, t.failed = time.Time{}, now, time.Time{}
}

// setRefused records why a table cannot grow, and adapts the shares of clients; nil: it can.
func (z *sizes) setRefused(t *tableSize, err error) {
	z.mu.Lock()
	before := z.refused[t.family]
	if z.refused[t.family] = err; err == nil {
		delete(z.refused, t.family)
	}
	z.mu.Unlock()
	if err != nil && before == nil {
		z.sweeper.options.Log.Warn("table of connections cannot grow; new connections make room for each other", "family", t.family, "error", err)
	}
	if err != nil || before != nil {
		z.sweeper.shares.setCapacity(z.capacity())
	}
}

// capacity returns the number of connections of each family that its table can hold; if the table
// cannot grow, as it is now.
func (z *sizes) capacity() (all [tableCount]uint32) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for i, t := range z.tables {
		n := t.max
		if z.refused[t.family] != nil {
			n, _ = t.Segments()
		}
		all[i] = n * t.SegmentCapacity()
	}
	return all
}

// problems describes the tables that cannot grow.
func (z *sizes) problems() (all []string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, t := range z.tables {
		if err := z.refused[t.family]; err != nil {
			n, _ := t.Segments()
			all = append(all, fmt.Sprintf("the table of %s connections cannot grow beyond %d: %v: give the node or the daemon more memory, or lower tables.connections",
				t.family, n*t.SegmentCapacity(), err))
		}
	}
	return all
}
