// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestTablesFitTheMachine: tables whose sizes depend on the machine's memory take no more of
// it than documented, on any machine with 512 MB or more.
func TestTablesFitTheMachine(t *testing.T) {
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		mib         uint64
		connections uint32
	}{
		{24 << 10, 1 << 20}, {14 << 10, 1 << 20}, {14<<10 - 1, 1 << 19}, {7 << 10, 1 << 19}, {3900, 1 << 18}, {1950, 1 << 17},
		{960, 1 << 16}, {512, 1 << 15}, {224, 1 << 14}, {64, 1 << 14},
	} {
		tables := datapath.TablesFor(tt.mib << 20)
		if tables.Connections != tt.connections {
			t.Errorf("%d MiB: %d connections, want %d", tt.mib, tables.Connections, tt.connections)
		}
		atStart, full := tablesMemory(spec.Maps, tables)
		t.Logf("%5d MiB: %7d connections, %4d MiB at the start, %4d MiB full", tt.mib, tables.Connections, atStart>>20, full>>20)
		if tt.mib < 512 {
			continue
		}
		if atStart > tt.mib<<20/12 {
			t.Errorf("%d MiB: the tables take %d MiB at the start", tt.mib, atStart>>20)
		}
		if full > tt.mib<<20/8 {
			t.Errorf("%d MiB: the tables take %d MiB when full", tt.mib, full>>20)
		}
	}
	if full, _ := tablesMemory(spec.Maps, datapath.DefaultTables()); full>>20 < 560 || full>>20 > 590 {
		t.Errorf("tables of a fixed size take %d MiB, want about 576", full>>20)
	}
}

// requireFigures skips the test on kernels before 6.4, which report the memory of a full map
// instead of its current memory.
func requireFigures(t *testing.T) {
	t.Helper()
	empty, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 1000, Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	info, err := empty.Info()
	if err != nil {
		t.Fatal(err)
	}
	if bytes, _ := info.Memlock(); bytes > 1000 {
		t.Skip("this kernel does not tell what maps take (6.4 and later do)")
	}
}

// TestMemoryEstimate compares the estimate with the memory that the kernel accounts.
func TestMemoryEstimate(t *testing.T) {
	testnet.New(t, "node") // skips without privileges
	requireFigures(t)
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	var estimate, told uint64
	for name, s := range spec.Maps {
		if !strings.HasPrefix(name, "ll_") {
			continue
		}
		s = s.Copy()
		s.Pinning, s.Contents = ebpf.PinNone, nil
		_, _, entries := sizeOf(s, datapath.TablesFor(1<<30))
		if setEntries(s, entries); classOf(s).connections {
			s = s.InnerMap
		}
		m, err := ebpf.NewMap(s)
		if err != nil {
			t.Fatal(err)
		}
		info, err := m.Info()
		m.Close()
		if err != nil {
			t.Fatal(err)
		}
		bytes, _ := info.Memlock()
		start, _ := mapMemory(s, ebpf.MustPossibleCPU())
		if bytes > 1<<20 && (start < bytes*9/10 || start > bytes*11/10) {
			t.Errorf("map %s: estimate %d bytes, the kernel says %d", name, start, bytes)
		}
		estimate, told = estimate+start, told+bytes
	}
	if estimate < told*95/100 || estimate > told*105/100 {
		t.Errorf("all tables: estimate %d bytes, the kernel says %d", estimate, told)
	}
}

// TestNoMemoryForATable: if there is no memory for a table, the error contains its name,
// size and configuration key, and no pin is left behind.
func TestNoMemoryForATable(t *testing.T) {
	testnet.New(t, "node") // skips without privileges
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	dir := testnet.BPFFS(t)
	tables := datapath.TablesFor(0)
	tables.Affinity = 1 << 30 // more than most machines have memory for: the kernel refuses at once
	want := regexp.MustCompile(`^map ll_affinity: no memory for its 1073741824 entries \(tables\.affinity: 1073741824\), \d+ MiB; all tables need \d{5,} MiB: make the largest ones smaller \(tables\.connections`)
	for range 3 {
		if _, err := Open(dir, spec.Maps, tables, slog.New(slog.DiscardHandler)); err == nil || !want.MatchString(err.Error()) {
			t.Errorf("error %v", err)
		}
	}
	if pins, _ := filepath.Glob(filepath.Join(dir, "ll_*")); len(pins) > 0 {
		t.Errorf("left behind: %v", pins)
	}
	fixed := noRoom(fmt.Errorf("x: %w", unix.ENOMEM), spec.Maps[kernel.MapLlPortDrops], spec.Maps, tables)
	if !errors.Is(fixed, unix.ENOMEM) || !strings.HasPrefix(fixed.Error(), "no memory for its 16384 entries, 0 MiB; all") {
		t.Errorf("error %v of a table of fixed size", fixed)
	}
}
