// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
)

// A Segmented is an array of the programs that consists of segments: arrays in an outer array, mapped
// into memory, which are created when an entry of theirs is first set. They are not removed. It is
// safe for concurrent use; entries are read and written word by word.
type Segmented struct {
	outer *ebpf.Map
	inner *ebpf.MapSpec
	limit uint32 // number of entries that it may have

	create sync.Mutex
	memory []atomic.Pointer[byte] // of each segment; nil: it does not exist
	ids    []ebpf.MapID           // of the segments; set before memory
}

// OpenSegmented maps the segments of outer, whose segments are created as in inner, and creates the
// first one if it does not exist. The caller closes the result, before outer.
func OpenSegmented(outer *ebpf.Map, inner *ebpf.MapSpec, limit uint32) (*Segmented, error) {
	s := &Segmented{outer: outer, inner: inner.Copy(), limit: limit}
	s.memory, s.ids = make([]atomic.Pointer[byte], outer.MaxEntries()), make([]ebpf.MapID, outer.MaxEntries())
	s.inner.Name = "ll_segment"
	for i := range uint32(len(s.memory)) {
		m, err := segmentAt(outer, i)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err == nil {
			_, err = s.mapSegment(i, m)
			m.Close() // outer holds it
		}
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	if _, err := s.open(0); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close unmaps the segments.
func (s *Segmented) Close() (err error) {
	for i := range s.memory {
		if at := s.memory[i].Swap(nil); at != nil {
			err = errors.Join(err, unix.MunmapPtr(unsafe.Pointer(at), s.bytes()))
		}
	}
	return err
}

func (s *Segmented) bytes() uintptr { return uintptr(s.inner.MaxEntries) * uintptr(s.inner.ValueSize) }

func (s *Segmented) mapSegment(segment uint32, m *ebpf.Map) (unsafe.Pointer, error) {
	if m.MaxEntries() != s.inner.MaxEntries || m.ValueSize() != s.inner.ValueSize {
		return nil, fmt.Errorf("segment %d of %s has %d entries of %d bytes, want %d of %d",
			segment, s.outer, m.MaxEntries(), m.ValueSize(), s.inner.MaxEntries, s.inner.ValueSize)
	}
	info, err := m.Info()
	if err != nil {
		return nil, err
	}
	s.ids[segment], _ = info.ID() // 0 before Linux 4.13
	at, err := unix.MmapPtr(m.FD(), 0, nil, s.bytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("segment %d of %s in memory: %w", segment, s.outer, err)
	}
	s.memory[segment].Store((*byte)(at))
	return at, nil
}

// open returns the memory of a segment, which it creates if it does not exist.
func (s *Segmented) open(segment uint32) (unsafe.Pointer, error) {
	s.create.Lock()
	defer s.create.Unlock()
	if at := s.memory[segment].Load(); at != nil {
		return unsafe.Pointer(at), nil
	}
	m, err := ebpf.NewMap(s.inner)
	if err != nil {
		return nil, fmt.Errorf("another segment of %s: %w", s.outer, err)
	}
	defer m.Close() // outer holds it
	at, err := s.mapSegment(segment, m)
	if err != nil {
		return nil, err
	}
	if err := s.outer.Put(segment, m); err != nil {
		s.memory[segment].Store(nil)
		return nil, errors.Join(fmt.Errorf("another segment of %s: %w", s.outer, err), unix.MunmapPtr(at, s.bytes()))
	}
	return at, nil
}

// restore inserts the segments of entries into the outer array again, if another program has removed
// them from there, and reports whether it had to.
func (s *Segmented) restore(indexes iter.Seq[uint32]) (restored bool, err error) {
	last := uint32(math.MaxUint32)
	for i := range indexes {
		segment := i / s.inner.MaxEntries
		if segment == last || s.at(i) == nil {
			continue
		}
		last = segment
		was, e := s.restoreSegment(segment)
		restored, err = restored || was, errors.Join(err, e)
	}
	return restored, err
}

func (s *Segmented) restoreSegment(segment uint32) (bool, error) {
	var id uint32
	err := s.outer.Lookup(segment, &id)
	if err == nil && ebpf.MapID(id) == s.ids[segment] || err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, err
	}
	m, err := ebpf.NewMapFromID(s.ids[segment]) // it exists as long as it is mapped
	if err != nil {
		return false, fmt.Errorf("segment %d of %s: %w", segment, s.outer, err)
	}
	defer m.Close() // outer holds it
	return true, s.outer.Put(segment, m)
}

// at returns the memory of an entry, or nil if its segment does not exist.
func (s *Segmented) at(index uint32) unsafe.Pointer {
	segment := index / s.inner.MaxEntries
	if segment >= uint32(len(s.memory)) {
		return nil
	}
	memory := s.memory[segment].Load()
	if memory == nil {
		return nil
	}
	return unsafe.Add(unsafe.Pointer(memory), uintptr(index%s.inner.MaxEntries)*uintptr(s.inner.ValueSize))
}

// partOf is a part of the entries of a [Segmented], as a map with values of type V: an array, whose
// entries outside the segments are zero. V consists of words of 4 or 8 bytes.
type partOf[V any] struct {
	*Segmented
	offset uintptr
}

var _ bpfmap.Store = partOf[uint32]{}

// copyWords copies a value of n bytes word by word; numbers of 8 bytes whole.
func copyWords(to, from unsafe.Pointer, n uintptr) {
	if (uintptr(to)|uintptr(from)|n)%8 == 0 {
		for i := uintptr(0); i < n; i += 8 {
			atomic.StoreUint64((*uint64)(unsafe.Add(to, i)), atomic.LoadUint64((*uint64)(unsafe.Add(from, i))))
		}
		return
	}
	for i := uintptr(0); i < n; i += 4 {
		atomic.StoreUint32((*uint32)(unsafe.Add(to, i)), atomic.LoadUint32((*uint32)(unsafe.Add(from, i))))
	}
}

// Lookup implements [bpfmap.Store].
func (p partOf[V]) Lookup(key, value any) error {
	i, to := *key.(*uint32), value.(*V)
	at := p.at(i)
	switch {
	case at != nil:
		copyWords(unsafe.Pointer(to), unsafe.Add(at, p.offset), unsafe.Sizeof(*to))
	case i >= p.limit:
		return ebpf.ErrKeyNotExist
	default:
		*to = *new(V)
	}
	return nil
}

// Update implements [bpfmap.Store]. The error is E2BIG for an entry beyond the limit, unless its
// segment exists.
func (p partOf[V]) Update(key, value any, flags ebpf.MapUpdateFlags) error {
	i, from := *key.(*uint32), value.(*V)
	at := p.at(i)
	switch {
	case flags&ebpf.UpdateNoExist != 0:
		return ebpf.ErrKeyExist // an array has all its entries
	case at == nil && i >= p.limit && flags&ebpf.UpdateExist != 0:
		return ebpf.ErrKeyNotExist
	case at == nil && i >= p.limit:
		return unix.E2BIG
	case at == nil:
		if _, err := p.open(i / p.inner.MaxEntries); err != nil {
			return err
		}
		at = p.at(i)
	}
	copyWords(unsafe.Add(at, p.offset), unsafe.Pointer(from), unsafe.Sizeof(*from))
	return nil
}

// Delete implements [bpfmap.Store]: entries of an array cannot be deleted.
func (p partOf[V]) Delete(any) error { return unix.EINVAL }

// BatchUpdate implements [bpfmap.Store].
func (p partOf[V]) BatchUpdate(keys, values any) error {
	k, v := keys.([]uint32), values.([]V)
	for i := range k {
		if err := p.Update(&k[i], &v[i], ebpf.UpdateAny); err != nil {
			return err
		}
	}
	return nil
}

// BatchLookup implements [bpfmap.Store]. Entries outside the segments are left out.
func (p partOf[V]) BatchLookup(cursor *bpfmap.Cursor, keys, values any) (n int, err error) {
	k, v := keys.([]uint32), values.([]V)
	for n < len(k) {
		i := uint32(cursor.Next)
		if i/p.inner.MaxEntries >= uint32(len(p.memory)) {
			return n, ebpf.ErrKeyNotExist
		}
		at := p.at(i)
		if at == nil {
			cursor.Next = int((i/p.inner.MaxEntries + 1) * p.inner.MaxEntries)
			continue
		}
		k[n] = i
		copyWords(unsafe.Pointer(&v[n]), unsafe.Add(at, p.offset), unsafe.Sizeof(v[n]))
		cursor.Next++
		n++
	}
	return n, nil
}

// Iterate implements [bpfmap.Store].
func (p partOf[V]) Iterate() bpfmap.Iterating { return &partIterator[V]{part: p} }

// MaxEntries implements [bpfmap.Store].
func (p partOf[V]) MaxEntries() uint32 { return p.limit }

type partIterator[V any] struct {
	part   partOf[V]
	cursor bpfmap.Cursor
}

func (i *partIterator[V]) Next(key, value any) bool {
	keys, values := make([]uint32, 1), make([]V, 1)
	n, _ := i.part.BatchLookup(&i.cursor, keys, values) // the only error is the end
	if n == 0 {
		return false
	}
	*key.(*uint32), *value.(*V) = keys[0], values[0]
	return true
}

func (i *partIterator[V]) Err() error { return nil }
