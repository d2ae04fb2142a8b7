// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
)

// ConnBlock is CT_BLOCK of ct_table.h: the number of entries of a block of the connection table.
const ConnBlock = 64

// ConnBlocks returns the number of blocks of a table for n connections: both entries of each, and an
// eighth more, so that new entries find a place near their home.
func ConnBlocks(n uint32) uint32 { return uint32(max(1, (uint64(n)*36+1023)/1024)) }

// ConnCapacity is the number of connections for which a table with that many entries was made.
func ConnCapacity(entries uint32) uint32 { return uint32(uint64(entries) * 4 / 9) }

// The links of a chain, as in ct_table.h.
const (
	chainLinks     = 5
	chainLinkBits  = 6
	chainElsewhere = 1 << 31
)

// connRest and connBlockBusy are CT_REST_TICKS and CT_BLOCK_BUSY of ct_table_put.h.
const (
	connRest      = 2
	connBlockBusy = 56
)

// connTable is the connection table of one family, in memory that the programs share. It is a
// [bpfmap.Store] whose entries are added and removed as in ct_table_put.h. B is the type of a block, E of an entry.
type connTable[B, E any, K comparable, V any, BP connBlock[B, E], EP connEntry[E, K, V]] struct {
	hash   ConnHash
	memory []byte // of blocks
	blocks []B
}

// connBlock is a block of either family.
type connBlock[B, E any] interface {
	*B
	entry(slot uint32) (*E, *CtMore)
	usedBits() *uint64
}

// connEntry is an entry of either family.
type connEntry[E, K, V any] interface {
	*E
	parts() connParts
	key() K
	setKey(*K) // except its last word
	read(*V, *CtMore)
	write(*V, *CtMore)
	way() (nexthop *uint16, netns uint8, to netip.Addr)
}

// connParts are the words of an entry that are read or written atomically.
type connParts struct {
	tail  *uint64 // the last word of the key; 0: the entry is not in use
	chain *uint32
	seen  *uint32 // last_seen_tick
}

// newConnTable maps the table of a family, the map of that name, into memory.
func newConnTable[B, E any, K comparable, V any, BP connBlock[B, E], EP connEntry[E, K, V]](maps map[string]*ebpf.Map, name string) (*connTable[B, E, K, V, BP, EP], error) {
	m := maps[name]
	if size := unsafe.Sizeof(*new(B)); uintptr(m.ValueSize()) != size {
		return nil, fmt.Errorf("map %s into memory: its values have %d bytes, want %d", m, m.ValueSize(), size)
	}
	b, err := unix.Mmap(m.FD(), 0, int(m.ValueSize())*int(m.MaxEntries()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s into memory: %w", m, err)
	}
	hash, err := connHashOf(maps[MapLlShares])
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(b))
	}
	return &connTable[B, E, K, V, BP, EP]{hash, b, unsafe.Slice((*B)(unsafe.Pointer(&b[0])), m.MaxEntries())}, nil
}

// Close unmaps the memory. The table must not be used any more.
func (t *connTable[B, E, K, V, BP, EP]) Close() error { return unix.Munmap(t.memory) }

func (t *connTable[B, E, K, V, BP, EP]) at(i uint32) EP {
	e, _ := BP(&t.blocks[i/ConnBlock]).entry(i % ConnBlock)
	return e
}

func (t *connTable[B, E, K, V, BP, EP]) more(i uint32) *CtMore {
	_, more := BP(&t.blocks[i/ConnBlock]).entry(i % ConnBlock)
	return more
}

func (t *connTable[B, E, K, V, BP, EP]) used(i uint32) *uint64 {
	return BP(&t.blocks[i/ConnBlock]).usedBits()
}

// homes returns ct_home and ct_home_elsewhere of a key.
func (t *connTable[B, E, K, V, BP, EP]) homes(k *K) (first, second uint32) {
	words := wordsOf(k)
	h := t.hash.of(words)
	return t.home(h), t.home(t.hash.end(h))
}

func (t *connTable[B, E, K, V, BP, EP]) home(h uint64) uint32 {
	return uint32(h>>32*uint64(len(t.blocks))>>32)*ConnBlock | uint32(h%ConnBlock)
}

