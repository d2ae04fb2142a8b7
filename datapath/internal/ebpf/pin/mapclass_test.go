// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestMapClasses: the tags of maps.h are known, are read, and determine the number of entries of
// each table.
func TestMapClasses(t *testing.T) {
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	for name, m := range spec.Maps {
		c := classOf(m)
		used[c.size] = true
		if _, ok := sizeClasses[c.size]; !ok && c.size != "" {
			t.Errorf("map %s: size class %q is not in sizeClasses", name, c.size)
		}
		for _, tag := range m.Tags {
			if !slices.Contains([]string{"size:" + c.size, "creator:daemon", "copy:first", "copy:connections", "copy:never"}, tag) {
				t.Errorf("map %s: tag %q is not known", name, tag)
			}
		}
	}
	for class := range sizeClasses {
		if !used[class] {
			t.Errorf("no map is of size class %q", class)
		}
	}

	tables := datapath.Tables{Connections: 1 << 20, Services: 100, Backends: 1000, Affinity: 5000, Ranges: 300, Rules: 40000}
	for name, want := range map[string]struct {
		key            string
		table, entries uint32
		class          mapClass
	}{
		kernel.MapLlCt6:       {"tables.connections", 1 << 20, 36 << 10, mapClass{"segmentBlocks", false, false, true, false, 1}},
		kernel.MapLlShares:    {"", 0, 1, mapClass{"", false, false, false, false, 0}},
		kernel.MapLlSlot:      {"tables.backends", 1000, 4096, mapClass{"chunks", true, false, false, false, 2}},
		kernel.MapLlBackend:   {"tables.backends", 1000, 1001, mapClass{"backends", false, false, false, true, 2}},
		kernel.MapLlDivert:    {"tables.ranges", 300, 600, mapClass{"ranges", true, false, false, false, 2}},
		kernel.MapLlNatRule:   {"tables.rules", 40000, 10000, mapClass{"natRules", false, false, false, false, 2}},
		kernel.MapLlPeer:      {"tables.connections", 1 << 20, 1 << 14, mapClass{"peers", false, false, false, false, 2}},
		kernel.MapLlMapping:   {"tables.connections", 1 << 20, 1<<17 - 2048, mapClass{"mappings", false, false, false, false, 2}},
		kernel.MapLlNexthop:   {"", 0, kernel.NexthopCount, mapClass{"", false, true, false, false, 2}},
		kernel.MapLlPortDrops: {"", 0, 16384, mapClass{"", false, false, false, false, 2}},
	} {
		m := spec.Maps[name]
		if key, table, entries := sizeOf(m, tables); key != want.key || table != want.table || entries != want.entries {
			t.Errorf("map %s: %q %d %d, want %q %d %d", name, key, table, entries, want.key, want.table, want.entries)
		}
		if c := classOf(m); c != want.class {
			t.Errorf("map %s: %+v, want %+v", name, c, want.class)
		}
	}
}

// TestChunks: selection tables have room for half a chunk for each backend, and more only if there may be
// many tables with few backends.
func TestChunks(t *testing.T) {
	for _, x := range []struct{ services, backends, want uint32 }{
		{1 << 16, 1 << 20, 1 << 19},
		{1 << 10, 1 << 14, 1 << 13},
		{1 << 10, 1 << 11, 1<<10 + 1<<9 + 1},
		{1 << 16, 1 << 14, 1 << 14}, // one backend each
	} {
		if got := chunksFor(datapath.Tables{Services: x.services, Backends: x.backends}); got != x.want {
			t.Errorf("%d services, %d backends: %d chunks, want %d", x.services, x.backends, got, x.want)
		}
	}
}
