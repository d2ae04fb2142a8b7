// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
)

// ConnInserter inserts entries into the connection table of one family.
type ConnInserter interface {
	// Insert inserts an entry, given as struct ct4 or ct6, and its struct ct_more. An entry that is
	// not in use is ignored. The error is [ebpf.ErrKeyExist] if its key has an entry, except that a
	// lasting one replaces a half-open one: it has become lasting since it was copied. The error is
	// E2BIG if the table is full.
	Insert(entry, more []byte) error
	Close() error
}

// OpenConnInserter opens the connection table that is the map of that name.
func OpenConnInserter(maps map[string]*ebpf.Map, name string) (ConnInserter, error) {
	if name == MapLlCt4 {
		return newConnTable[Ct4Block, Ct4, Ct4Key, Ct4Val](maps, name)
	}
	return newConnTable[Ct6Block, Ct6, Ct6Key, Ct6Val](maps, name)
}

// Insert implements [ConnInserter].
func (t *connTable[B, E, K, V, BP, EP]) Insert(entry, more []byte) error {
	var e E
	var m CtMore
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e)), entry)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&m)), unsafe.Sizeof(m)), more)
	if *EP(&e).parts().tail == 0 {
		return nil
	}
	k, v := EP(&e).key(), *new(V)
	EP(&e).read(&v, &m)
	err := t.Update(&k, &v, ebpf.UpdateNoExist)
	if old := new(V); errors.Is(err, ebpf.ErrKeyExist) && isLasting(&v) && t.Lookup(&k, old) == nil && !isLasting(old) {
		return t.Update(&k, &v, ebpf.UpdateExist)
	}
	return err
}

// setIdle sets the idle time in the entry of k. If the entry is replaced at the same time, the new one
// may get it: the next pass corrects it.
func (t *connTable[B, E, K, V, BP, EP]) setIdle(k *K, units uint16) {
	if i, ok := t.locate(k, -1); ok {
		t.more(i).Idle = units
	}
}

// forgetNexthops implements mappedTable. It reads only entries in use that have a next hop.
func (t *connTable[B, E, K, V, BP, EP]) forgetNexthops(netns uint8, to func(netip.Addr) bool) {
	t.moving.Lock() // else an entry might be copied before, and its copy missed
	defer t.moving.Unlock()
	for n := uint32(0); n < t.MaxEntries(); n += ConnBlock {
		first := t.index(n)
		for used := atomic.LoadUint64(t.used(first)); used != 0; used &= used - 1 {
			nexthop, in, addr := t.at(first + uint32(bits.TrailingZeros64(used))).way()
			if *nexthop != 0 && in == netns && addr.IsValid() && to(addr) {
				*nexthop = 0
			}
		}
	}
}

// isLasting reports whether the connection of a *Ct4Val or *Ct6Val is not half-open.
func isLasting(v any) bool {
	return v.(interface{ Common() *CtMeta }).Common().Flags&CtLasting != 0
}
