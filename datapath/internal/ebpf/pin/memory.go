// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Bytes that the kernel needs for each entry in addition to key and value, as of Linux 6.18.
const (
	hashEntryBytes   = 48 // struct htab_elem
	hashBucketBytes  = 16 // struct bucket; their number is a power of two
	trieEntryBytes   = 40 // struct lpm_trie_node; as many nodes without value may exist
	perCPUEntryBytes = 8
)

// mapMemory estimates the bytes that a map takes when it is created, and when it is full; of a map in
// segments, the bytes of a segment.
func mapMemory(spec *ebpf.MapSpec, cpus int) (atStart, full uint64) {
	if c := classOf(spec); (c.connections || c.segmented) && spec.InnerMap != nil {
		return mapMemory(spec.InnerMap, cpus)
	}
	entries, key, value := uint64(spec.MaxEntries), roundUp(spec.KeySize), roundUp(spec.ValueSize)
	switch spec.Type {
	case ebpf.Array:
		atStart = entries * value
	case ebpf.ArrayOfMaps, ebpf.ProgramArray:
		atStart = entries * 8 // without the inner maps, see classify.ImageMax
	case ebpf.PerCPUArray:
		atStart = entries * (perCPUEntryBytes + value*uint64(cpus))
	case ebpf.Queue:
		atStart = (entries + 1) * uint64(spec.ValueSize)
	case ebpf.RingBuf:
		atStart = entries
	case ebpf.LPMTrie:
		return 0, entries * (2*trieEntryBytes + 2*key)
	case ebpf.PerCPUHash:
		value = perCPUEntryBytes + value*uint64(cpus)
		fallthrough
	default: // hashes
		buckets := hashBucketBytes << bits.Len64(entries-1)
		full = uint64(buckets) + entries*(hashEntryBytes+key+value)
		if spec.Flags&unix.BPF_F_NO_PREALLOC != 0 {
			return uint64(buckets), full
		}
		atStart = full
	}
	return atStart, atStart
}

func roundUp(size uint32) uint64 { return (uint64(size) + 7) &^ 7 }

// largestFirst returns the names of maps in the order in which they are created: if one is too
// large for the machine, it is refused before the memory for the others is taken.
func largestFirst(specs map[string]*ebpf.MapSpec) []string {
	cpus := ebpf.MustPossibleCPU()
	return slices.SortedFunc(maps.Keys(specs), func(a, b string) int {
		x, _ := mapMemory(specs[a], cpus)
		y, _ := mapMemory(specs[b], cpus)
		return cmp.Or(cmp.Compare(y, x), strings.Compare(a, b))
	})
}

// tablesMemory estimates the bytes of all maps of specs with the sizes of t.
func tablesMemory(specs map[string]*ebpf.MapSpec, t datapath.Tables) (atStart, full uint64) {
	cpus := ebpf.MustPossibleCPU()
	for _, spec := range specs {
		spec = spec.Copy()
		_, _, entries := sizeOf(spec, t)
		setEntries(spec, entries)
		s, f := mapMemory(spec, cpus)
		switch c := classOf(spec); {
		case c.connections:
			f *= uint64(kernel.SegmentsFor(t.ConnectionsMin, t.Connections))
		case c.segmented:
			f *= uint64((entries + spec.InnerMap.MaxEntries - 1) / spec.InnerMap.MaxEntries)
		}
		atStart, full = atStart+s, full+f
	}
	return atStart, full
}

// noRoom explains that the kernel has no memory for a map: its size, and what to do. specs contains
// all maps; spec need not be the largest of them.
func noRoom(err error, spec *ebpf.MapSpec, specs map[string]*ebpf.MapSpec, t datapath.Tables) error {
	if err == nil || !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.E2BIG) {
		return err
	}
	need, _ := mapMemory(spec, ebpf.MustPossibleCPU())
	all, _ := tablesMemory(specs, t)
	by := ""
	if key, size, _ := sizeOf(spec, t); key != "" {
		by = fmt.Sprintf(" (%s: %d)", key, size)
	}
	return fmt.Errorf("no memory for its %d entries%s, %d MiB; all tables need %d MiB: make the largest ones smaller "+
		"(tables.connections, tables.backends; or auto), or allow more: MemoryMax of the unit counts them: %w",
		entriesOf(spec, entriesIn(spec)), by, need>>20, all>>20, err)
}

// entriesOf returns the number of entries of a map with n elements: of the connection table, those of
// its blocks.
func entriesOf(spec *ebpf.MapSpec, n uint32) uint64 {
	if classOf(spec).connections {
		return uint64(n) * kernel.ConnBlock
	}
	return uint64(n)
}
