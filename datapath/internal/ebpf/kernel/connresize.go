// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
)

// A table of connections is resized while programs use it. The segments of the larger of both sizes
// exist until the end; ct_size has both sizes. Each entry that belongs to another segment now is
// copied there first; then a grace period passes, after which all programs find the copy; then what
// programs have changed meanwhile in the original is changed in the copy, and the original is
// removed. An interrupted change is continued by the next run: an entry is where it belongs, or
// where it belonged before, or both.

// ErrNoPlace means that entries of a table of connections have no place in its new size yet.
// Programs find them nevertheless; Resize continues.
var ErrNoPlace = errors.New("some connections find no place in the new size of the table")

// ConnTable is the connection table of one family, as to its size.
type ConnTable interface {
	// Segments returns the number of segments, a power of two, and whether a change is under way.
	Segments() (n uint32, changing bool)
	// SegmentCapacity returns the number of connections for which a segment is made.
	SegmentCapacity() uint32
	// SegmentBlocks and SegmentBytes return the number of blocks of a segment, and its size.
	SegmentBlocks() uint32
	SegmentBytes() uint64
	// Fill returns the fraction of the places that are taken, estimated from that many blocks.
	Fill(blocks uint32) float64
	// Resize doubles or halves the number of segments, or continues such a change; doubling ends
	// halving that is under way. Connections must not be walked or deleted at the same time by this
	// process.
	Resize(double bool) error
}

// Segments implements [ConnTable].
func (t *connTable[B, E, K, V, BP, EP]) Segments() (n uint32, changing bool) {
	now, before := t.counts()
	return now, now != before
}

// SegmentCapacity implements [ConnTable].
func (t *connTable[B, E, K, V, BP, EP]) SegmentCapacity() uint32 {
	return ConnCapacity(t.blocks * ConnBlock)
}

// SegmentBlocks implements [ConnTable].
func (t *connTable[B, E, K, V, BP, EP]) SegmentBlocks() uint32 { return t.blocks }

// SegmentBytes implements [ConnTable].
func (t *connTable[B, E, K, V, BP, EP]) SegmentBytes() uint64 {
	return uint64(t.blocks) * uint64(unsafe.Sizeof(*new(B)))
}

// Fill implements [ConnTable].
func (t *connTable[B, E, K, V, BP, EP]) Fill(blocks uint32) float64 {
	now, _ := t.counts()
	all := now * t.blocks
	n := min(all, blocks)
	used := 0
	for i := range n {
		i = uint32(uint64(i) * uint64(all) / uint64(n)) // the same ones each time: two estimates are comparable
		used += bits.OnesCount64(atomic.LoadUint64(t.used(t.index(i * ConnBlock))))
	}
	return float64(used) / float64(n*ConnBlock)
}

// Resize implements [ConnTable].
func (t *connTable[B, E, K, V, BP, EP]) Resize(double bool) error {
	now, before := t.counts()
	if now < before && double { // all segments still exist
		now, before = before, now
		t.setCounts(now, before)
	}
	if now == before {
		if now /= 2; double {
			now = 2 * before
		}
		if now == 0 || now > ConnSegments {
			return nil
		}
		if err := t.begin(now, before); err != nil {
			return err
		}
	}
	t.store.synchronize() // no program inserts where entries belonged before
	left := 0
	for segment := range max(now, before) {
		n, err := t.moveAll(segment)
		if err != nil {
			return err
		}
		left += n
	}
	if left > 0 {
		return ErrNoPlace
	}
	if err := Step("end change of size", func() error { t.setCounts(now, now); return nil }); err != nil || now > before {
		return err
	}
	t.store.synchronize()
	for i := before - 1; i >= now; i-- {
		if err := Step("remove segment", func() error { return t.store.remove(i) }); err != nil {
			return err
		}
	}
	return nil
}

// begin begins a change of the number of segments.
func (t *connTable[B, E, K, V, BP, EP]) begin(now, before uint32) error {
	for i := before; i < now; i++ {
		if err := Step("create segment", func() error { return t.open(i) }); err != nil {
			for j := before; j <= i; j++ {
				err = errors.Join(err, t.store.remove(j))
			}
			return err
		}
	}
	return Step("begin change of size", func() error { t.setCounts(now, before); return nil })
}

func (t *connTable[B, E, K, V, BP, EP]) setCounts(now, before uint32) {
	atomic.StoreUint32(t.size, (now-1)<<segmentShift|(before-1)<<segmentShift<<16)
}

// moveBatch is the number of entries that are copied before the next grace period.
const moveBatch = 1 << 15

// moved is an entry that was copied.
type moved[E any] struct {
	from, to uint32 // indexes
	entry    E      // as copied
	more     CtMore
	merged   bool // an interrupted run copied it
}

// moveAll moves the entries of a segment that belong to another one. It returns the number of
// entries that found no place.
func (t *connTable[B, E, K, V, BP, EP]) moveAll(segment uint32) (left int, err error) {
	batch := make([]moved[E], 0, 1024)
	for block := uint32(0); block < t.blocks; {
		batch = batch[:0]
		t.moving.Lock()
		for ; block < t.blocks && len(batch) < moveBatch; block++ {
			first := block<<blockShift | segment<<segmentShift
			for used := atomic.LoadUint64(t.used(first)); used != 0; used &= used - 1 {
				m := moved[E]{from: first + uint32(bits.TrailingZeros64(used))}
				moves, placed := t.copyEntry(&m)
				if moves && !placed { // a program has added one at once, and both gave way
					moves, placed = t.copyEntry(&m)
				}
				if placed {
					batch = append(batch, m)
				} else if moves {
					left++
				}
			}
		}
		t.moving.Unlock()
		if len(batch) == 0 {
			continue
		}
		if err := AtStep("remove moved connections"); err != nil {
			return left, err
		}
		t.store.synchronize() // all programs find the copies
		t.moving.Lock()
		for i := range batch {
			if !t.moveEnds(&batch[i]) {
				left++
			}
		}
		t.moving.Unlock()
	}
	return left, nil
}