// wordsOf returns the memory of a key in words. Keys have no padding.
func wordsOf[K any](k *K) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(k)), unsafe.Sizeof(*k)/8)
}

func (t *connTable[B, E, K, V, BP, EP]) is(i uint32, k *K) bool {
	e, words := t.at(i), wordsOf(k)
	return atomic.LoadUint64(e.parts().tail) == words[len(words)-1] && e.key() == *k
}

// search is ct_search; except is no entry's index if it is negative.
func (t *connTable[B, E, K, V, BP, EP]) search(home uint32, k *K, except int64) (uint32, bool) {
	if int64(home) != except && t.is(home, k) {
		return home, true
	}
	chain := atomic.LoadUint32(t.at(home).parts().chain)
	for i := range chainLinks {
		link := chain >> (i * chainLinkBits) % ConnBlock
		if at := home ^ link; link != 0 && int64(at) != except && t.is(at, k) {
			return at, true
		}
	}
	return 0, false
}

// locate is ct_locate.
func (t *connTable[B, E, K, V, BP, EP]) locate(k *K, except int64) (uint32, bool) {
	first, second := t.homes(k)
	if i, ok := t.search(first, k, except); ok {
		return i, true
	}
	if atomic.LoadUint32(t.at(first).parts().chain)&chainElsewhere == 0 {
		return 0, false
	}
	return t.search(second, k, except)
}

// get copies the entry at i, if it is in use all the time.
func (t *connTable[B, E, K, V, BP, EP]) get(i uint32, k *K, v *V) bool {
	e := t.at(i)
	tail := atomic.LoadUint64(e.parts().tail)
	if tail == 0 {
		return false
	}
	*k = e.key()
	e.read(v, t.more(i))
	return atomic.LoadUint64(e.parts().tail) == tail
}

// Lookup implements [bpfmap.Store].
func (t *connTable[B, E, K, V, BP, EP]) Lookup(key, value any) error {
	k := key.(*K)
	if i, ok := t.locate(k, -1); ok {
		var found K
		if t.get(i, &found, value.(*V)) && found == *k {
			return nil
		}
	}
	return ebpf.ErrKeyNotExist
}

// MaxEntries implements [bpfmap.Store].
func (t *connTable[B, E, K, V, BP, EP]) MaxEntries() uint32 { return uint32(len(t.blocks) * ConnBlock) }

// BatchLookup implements [bpfmap.Store].
func (t *connTable[B, E, K, V, BP, EP]) BatchLookup(cursor *bpfmap.Cursor, keys, values any) (n int, err error) {
	ks, vs := keys.([]K), values.([]V)
	for ; cursor.Next < int(t.MaxEntries()); cursor.Next++ {
		i := uint32(cursor.Next)
		if cursor.Next%ConnBlock == 0 && atomic.LoadUint64(t.used(i)) == 0 {
			cursor.Next += ConnBlock - 1
			continue
		}
		if n == len(ks) {
			return n, nil
		}
		if t.get(i, &ks[n], &vs[n]) {
			n++
		}
	}
	return n, ebpf.ErrKeyNotExist
}

// claim is ct_claim.
func (t *connTable[B, E, K, V, BP, EP]) claim(home uint32, rested bool) (uint32, bool) {
	now := NowTick()
	used := t.used(home)
	places := uint32(ConnBlock)
	if _, ok := chainAdd(atomic.LoadUint32(t.at(home).parts().chain), 1); !ok {
		places = 1
	}
	for i := range places {
		bit := uint64(1) << ((home ^ i) % ConnBlock)
		if atomic.LoadUint64(used)&bit != 0 || rested && int32(now-atomic.LoadUint32(t.at(home^i).parts().seen)) < connRest {
			continue
		}
		if atomic.OrUint64(used, bit)&bit == 0 {
			return home ^ i, true
		}
	}
	return 0, false
}

