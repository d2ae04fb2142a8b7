// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// shares counts the connections of each source: see ct_share.h and ct_open_share.h. The programs
// raise the counts when connections are opened or established; each pass of the sweeper corrects
// them to the actual numbers. It is not safe for concurrent use.
type shares struct {
	kernel       *kernel.Shares // also written by the programs
	before, seen [2]shareCounts
}

// shareCounts are the counts for one kind of table: before a pass, or as counted by the pass.
type shareCounts struct {
	total [2]uint32 // by family
	count [len(kernel.Shares{}.Count)]uint32
}

// The kinds of tables.
const (
	shareEstablished = iota
	shareHalfOpen
)

// of returns the counts in the programs' memory for a kind of table.
func (s *shares) of(kind int) (total *[2]uint32, count *[len(kernel.Shares{}.Count)]uint32) {
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

// passBegins saves the counts before a pass.
func (s *shares) passBegins() {
	for kind := range s.before {
		before := &s.before[kind]
		total, count := s.of(kind)
		for i := range total {
			before.total[i] = atomic.LoadUint32(&total[i])
		}
		for i := range count {
			before.count[i] = atomic.LoadUint32(&count[i])
		}
		s.seen[kind] = shareCounts{}
	}
}

// add adds n connections of a client to the counts; n is negative for connections that the pass has
// deleted.
func (s *shares) add(kind int, client netip.Addr, n int32) {
	family := 0
	if client.Is6() {
		family = 1
	}
	s.seen[kind].total[family] += uint32(n)
	s.seen[kind].count[ShareIndex(s.kernel, client)] += uint32(n)
}

// passEnded corrects the counts to the numbers that the pass has seen. A connection that was
// created during the pass and seen by it is counted twice until the next pass.
func (s *shares) passEnded() {
	for kind := range s.before {
		before, seen := &s.before[kind], &s.seen[kind]
		total, count := s.of(kind)
		for i, n := range seen.total {
			if n != before.total[i] {
				atomic.AddUint32(&total[i], n-before.total[i])
			}
		}
		for i, n := range seen.count {
			if n != before.count[i] {
				atomic.AddUint32(&count[i], n-before.count[i])
			}
		}
	}
	atomic.StoreUint32(&s.kernel.HalfTick, kernel.NowTick())
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
