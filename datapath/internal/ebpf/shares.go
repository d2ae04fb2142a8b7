// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
)

// shares counts the established connections of each source: see share.h. The programs raise the
// counts when connections are established; each pass of the sweeper sets them to what it has seen.
// It is not safe for concurrent use.
type shares struct {
	kernel *kernelShares // which the programs write as well
	before kernelShares  // as of the beginning of the pass
	seen   kernelShares  // by the pass
}

// newShares sets how many connections there is room for.
func newShares(kernel *kernelShares, capacity uint32) *shares {
	if kernel.Seed == 0 {
		atomic.StoreUint32(&kernel.Seed, rand.Uint32()|1)
	}
	atomic.StoreUint32(&kernel.Capacity, capacity)
	return &shares{kernel: kernel}
}

// passBegins notes what was counted before a pass.
func (s *shares) passBegins() {
	for i := range s.kernel.Total {
		s.before.Total[i] = atomic.LoadUint32(&s.kernel.Total[i])
	}
	for i := range s.kernel.Count {
		s.before.Count[i] = atomic.LoadUint32(&s.kernel.Count[i])
	}
	s.seen = kernelShares{}
}

// add counts n established connections of a client that a pass has seen; of those that it has
// deleted, n is negative.
func (s *shares) add(client netip.Addr, n int32) {
	family := 0
	if client.Is6() {
		family = 1
	}
	s.seen.Total[family] += uint32(n)
	s.seen.Count[s.index(client)] += uint32(n)
}

// passEnded sets the counts to what the pass has seen. A connection that was established
// meanwhile, and seen, counts twice until the next pass.
func (s *shares) passEnded() {
	for i, seen := range s.seen.Total {
		if seen != s.before.Total[i] {
			atomic.AddUint32(&s.kernel.Total[i], seen-s.before.Total[i])
		}
	}
	for i, seen := range s.seen.Count {
		if seen != s.before.Count[i] {
			atomic.AddUint32(&s.kernel.Count[i], seen-s.before.Count[i])
		}
	}
}

// index is share_index of share.h.
func (s *shares) index(source netip.Addr) uint32 {
	h := s.kernel.Seed
	for _, word := range addrOf(source).Word {
		h ^= word
		h *= 0x85ebca6b
		h ^= h >> 13
		h *= 0xc2b2ae35
		h ^= h >> 16
	}
	return h % uint32(len(s.kernel.Count))
}

// clientAddr returns the client's address of the connection of an entry.
func clientAddr[K, V any, KP connKey[K], VP connValue[K, V]](k KP, v VP) netip.Addr {
	if v.meta().Flags&ctReply == 0 {
		return k.tuple().Source.Addr()
	}
	other := v.twin((*K)(k))
	return KP(&other).tuple().Source.Addr()
}