// copyEntry copies the entry at m.from to where it belongs: moves reports whether it belongs
// elsewhere, and placed whether there is a copy.
func (t *connTable[B, E, K, V, BP, EP]) copyEntry(m *moved[E]) (moves, placed bool) {
	e := t.at(m.from)
	tail := atomic.LoadUint64(e.parts().tail)
	if tail == 0 {
		return false, false
	}
	m.entry, m.more = *(*E)(e), *t.more(m.from)
	if *EP(&m.entry).parts().tail != tail || atomic.LoadUint64(e.parts().tail) != tail {
		return false, false // removed meanwhile
	}
	k := EP(&m.entry).key()
	h := t.homes(&k)
	if h.moves = 0; (h.first^m.from)&segmentBits == 0 {
		return false, false
	}
	if m.to, m.merged = t.locateAt(h, &k, -1); m.merged {
		return true, true
	}
	var ok bool
	if m.to, ok = t.takeCorresponding(h, m.from); !ok {
		return true, false
	}
	var v V
	EP(&m.entry).read(&v, &m.more)
	t.at(m.to).write(&v, t.more(m.to))
	err := t.add(h, m.to, &k)
	if errors.Is(err, ebpf.ErrKeyExist) {
		m.to, m.merged = t.locateAt(h, &k, -1)
		return true, m.merged
	}
	return true, err == nil
}

// takeCorresponding takes a place for the copy of the entry at from: in the block of the same
// number, if possible, so that a walk reads each entry once.
func (t *connTable[B, E, K, V, BP, EP]) takeCorresponding(h connHomes, from uint32) (uint32, bool) {
	home := h.first
	if (from^h.first)>>blockShift != 0 {
		home = h.second
	}
	for _, rested := range []bool{true, false} {
		if i, ok := t.claim(home, rested); ok {
			return i, true
		}
	}
	return t.takePlace(h.first, h.second)
}

// moveEnds removes the original of a copied entry, after a grace period; false: it must be copied
// again.
func (t *connTable[B, E, K, V, BP, EP]) moveEnds(m *moved[E]) bool {
	k := EP(&m.entry).key()
	here, there := t.is(m.from, &k), t.is(m.to, &k)
	switch {
	case here && there && !m.merged:
		t.merge(m)
	case here && !there && t.isAnew(m):
		return false // a program has removed the copy, found the original, and used it for a new connection
	case !here && there && !m.merged:
		// A program that did not find the copy yet has removed the connection.
		if c, was := t.at(m.to).parts().meta, EP(&m.entry).parts().meta; c.PacketCount == was.PacketCount && *t.more(m.to) == m.more {
			t.remove(m.to, &k)
		}
	}
	if here {
		t.remove(m.from, &k)
	}
	return true
}

// isAnew reports whether the original of a copied entry was written anew.
func (t *connTable[B, E, K, V, BP, EP]) isAnew(m *moved[E]) bool {
	from, was := t.at(m.from), EP(&m.entry)
	return *t.more(m.from) != m.more || !from.leavesAs(&m.entry) || from.parts().meta.PacketCount < was.parts().meta.PacketCount
}

// merge changes in the copy of an entry what programs have changed in the original since it was
// copied, before they found the copy.
func (t *connTable[B, E, K, V, BP, EP]) merge(m *moved[E]) {
	from, to, was := t.at(m.from), t.at(m.to), EP(&m.entry)
	if t.isAnew(m) {
		var v V
		from.read(&v, t.more(m.from))
		to.write(&v, t.more(m.to))
		return
	}
	f, o, w := from.parts().meta, to.parts().meta, was.parts().meta
	if packets := f.PacketCount - w.PacketCount; packets != 0 {
		atomic.AddUint64(&o.ByteCount, f.ByteCount-w.ByteCount)
		if sum := o.PacketCount + packets; sum < packets {
			o.PacketCountHigh++
		}
		atomic.AddUint32(&o.PacketCount, packets)
	}
	if int32(f.LastSeenTick-o.LastSeenTick) > 0 {
		atomic.StoreUint32(&o.LastSeenTick, f.LastSeenTick)
	}
	follow(&o.TcpAck, f.TcpAck, w.TcpAck)
	follow(wordAt(&o.TcpWindow), *wordAt(&f.TcpWindow), *wordAt(&w.TcpWindow)) // and the state
	follow(wordAt(&o.Nexthop), *wordAt(&f.Nexthop), *wordAt(&w.Nexthop))       // and the port
	changed := uint32(f.Flags ^ w.Flags)
	atomic.OrUint32(wordAt(&o.Flags), changed&uint32(f.Flags))
	atomic.AndUint32(wordAt(&o.Flags), ^(changed &^ uint32(f.Flags)))
}

// follow sets those bytes of a word that were changed to their new values, if they still have the
// old ones.
func follow(word *uint32, now, was uint32) {
	for now != was {
		old := atomic.LoadUint32(word)
		next := old
		for mask := uint32(0xff); mask != 0; mask <<= 8 {
			if (now^was)&mask != 0 && (old^was)&mask == 0 {
				next = next&^mask | now&mask
			}
		}
		if atomic.CompareAndSwapUint32(word, old, next) {
			return
		}
	}
}

// wordAt returns the word of struct ct_meta that begins with a field.
func wordAt(field *uint16) *uint32 { return (*uint32)(unsafe.Pointer(field)) }
