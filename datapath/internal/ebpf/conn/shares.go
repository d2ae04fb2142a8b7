// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// shares counts the lasting connections of each source: see ct_share.h. The programs count; each pass of
// the sweeper corrects the counts to the actual numbers. It is not safe for concurrent use.
//
// A pass over millions of entries takes seconds, and the programs count at the same time. A
// connection that begins when a pass has read a fraction f of its table is read by the pass with
// probability 1-f, as the tables are read in the order of hashes. So the pass adds the fraction f
// of each change to what it has read.
type shares struct {
	kernel *kernel.Shares // also written by the programs
	last   shareCounts    // the programs' counts at the last call of changed
	seen   shareCounts    // connections that the pass has read
	tables [2]readPart    // by family
	both   readPart       // of the tables of both families
	missed struct {       // sums of changes during the pass, each multiplied by f
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

// shareCounts are counts as the programs have them.
type shareCounts struct {
	total [2]uint32 // by family
	count [sources]uint32
}

func newShares(kernel *kernel.Shares) *shares {
	if kernel.Seed == 0 {
		atomic.StoreUint32(&kernel.Seed, rand.Uint32()|1)
	}
	return &shares{kernel: kernel}
}

// setCapacity sets the capacity for lasting connections of each family.
func (s *shares) setCapacity(all [tableCount]uint32) {
	for i, n := range all {
		atomic.StoreUint32(&s.kernel.CapacityOf[i], n)
	}
}

// passBegins prepares the counts for a pass.
func (s *shares) passBegins() {
	const nothing = 1e-9
	s.changed() // sets last
	s.seen = shareCounts{}
	s.tables = [2]readPart{{fraction: nothing}, {fraction: nothing}}
	s.both = readPart{fraction: nothing}
	clear(s.missed.total[:])
	clear(s.missed.count[:])
}

// add counts a connection of a client that the pass has read.
func (s *shares) add(client netip.Addr) {
	s.seen.total[familyOf(client)]++
	s.seen.count[ShareIndex(s.kernel, client)]++
	s.tables[familyOf(client)].connections++
	s.both.connections++
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
	var all uint32
	for i := range s.kernel.Total {
		now := atomic.LoadUint32(&s.kernel.Total[i])
		s.missed.total[i] += float64(int32(now-s.last.total[i])) * s.tables[i].read(now)
		s.last.total[i] = now
		all += now
	}
	fraction := s.both.read(all)
	for i := range s.kernel.Count {
		if now := atomic.LoadUint32(&s.kernel.Count[i]); now != s.last.count[i] {
			s.missed.count[i] += float64(int32(now-s.last.count[i])) * fraction
			s.last.count[i] = now
		}
	}
}

// read returns the fraction of a table that the pass has read. The table has size connections now.
func (r *readPart) read(size uint32) float64 {
	r.fraction += float64(r.connections) / float64(max(1, int(int32(size)), r.connections)) // size may be negative
	r.connections = 0
	return r.fraction
}

// passEnded corrects the counts to the numbers that the pass has read, and the changes that it has
// missed.
func (s *shares) passEnded() {
	for i, n := range s.seen.total {
		correct(&s.kernel.Total[i], s.last.total[i], n, s.missed.total[i]/s.tables[i].fraction)
	}
	for i, n := range s.seen.count {
		if n == s.last.count[i] && s.missed.count[i] == 0 { // as in most counts
			continue
		}
		correct(&s.kernel.Count[i], s.last.count[i], n, s.missed.count[i]/s.both.fraction)
	}
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
