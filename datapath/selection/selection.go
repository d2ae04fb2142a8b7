// SPDX-License-Identifier: Apache-2.0

// Package selection fills the tables with which a data plane selects a backend for a new
// connection: it converts weights to slots. It does not depend on services, the state of backends,
// or the storage of tables.
//
// Nodes agree without communication: the result depends on the addresses and weights of the
// backends and the size of the table, not on the order of the list.
package selection

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"sync"
)

// Weighted is one backend with its weight.
type Weighted struct {
	Addr   netip.AddrPort
	Weight uint16 // share of the slots; 0: none
}

// None is in every slot of a table in which no backend has a share.
const None = math.MaxUint32

// Maglev fills dst with indexes into backends by consistent hashing, as in Eisenbud et al.,
// "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, section 3.4: a backend's
// share of the slots is its share of the weights, to within one or two slots, and when a backend is
// added or removed, few slots of other backends change. dst should have prime length, at least 100
// times the length of backends (datapath.SlotCount); tables of different length have nothing in
// common. A backend whose share is less than half a slot gets no slot.
//
// Safe for concurrent use.
func Maglev(dst []uint32, backends []Weighted) {
	t := takeTurns(backends)
	defer t.release()
	fill(dst, None)
	if len(t.turns) == 0 || len(dst) == 0 {
		return
	}
	size := uint32(len(dst))
	t.walks = slices.Grow(t.walks[:0], len(t.turns))[:len(t.turns)]
	for i, turn := range t.turns {
		t.walks[i] = newWalk(backends[turn.index].Addr, size)
	}
	for range dst {
		turn := t.next()
		walk := &t.walks[turn.order]
		for dst[walk.slot] != None {
			walk.step(size)
		}
		dst[walk.slot] = turn.index
	}
}

// Proportional fills dst with interleaved indexes into backends: in any part of dst each backend
// has approximately its share of the weights, and in the whole of dst its share to within one or
// two slots. Read in order, dst is a weighted round-robin; read at random, a weighted random
// choice. dst may have any length; a multiple of the sum of the weights makes the shares exact.
//
// Safe for concurrent use.
func Proportional(dst []uint32, backends []Weighted) {
	t := takeTurns(backends)
	defer t.release()
	if len(t.turns) == 0 {
		fill(dst, None)
		return
	}
	for i := range dst {
		dst[i] = t.next().index
	}
}

func fill(dst []uint32, value uint32) {
	for i := range dst {
		dst[i] = value
	}
}

// walk is a backend's permutation of the slots: its preferences, in order.
type walk struct{ slot, skip uint32 }

func newWalk(addr netip.AddrPort, size uint32) walk {
	h := hash(addr)
	w := walk{slot: uint32((h >> 32) % uint64(size)), skip: 1}
	if size > 1 {
		w.skip = uint32(h&math.MaxUint32)%(size-1) + 1
	}
	// Only a step that is coprime to the size visits every slot. With a prime size, every step is.
	for gcd(w.skip, size) != 1 {
		w.skip++
	}
	return w
}

func (w *walk) step(size uint32) {
	w.slot += w.skip
	if w.slot >= size {
		w.slot -= size
	}
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// hash is FNV-1a over the 16 bytes of the address and the port, with the finalizer of splitmix64 to
// spread it over all bits. It must never change, because nodes with different versions must agree.
func hash(addr netip.AddrPort) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, b := range addr.Addr().As16() {
		h = (h ^ uint64(b)) * prime
	}
	h = (h ^ uint64(addr.Port()>>8)) * prime
	h = (h ^ uint64(addr.Port()&0xff)) * prime
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// turn is the next turn of one backend. Turns are due at (2k+1)/(2*weight) for k = 0, 1, …, which
// is Webster's method of apportioning seats among parties: shares are right at every length, and
// equal weights simply alternate.
type turn struct {
	due    uint64 // 2k+1
	weight uint64
	order  uint32 // position by address; breaks ties
	index  uint32 // in the caller's list
}

func (a turn) before(b turn) bool {
	x, y := a.due*b.weight, b.due*a.weight
	return x < y || x == y && a.order < b.order
}

// turns is a queue of turns, the next one first; a binary heap if weights differ. Its buffers are
// reused.
type turns struct {
	turns  []turn
	walks  []walk
	equal  bool // all weights are equal: turns are cyclic, at is the next one
	at     int
	sorted []uint32
}

var pool = sync.Pool{New: func() any { return new(turns) }}

func (t *turns) release() { pool.Put(t) }

func takeTurns(backends []Weighted) *turns {
	t := pool.Get().(*turns)
	t.turns, t.sorted, t.equal, t.at = t.turns[:0], t.sorted[:0], true, 0
	for i := range backends {
		if backends[i].Weight > 0 {
			t.sorted = append(t.sorted, uint32(i))
		}
	}
	slices.SortFunc(t.sorted, func(a, b uint32) int {
		x, y := &backends[a], &backends[b]
		return cmp.Or(x.Addr.Compare(y.Addr), cmp.Compare(x.Weight, y.Weight), cmp.Compare(a, b))
	})
	for order, index := range t.sorted {
		weight := uint64(backends[index].Weight)
		t.turns = append(t.turns, turn{due: 1, weight: weight, order: uint32(order), index: index})
		t.equal = t.equal && weight == t.turns[0].weight
	}
	for i := len(t.turns)/2 - 1; i >= 0 && !t.equal; i-- {
		t.sink(i)
	}
	return t
}

// next removes and returns the next turn, and adds the following turn of that backend.
func (t *turns) next() turn {
	if t.equal {
		turn := t.turns[t.at]
		if t.at++; t.at == len(t.turns) {
			t.at = 0
		}
		return turn
	}
	turn := t.turns[0]
	t.turns[0].due += 2
	t.sink(0)
	return turn
}

// sink restores the order of the heap if only the turn at i may be out of place.
func (t *turns) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(t.turns); child++ {
			if t.turns[child].before(t.turns[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		t.turns[i], t.turns[least] = t.turns[least], t.turns[i]
		i = least
	}
}
