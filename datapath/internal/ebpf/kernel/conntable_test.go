// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// newTestTable returns a table of IPv4 in memory that no program shares.
func newTestTable(blocks int) *testTable {
	t := &testTable{size: new(uint32), blocks: uint32(blocks), store: &testSegments{blocks: blocks}}
	for i := range t.hash {
		t.hash[i] = rand.Uint64()
	}
	if err := t.open(0); err != nil {
		panic(err)
	}
	return t
}

type testTable = connTable[Ct4Block, Ct4, Ct4Key, Ct4Val, *Ct4Block, *Ct4]

// testSegments are segments in memory.
type testSegments struct {
	blocks  int
	all     [ConnSegments][]Ct4Block
	between func() // called when programs that run now have ended
}

func (s *testSegments) open(segment uint32) (unsafe.Pointer, error) {
	if s.all[segment] == nil {
		s.all[segment] = make([]Ct4Block, s.blocks)
	}
	return unsafe.Pointer(&s.all[segment][0]), nil
}

func (s *testSegments) remove(segment uint32) error {
	for i := range s.all[segment] {
		if b := &s.all[segment][i]; b.Used != 0 {
			return fmt.Errorf("segment %d, block %d is removed with entries: %x", segment, i, b.Used)
		}
	}
	clear(s.all[segment])
	return nil
}

func (s *testSegments) synchronize() {
	if s.between != nil {
		s.between()
	}
}

func (s *testSegments) Close() error { return nil }

// TestConnTable: whatever is added and removed, each entry is found once, with its value, and only
// under its key; four fifths of the places can always be taken, however the tuples look.
func TestConnTable(t *testing.T) {
	spec, err := LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]uintptr{MapLlCt4: unsafe.Sizeof(Ct4Block{}), MapLlCt6: unsafe.Sizeof(Ct6Block{})} {
		if s := spec.Maps[name].InnerMap; uintptr(s.ValueSize) != size {
			t.Errorf("%s has values of %d bytes, here %d", name, s.ValueSize, size)
		}
	}
	for _, blocks := range []int{1, 2, 7, 100} {
		table := newTestTable(blocks)
		want := map[Ct4Key]uint32{}
		key := func() Ct4Key {
			n := rand.Uint32N(uint32(blocks) * ConnBlock * 2)
			return Ct4Key{Saddr: 10 | n>>4<<8, Daddr: 1, Sport: uint16(n & 15), Dport: 80, Proto: 6}
		}
		full := 0
		for range blocks * 5000 {
			k, id := key(), rand.Uint32()
			switch _, exists := want[k]; {
			case exists && rand.IntN(8) == 0:
				if err := table.Delete(&k); err != nil {
					t.Fatal(err)
				}
				delete(want, k)
			default:
				err := table.Update(&k, &Ct4Val{Meta: CtMeta{BackendId: id}}, ebpf.UpdateNoExist)
				if exists != errors.Is(err, ebpf.ErrKeyExist) {
					t.Fatalf("exists %t: %v", exists, err)
				}
				if errors.Is(err, unix.E2BIG) {
					if full++; len(want) < blocks*ConnBlock*8/10 {
						t.Fatalf("full with %d entries in %d blocks", len(want), blocks)
					}
				} else if !exists {
					want[k] = id
				}
			}
			k = key()
			var v Ct4Val
			err := table.Lookup(&k, &v)
			if id, exists := want[k]; exists != (err == nil) || v.Meta.BackendId != id {
				t.Fatalf("%+v: %d (%v), want %d, %t", k, v.Meta.BackendId, err, id, exists)
			}
		}
		if full == 0 {
			t.Errorf("%d blocks: never full", blocks)
		}
		var k Ct4Key
		var v Ct4Val
		for it := table.Iterate(); it.Next(&k, &v); delete(want, k) {
			if id, exists := want[k]; !exists || id != v.Meta.BackendId {
				t.Errorf("listed: %+v %d, want %d, %t", k, v.Meta.BackendId, id, exists)
			}
		}
		if len(want) > 0 {
			t.Errorf("%d entries are not listed", len(want))
		}
	}
}

// TestInsertLasting: inserting a lasting connection replaces a half-open one that was copied before,
// and nothing else.
func TestInsertLasting(t *testing.T) {
	table := newTestTable(1)
	insert := func(flags uint16, id uint32) error {
		e := Ct4{Key: Ct4Key{Saddr: 10, Daddr: 1, Proto: 6}}
		e.Meta.Flags = flags
		m := CtMore{BackendId: id}
		return table.Insert(unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e)), unsafe.Slice((*byte)(unsafe.Pointer(&m)), unsafe.Sizeof(m)))
	}
	for i, c := range []struct {
		flags uint16
		want  uint32
	}{{0, 1}, {0, 1}, {CtLasting, 3}, {CtLasting, 3}, {0, 3}} {
		if err := insert(c.flags, uint32(i+1)); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			t.Fatal(err)
		}
		k, v := Ct4Key{Saddr: 10, Daddr: 1, Proto: 6}, Ct4Val{}
		if err := table.Lookup(&k, &v); err != nil || v.Meta.BackendId != c.want {
			t.Errorf("after %d entries: backend %d, %v, want %d", i+1, v.Meta.BackendId, err, c.want)
		}
	}
}

// TestConnBlocks: a table has room for its connections, and an eighth more.
func TestConnBlocks(t *testing.T) {
	for n := uint32(1); n < 1<<22; n += 1 + n/9 {
		entries := uint64(ConnBlocks(n)) * ConnBlock
		if capacity := ConnCapacity(uint32(entries)); entries < uint64(n)*9/4 || capacity < n || n > 100 && capacity > n*11/10+32 {
			t.Errorf("%d connections: %d entries, for %d", n, entries, capacity)
		}
	}
}
