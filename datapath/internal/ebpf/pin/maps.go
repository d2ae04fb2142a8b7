// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"errors"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Wanted returns the maps of specs with the sizes in t.
func Wanted(specs map[string]*ebpf.MapSpec, t datapath.Tables) map[string]*ebpf.MapSpec {
	wanted := make(map[string]*ebpf.MapSpec)
	for name, spec := range specs {
		if spec.Pinning != ebpf.PinByName {
			continue // constants and scratch memory of one program
		}
		spec = spec.Copy()
		_, _, entries := sizeOf(spec, t)
		setEntries(spec, entries)
		spec.Pinning = ebpf.PinNone
		wanted[name] = spec
	}
	return wanted
}

// setEntries sets the number of entries of a map; of the connection table, the number of blocks of a
// segment. An array in segments gets segments as it needs them.
func setEntries(spec *ebpf.MapSpec, entries uint32) {
	switch c := classOf(spec); {
	case c.segmented:
		return
	case c.connections:
		spec.InnerMap = spec.InnerMap.Copy()
		spec = spec.InnerMap
	}
	spec.MaxEntries = entries
}

// entriesIn returns that number of a specification.
func entriesIn(spec *ebpf.MapSpec) uint32 {
	if classOf(spec).connections {
		spec = spec.InnerMap
	}
	return spec.MaxEntries
}

// entriesAt returns that number of a map of that class.
func entriesAt(m *ebpf.Map, c mapClass) (uint32, error) {
	if !c.connections || m.Type() != ebpf.ArrayOfMaps {
		return m.MaxEntries(), nil
	}
	segment, err := kernel.SegmentOf(m)
	if err != nil {
		return 0, err
	}
	defer segment.Close() // nothing was written
	return segment.MaxEntries(), nil
}

// SizesOf returns the numbers of entries of a pinned map and of its specification, if they differ.
func SizesOf(m *ebpf.Map, spec *ebpf.MapSpec) (is, want uint32, differ bool) {
	if spec == nil {
		return 0, 0, false
	}
	is, err := entriesAt(m, classOf(spec))
	want = entriesIn(spec)
	return is, want, err == nil && want != 0 && is != want
}

// MemoryOf returns the memory of a map in bytes, with its segments; 0 if the kernel does not report
// it.
func MemoryOf(m *ebpf.Map, spec *ebpf.MapSpec) (bytes uint64) {
	all := []*ebpf.Map{m}
	if spec != nil && (classOf(spec).connections || classOf(spec).segmented) && m.Type() == ebpf.ArrayOfMaps {
		segments, err := innerMaps(m)
		if err == nil {
			defer kernel.CloseMaps(segments)
			all = append(all, segments...)
		}
	}
	for _, m := range all {
		if info, err := m.Info(); err == nil {
			memory, _ := info.Memlock()
			bytes += memory
		}
	}
	return bytes
}

// innerMaps returns the maps in an outer map. The caller closes them.
func innerMaps(m *ebpf.Map) (all []*ebpf.Map, err error) {
	for i := range m.MaxEntries() {
		var inner *ebpf.Map
		switch err := m.Lookup(i, &inner); {
		case errors.Is(err, ebpf.ErrKeyNotExist):
		case err != nil:
			kernel.CloseMaps(all)
			return nil, err
		default:
			all = append(all, inner)
		}
	}
	return all, nil
}

// CloseMaps closes the maps' file descriptors; pins stay.
func CloseMaps(all map[string]*ebpf.Map) { kernel.CloseMaps(slices.Collect(maps.Values(all))) }

// CountEntries returns how many entries of a map are in use; for an array, the entries up to the
// last non-zero one.
func CountEntries(m *ebpf.Map) (n uint32, err error) {
	array := m.Type() == ebpf.Array
	switch m.Type() {
	case ebpf.Queue, ebpf.RingBuf, ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.ArrayOfMaps:
		return 0, nil // of fixed size, or with one entry for each service
	}
	i := uint32(0)
	err = eachEntry(m, func(_, value []byte) error {
		i++
		if !array {
			n++
		} else if !allZero(value) {
			n = i
		}
		return nil
	})
	return n, err
}