// place takes a place in the block of either home, as conn_place.
func (t *connTable[B, E, K, V, BP, EP]) place(first, second uint32) (uint32, bool) {
	n, other := bits.OnesCount64(atomic.LoadUint64(t.used(first))), bits.OnesCount64(atomic.LoadUint64(t.used(second)))
	if n > connBlockBusy && other < n {
		first, second = second, first
	}
	for _, rested := range []bool{true, false} {
		for _, home := range []uint32{first, second} {
			if i, ok := t.claim(home, rested); ok {
				return i, true
			}
		}
	}
	return 0, false
}

// chainAdd is chain_add.
func chainAdd(chain, link uint32) (uint32, bool) {
	for i := range chainLinks {
		if chain>>(i*chainLinkBits)%ConnBlock == 0 {
			return chain | link<<(i*chainLinkBits), true
		}
	}
	return 0, false
}

// link is ct_link.
func (t *connTable[B, E, K, V, BP, EP]) link(i, home uint32) bool {
	chain := t.at(home).parts().chain
	for i != home {
		old := atomic.LoadUint32(chain)
		added, ok := chainAdd(old, i^home)
		if !ok {
			return false
		}
		if atomic.CompareAndSwapUint32(chain, old, added) {
			break
		}
	}
	return true
}

// Update implements [bpfmap.Store]. An entry that it overwrites must not change at the same time. It makes no
// room in a full table: the error is then E2BIG.
func (t *connTable[B, E, K, V, BP, EP]) Update(key, value any, flags ebpf.MapUpdateFlags) error {
	k, v := key.(*K), value.(*V)
	i, exists := t.locate(k, -1)
	switch {
	case exists && flags == ebpf.UpdateNoExist:
		return ebpf.ErrKeyExist
	case !exists && flags == ebpf.UpdateExist:
		return ebpf.ErrKeyNotExist
	case exists:
		t.at(i).write(v, t.more(i))
		return nil
	}
	first, second := t.homes(k)
	i, ok := t.place(first, second)
	if !ok {
		return unix.E2BIG
	}
	e := t.at(i)
	e.write(v, t.more(i))
	e.setKey(k)
	words := wordsOf(k)
	atomic.StoreUint64(e.parts().tail, words[len(words)-1])
	linked := first^i < ConnBlock && t.link(i, first)
	if !linked && second^i < ConnBlock {
		linked = t.link(i, second)
		atomic.OrUint32(t.at(first).parts().chain, chainElsewhere)
	}
	if _, twice := t.locate(k, int64(i)); twice || !linked {
		t.remove(i, k)
		if twice {
			return ebpf.ErrKeyExist
		}
		return unix.E2BIG
	}
	return nil
}

// remove is ct_remove.
func (t *connTable[B, E, K, V, BP, EP]) remove(i uint32, k *K) bool {
	p := t.at(i).parts()
	atomic.StoreUint32(p.seen, NowTick())
	if atomic.SwapUint64(p.tail, 0) == 0 {
		return false
	}
	first, second := t.homes(k)
	t.unlink(i, first)
	t.unlink(i, second)
	atomic.AndUint64(t.used(i), ^(uint64(1) << (i % ConnBlock)))
	return true
}

// unlink is chain_remove.
func (t *connTable[B, E, K, V, BP, EP]) unlink(i, home uint32) {
	chain, link := t.at(home).parts().chain, i^home
	for link != 0 && link < ConnBlock {
		old := atomic.LoadUint32(chain)
		left := old
		for j := range chainLinks {
			if old>>(j*chainLinkBits)%ConnBlock == link {
				left &^= (ConnBlock - 1) << (j * chainLinkBits)
			}
		}
		if atomic.CompareAndSwapUint32(chain, old, left) {
			return
		}
	}
}

// Delete implements [bpfmap.Store].
func (t *connTable[B, E, K, V, BP, EP]) Delete(key any) error {
	k := key.(*K)
	if i, ok := t.locate(k, -1); ok && t.remove(i, k) {
		return nil
	}
	return ebpf.ErrKeyNotExist
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
		if i.table.get(i.next-1, key.(*K), value.(*V)) {
			return true
		}
	}
	return false
}

func (i *connIterator[B, E, K, V, BP, EP]) Err() error { return nil }
