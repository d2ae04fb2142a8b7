// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// connSegments creates, maps and removes the segments of a connection table.
type connSegments interface {
	io.Closer
	// open creates a segment, if it does not exist, and returns its memory.
	open(segment uint32) (unsafe.Pointer, error)
	// remove removes a segment. Its memory can still be read, and contains no entries.
	remove(segment uint32) error
	// synchronize waits until all programs that run now have ended.
	synchronize()
}

// segmentMaps are segments in the map of a connection table.
type segmentMaps struct {
	table  *ebpf.Map
	size   *Shared[CtSize]
	blocks uint32  // of a segment
	bytes  uintptr // of its memory
	memory [ConnSegments]unsafe.Pointer
}

// newSegmentMaps returns the segments in the map of a table, whose blocks have size bytes. At least
// the first one must exist.
func newSegmentMaps(table *ebpf.Map, ctSize *Shared[CtSize], size uintptr) (*segmentMaps, error) {
	first, err := segmentAt(table, 0)
	if err != nil {
		return nil, err
	}
	defer first.Close() // nothing was written
	if uintptr(first.ValueSize()) != size {
		return nil, fmt.Errorf("map %s into memory: its blocks have %d bytes, want %d", table, first.ValueSize(), size)
	}
	n := size * uintptr(first.MaxEntries())
	return &segmentMaps{table: table, size: ctSize, blocks: first.MaxEntries(), bytes: n}, nil
}

// segmentAt returns a segment of a connection table; the error is [ebpf.ErrKeyNotExist] if it does
// not exist.
func segmentAt(table *ebpf.Map, segment uint32) (m *ebpf.Map, err error) {
	if err := table.Lookup(segment, &m); err != nil {
		return nil, fmt.Errorf("segment %d of %s: %w", segment, table, err)
	}
	return m, nil
}

// SegmentOf returns the first segment of a connection table. The caller closes it.
func SegmentOf(table *ebpf.Map) (*ebpf.Map, error) { return segmentAt(table, 0) }

// SegmentsOf returns the segments of a connection table. The caller closes them.
func SegmentsOf(table *ebpf.Map) (all []*ebpf.Map, err error) {
	for i := range uint32(ConnSegments) {
		m, err := segmentAt(table, i)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			CloseMaps(all)
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// CloseMaps closes file descriptors of maps; nil ones are ignored.
func CloseMaps(all []*ebpf.Map) {
	for _, m := range all {
		if m != nil {
			m.Close() // only closes a file descriptor
		}
	}
}

// segmentSpecs returns the specifications of segments, by family.
var segmentSpecs = sync.OnceValues(func() (specs [2]*ebpf.MapSpec, err error) {
	all, err := LoadExpirer()
	if err == nil {
		specs = [...]*ebpf.MapSpec{all.Maps[MapLlCt4].InnerMap, all.Maps[MapLlCt6].InnerMap}
	}
	return specs, err
})

// newSegment returns a new segment of a connection table with that many blocks; 0: as many as in
// maps.h.
func newSegment(name string, blocks uint32) (*ebpf.Map, error) {
	specs, err := segmentSpecs()
	if err != nil {
		return nil, err
	}
	inner := specs[familyIndex(name)].Copy()
	if inner.Name = name + "_segment"; blocks != 0 {
		inner.MaxEntries = blocks
	}
	return ebpf.NewMap(inner)
}

// touch reads the memory of a new segment through the kernel's mapping of it, which the programs use,
// so that no packet is the first to access a page: under some hypervisors that takes 10 to 30 us.
func touch(segment *ebpf.Map) error {
	block := make([]byte, segment.ValueSize())
	for i := range segment.MaxEntries() {
		if err := segment.Lookup(i, block); err != nil {
			return fmt.Errorf("read block %d of a new segment: %w", i, err)
		}
	}
	return nil
}

// removeSegments removes the segments from first on, which an interrupted change of size left
// unused.
func removeSegments(table *ebpf.Map, first uint32) error {
	for segment := first; segment < ConnSegments; segment++ {
		m, err := segmentAt(table, segment)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		m.Close() // only closes a file descriptor
		if err := table.Delete(segment); err != nil {
			return fmt.Errorf("remove segment %d of %s: %w", segment, table, err)
		}
	}
	return nil
}

func (s *segmentMaps) open(segment uint32) (unsafe.Pointer, error) {
	m, err := segmentAt(s.table, segment)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		info, err := s.table.Info()
		if err != nil {
			return nil, err
		}
		if m, err = newSegment(info.Name, s.blocks); err != nil {
			return nil, err
		}
		defer m.Close() // the table holds it
		if err := touch(m); err != nil {
			return nil, err
		}
		if err := s.table.Put(segment, m); err != nil {
			return nil, err
		}
		return s.mapAt(segment, m.FD(), unix.MAP_SHARED)
	} else if err != nil {
		return nil, err
	}
	defer m.Close() // the table holds it
	return s.mapAt(segment, m.FD(), unix.MAP_SHARED)
}

// mapAt maps the memory of a segment, where it was mapped before.
func (s *segmentMaps) mapAt(segment uint32, fd, flags int) (at unsafe.Pointer, err error) {
	if s.memory[segment] != nil {
		flags |= unix.MAP_FIXED
	}
	at, err = unix.MmapPtr(fd, 0, s.memory[segment], s.bytes, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("segment %d of %s in memory: %w", segment, s.table, err)
	}
	s.memory[segment] = at
	return at, nil
}

func (s *segmentMaps) remove(segment uint32) error {
	if err := IfThere(s.table.Delete(segment)); err != nil {
		return fmt.Errorf("segment %d of %s: %w", segment, s.table, err)
	}
	_, err := s.mapAt(segment, -1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	return err
}

func (s *segmentMaps) synchronize() { Synchronize() }

func (s *segmentMaps) Close() (err error) {
	for _, at := range s.memory {
		if at != nil {
			err = errors.Join(err, unix.MunmapPtr(at, s.bytes))
		}
	}
	return errors.Join(err, s.size.Close())
}
