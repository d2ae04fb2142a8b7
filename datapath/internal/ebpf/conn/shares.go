// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// shares counts the connections of each source: see ct_share.h and ct_open_share.h. The programs
// raise the counts when connections are opened or established; each pass of the sweeper corrects
// them to the actual numbers. It is not safe for concurrent use.
//
// A pass over millions of entries takes seconds, and the programs count at the same time. A
// connection that begins when a pass has read a fraction f of its table is read by the pass with
// probability 1-f, as the tables are read in the order of hashes. So the pass adds the fraction f
// of each change to what it has read.
type shares struct {
	kernel *kernel.Shares // also written by the programs
	last   [2]shareCounts // the programs' counts at the last call of changed
	seen   [2]shareCounts // connections that the pass has read, without those that it has deleted
	tables [2][2]readPart // by kind and family
	both   [2]readPart    // of the tables of both families, by kind
	missed [2]struct {    // sums of changes during the pass, each multiplied by f
		total [2]float64
		count [sources]float64
	}
}

// readPart is the part of a table that a pass has read.
type readPart struct {
	connections int     // since the last call of changed
	fraction    float64 // read before; never 0, so that an empty table counts as read
}

// sources is the number of counts, at which sources are counted by hash.
const sources = len(kernel.Shares{}.Count)

// shareCounts are counts for one kind of table.
type shareCounts struct {
	total [2]uint32 // by family
	count [sources]uint32
}

// The kinds of tables.
const (
	shareEstablished = iota
	shareHalfOpen
)

// of returns the counts in the programs' memory for a kind of table.
func (s *shares) of(kind int) (total *[2]uint32, count *[sources]uint32) {
	if kind == shareHalfOpen {
		return &s.kernel.HalfTotal, &s.kernel.HalfCount
	}
	return &s.kernel.Total, &s.kernel.Count
}

// newShares sets the capacity for established and half-open connections.
func newShares(kernel *kernel.Shares, established, halfOpen uint32) *shares {
	if kernel.Seed == 0 {
		atomic.StoreUint32(&kernel.Seed, rand.Uint32()|1)
	}
	atomic.StoreUint32(&kernel.Capacity, established)
	crowds, slots := crowdsFor(halfOpen)
	atomic.StoreUint32(&kernel.HalfCrowds, crowds)
	atomic.StoreUint32(&kernel.HalfSlots, slots)
	atomic.StoreUint32(&kernel.HalfCapacity, halfOpen/4*3)
	return &shares{kernel: kernel}
}

// crowdsFor returns the number of crowds per netns, and the number of slots per crowd. All crowds
// together may use a quarter of the half-open table. A small table has fewer crowds, so that a
// crowd has enough slots for the connections that it is opening.
func crowdsFor(halfOpen uint32) (crowds, slots uint32) {
	const most, slotsLeast = kernel.CrowdCount / 2, 32
	each := halfOpen / 4 / 2 // for each netns
	crowds = min(most, max(1, each/slotsLeast))
	return crowds, min(kernel.CrowdSlots, max(1, each/crowds))
}

// passBegins prepares the counts for a pass.
func (s *shares) passBegins() {
	const nothing = 1e-9
	s.changed() // sets last
	for kind := range s.seen {
		s.seen[kind] = shareCounts{}
		s.tables[kind] = [2]readPart{{fraction: nothing}, {fraction: nothing}}
		s.both[kind] = readPart{fraction: nothing}
		clear(s.missed[kind].total[:])
		clear(s.missed[kind].count[:])
	}
}

// add counts a connection of a client that the pass has read.
func (s *shares) add(kind int, client netip.Addr) {
	s.seen[kind].total[familyOf(client)]++
	s.seen[kind].count[ShareIndex(s.kernel, client)]++
	s.tables[kind][familyOf(client)].connections++
	s.both[kind].connections++
}

// remove takes a connection off the counts: the pass has read it and then deleted it.
func (s *shares) remove(kind int, client netip.Addr) {
	s.seen[kind].total[familyOf(client)]--
	s.seen[kind].count[ShareIndex(s.kernel, client)]--
}

func familyOf(client netip.Addr) int {
	if client.Is6() {
		return 1
	}
	return 0
}

// changed reads the changes that the programs have made since its last call. The sweeper calls it
// before and after each step of a pass, so that a call finds either a part that was read or changes
// of the time between two steps, but hardly both.
func (s *shares) changed() {
	for kind := range s.last {
		last, missed := &s.last[kind], &s.missed[kind]
		total, count := s.of(kind)
		var all uint32
		for i := range total {
			now := atomic.LoadUint32(&total[i])
			missed.total[i] += float64(int32(now-last.total[i])) * s.tables[kind][i].read(now)
			last.total[i] = now
			all += now
		}
		fraction := s.both[kind].read(all)
		for i := range count {
			if now := atomic.LoadUint32(&count[i]); now != last.count[i] {
				missed.count[i] += float64(int32(now-last.count[i])) * fraction
				last.count[i] = now
			}
		}
	}
}

// read returns the fraction of a table that the pass has read. The table has size connections now.
func (r *readPart) read(size uint32) float64 {
	r.fraction += float64(r.connections) / float64(max(1, int(size), r.connections))
	r.connections = 0
	return r.fraction
}

// passEnded corrects the counts to the numbers that the pass has read, and the changes that it has
// missed.
func (s *shares) passEnded() {
	for kind := range s.seen {
		last, seen, missed := &s.last[kind], &s.seen[kind], &s.missed[kind]
		total, count := s.of(kind)
		for i, n := range seen.total {
			correct(&total[i], last.total[i], n, missed.total[i]/s.tables[kind][i].fraction)
		}
		for i, n := range seen.count {
			correct(&count[i], last.count[i], n, missed.count[i]/s.both[kind].fraction)
		}
	}
	atomic.StoreUint32(&s.kernel.HalfTick, kernel.NowTick())
}

// correct corrects a count, which was last, to the connections that a pass has read and missed.
func correct(count *uint32, last, seen uint32, missed float64) {
	if n := seen + uint32(int32(math.Round(missed))); n != last {
		atomic.AddUint32(count, n-last)
	}
}

// ShareIndex is share_index of ct_share.h: the index of the counts of a source.
func ShareIndex(shares *kernel.Shares, source netip.Addr) uint32 {
	h := shares.Seed
	for _, word := range kernel.AddrOf(source).Word {
		h ^= word
		h *= 0x85ebca6b
		h ^= h >> 13
		h *= 0xc2b2ae35
		h ^= h >> 16
	}
	return h % uint32(len(shares.Count))
}
