// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math/bits"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
)

// MaxEntries implements [bpfmap.Store].
func (t *connTable[B, E, K, V, BP, EP]) MaxEntries() uint32 { return t.count() * t.blocks * ConnBlock }

// walkStride is the number of positions of a cursor in the blocks of one number.
const walkStride = ConnSegments * ConnBlock

// BatchLookup implements [bpfmap.Store]. The blocks with the same number in all segments are read
// together: entries move only between these, nearly always. So each entry that exists during a walk
// is read once, also if the number of segments changes.
func (t *connTable[B, E, K, V, BP, EP]) BatchLookup(cursor *bpfmap.Cursor, keys, values any) (n int, err error) {
	ks, vs := keys.([]K), values.([]V)
	for block := cursor.Next / walkStride; block < int(t.blocks); block++ {
		read, rest := t.readBlocks(uint32(block), cursor.Next%walkStride, ks[n:], vs[n:], n > 0)
		if n += read; rest != 0 {
			cursor.Next = block*walkStride + rest%walkStride
			return n, nil
		}
		cursor.Next = (block + 1) * walkStride
	}
	return n, ebpf.ErrKeyNotExist
}

// readBlocks reads the entries of the blocks of one number, from a position in them. If there is no
// room for all, it reads none if whole is set, and returns the position of the next entry; a stride
// stands for the first position.
func (t *connTable[B, E, K, V, BP, EP]) readBlocks(block uint32, from int, ks []K, vs []V, whole bool) (n, rest int) {
	t.moving.Lock() // else an entry might be read in both places, or in neither
	defer t.moving.Unlock()
	now, before := t.counts()
	var used [ConnSegments]uint64
	all := 0
	for segment := range max(now, before) {
		used[segment] = atomic.LoadUint64(t.used(block<<blockShift | segment<<segmentShift))
		all += bits.OnesCount64(used[segment])
	}
	if all > len(ks) && whole {
		return 0, walkStride
	}
	for position := from; position < int(max(now, before))*ConnBlock; position++ {
		segment, slot := uint32(position/ConnBlock), uint32(position%ConnBlock)
		if used[segment]>>slot == 0 {
			position += ConnBlock - 1 - int(slot) // no more in this segment
			continue
		}
		i := block<<blockShift | segment<<segmentShift | slot
		if used[segment]>>slot&1 == 0 || now != before && t.isCopied(i) {
			continue
		}
		if n == len(ks) {
			return n, position
		}
		if t.get(i, &ks[n], &vs[n]) {
			n++
		}
	}
	return n, 0
}

// isCopied reports whether the entry at i belongs to another segment, and has a copy there.
func (t *connTable[B, E, K, V, BP, EP]) isCopied(i uint32) bool {
	k := t.at(i).key()
	h := t.homes(&k)
	if (h.first^i)&segmentBits == 0 {
		return false
	}
	h.moves = 0
	_, copied := t.locateAt(h, &k, -1)
	return copied
}

// BatchUpdate implements [bpfmap.Store].
func (t *connTable[B, E, K, V, BP, EP]) BatchUpdate(keys, values any) error {
	ks, vs := keys.([]K), values.([]V)
	for i := range ks {
		if err := t.Update(&ks[i], &vs[i], ebpf.UpdateAny); err != nil {
			return err
		}
	}
	return nil
}

// Iterate implements [bpfmap.Store].
func (t *connTable[B, E, K, V, BP, EP]) Iterate() bpfmap.Iterating {
	return &connIterator[B, E, K, V, BP, EP]{table: t}
}

type connIterator[B, E any, K comparable, V any, BP connBlock[B, E], EP connEntry[E, K, V]] struct {
	table *connTable[B, E, K, V, BP, EP]
	next  uint32
}

func (i *connIterator[B, E, K, V, BP, EP]) Next(key, value any) bool {
	for n := i.table.MaxEntries(); i.next < n; {
		i.next++
		if i.table.get(i.table.index(i.next-1), key.(*K), value.(*V)) {
			return true
		}
	}
	return false
}

func (i *connIterator[B, E, K, V, BP, EP]) Err() error { return nil }
