// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ConnBlock is CT_BLOCK of ct_table.h: the number of entries of a block of the connection table.
const ConnBlock = 64

// ConnSegments is CT_SEGMENTS of ct_table.h: the most segments of a connection table.
const ConnSegments = 64

// The parts of an index, as in ct_table.h.
const (
	segmentShift = 6
	segmentBits  = (ConnSegments - 1) << segmentShift
	blockShift   = 12
)

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
// [bpfmap.Store] whose entries are added and removed as in ct_table_put.h. B is the type of a
// block, E of an entry. The memory of a segment stays mapped after the segment was removed, since
// other goroutines may still read it.
type connTable[B, E any, K comparable, V any, BP connBlock[B, E], EP connEntry[E, K, V]] struct {
	hash     ConnHash
	size     *uint32 // the word of the family in struct ct_size
	blocks   uint32  // of a segment
	store    connSegments
	segments [ConnSegments][]B
	moving   sync.Mutex // held while entries are copied, or their copies removed
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
	leavesAs(*E) bool // both have the same leaving tuple
	way() (nexthop *uint16, netns uint8, to netip.Addr)
}

// connParts are the words of an entry that are read or written atomically.
type connParts struct {
	tail  *uint64 // the last word of the key; 0: the entry is not in use
	chain *uint32
	seen  *uint32 // last_seen_tick
	meta  *ctMeta
}

// newConnTable maps the table of a family, the map of that name, into memory.
func newConnTable[B, E any, K comparable, V any, BP connBlock[B, E], EP connEntry[E, K, V]](maps map[string]*ebpf.Map, name string) (*connTable[B, E, K, V, BP, EP], error) {
	hash, err := connHashOf(maps[MapLlShares])
	if err != nil {
		return nil, err
	}
	size, err := MapShared[CtSize](maps[MapLlCtSize])
	if err != nil {
		return nil, err
	}
	store, err := newSegmentMaps(maps[name], size, unsafe.Sizeof(*new(B)))
	if err != nil {
		return nil, errors.Join(err, size.Close())
	}
	t := &connTable[B, E, K, V, BP, EP]{hash: hash, size: &size.Value.Segments[familyIndex(name)], blocks: store.blocks, store: store}
	for i := range t.count() {
		if err := t.open(i); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

func familyIndex(name string) int {
	if name == MapLlCt6 {
		return 1
	}
	return 0
}

// open maps a segment into memory.
func (t *connTable[B, E, K, V, BP, EP]) open(segment uint32) error {
	at, err := t.store.open(segment)
	if err == nil {
		t.segments[segment] = unsafe.Slice((*B)(at), t.blocks)
	}
	return err
}

// Close unmaps the memory. The table must not be used any more.
func (t *connTable[B, E, K, V, BP, EP]) Close() error { return t.store.Close() }

// counts returns the number of segments, and the number before the change that is under way.
func (t *connTable[B, E, K, V, BP, EP]) counts() (now, before uint32) {
	word := atomic.LoadUint32(t.size)
	return word>>segmentShift&(ConnSegments-1) + 1, word>>16>>segmentShift&(ConnSegments-1) + 1
}

// count returns the number of segments that contain entries.
func (t *connTable[B, E, K, V, BP, EP]) count() uint32 { return max(t.counts()) }

// block returns the block of an index.
func (t *connTable[B, E, K, V, BP, EP]) block(i uint32) BP {
	return &t.segments[i>>segmentShift%ConnSegments][i>>blockShift]
}

func (t *connTable[B, E, K, V, BP, EP]) at(i uint32) EP {
	e, _ := t.block(i).entry(i % ConnBlock)
	return e
}

func (t *connTable[B, E, K, V, BP, EP]) more(i uint32) *CtMore {
	_, more := t.block(i).entry(i % ConnBlock)
	return more
}

func (t *connTable[B, E, K, V, BP, EP]) used(i uint32) *uint64 { return t.block(i).usedBits() }

// index returns the index of the nth place of the table, segment by segment.
func (t *connTable[B, E, K, V, BP, EP]) index(n uint32) uint32 {
	segment, place := n/(t.blocks*ConnBlock), n%(t.blocks*ConnBlock)
	return place/ConnBlock<<blockShift | segment<<segmentShift | place%ConnBlock
}

// connHomes are the homes of a key, and ct_moves of its hash.
type connHomes struct{ first, second, moves uint32 }

// homes is ct_homes.
func (t *connTable[B, E, K, V, BP, EP]) homes(k *K) connHomes {
	h, segments := t.hash.of(wordsOf(k)), atomic.LoadUint32(t.size)
	segment := uint32(h) & segments & segmentBits
	return connHomes{
		t.place(h) | segment, t.place(t.hash.end(h)) | segment,
		uint32(h) & (segments ^ segments>>16) & segmentBits,
	}
}

// place is ct_place.
func (t *connTable[B, E, K, V, BP, EP]) place(h uint64) uint32 {
	return uint32(h>>32*uint64(t.blocks)>>32)<<blockShift | uint32(h%ConnBlock)
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
	return t.locateAt(t.homes(k), k, except)
}

// locateAt is locate for a key with these homes.
func (t *connTable[B, E, K, V, BP, EP]) locateAt(h connHomes, k *K, except int64) (uint32, bool) {
	elsewhere := atomic.LoadUint32(t.at(h.first).parts().chain)&chainElsewhere != 0
	for i, home := range [...]uint32{h.first, h.second, h.first ^ h.moves, h.second ^ h.moves} {
		if i == 1 && !elsewhere && h.moves == 0 || i == 2 && h.moves == 0 {
			break
		}
		if at, ok := t.search(home, k, except); ok {
			return at, true
		}
	}
	return 0, false
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

// takePlace takes a place in the block of either home, as conn_place.
func (t *connTable[B, E, K, V, BP, EP]) takePlace(first, second uint32) (uint32, bool) {
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
	h := t.homes(k)
	i, ok := t.takePlace(h.first, h.second)
	if !ok {
		return unix.E2BIG
	}
	e := t.at(i)
	e.write(v, t.more(i))
	return t.add(h, i, k)
}

// add adds the entry at i, which is filled in except for its key, so that it can be found. If the
// key has another entry, or no link has room, it removes the entry again.
func (t *connTable[B, E, K, V, BP, EP]) add(h connHomes, i uint32, k *K) error {
	t.at(i).setKey(k)
	// The link first: an entry without it, after kill -9 in between, would be listed and never found.
	linked := h.first^i < ConnBlock && t.link(i, h.first)
	if !linked && h.second^i < ConnBlock {
		linked = t.link(i, h.second)
		atomic.OrUint32(t.at(h.first).parts().chain, chainElsewhere)
	}
	words := wordsOf(k)
	atomic.StoreUint64(t.at(i).parts().tail, words[len(words)-1])
	switch _, twice := t.locateAt(h, k, int64(i)); {
	case twice:
		t.remove(i, k)
		return ebpf.ErrKeyExist
	case !linked:
		t.remove(i, k)
		return unix.E2BIG
	}
	return nil
}

// remove is ct_remove.
func (t *connTable[B, E, K, V, BP, EP]) remove(i uint32, k *K) bool {
	p, words := t.at(i).parts(), wordsOf(k)
	if !atomic.CompareAndSwapUint64(p.tail, words[len(words)-1], 0) {
		return false // another connection has the place now
	}
	atomic.StoreUint32(p.seen, NowTick())
	h := t.hash.of(wordsOf(k))
	t.unlink(i, t.place(h)|i&segmentBits)
	t.unlink(i, t.place(t.hash.end(h))|i&segmentBits)
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
