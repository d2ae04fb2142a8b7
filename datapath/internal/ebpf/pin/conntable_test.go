// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestConnectionsAreCopied: a table of another size has the same connections; connections that are
// added to the earlier one meanwhile follow. A table that is too small for its connections stays.
func TestConnectionsAreCopied(t *testing.T) {
	testnet.RequireRoot(t)
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	const connections = 3000
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	for _, c := range []struct {
		name     string
		from, to uint32
		stays    bool
	}{{"larger", 2048, 8192, false}, {"smaller", 8192, 2048, false}, {"too small", 8192, 256, true}} {
		t.Run(c.name, func(t *testing.T) {
			dir := testnet.BPFFS(t)
			tables := datapath.TablesFor(0)
			tables.Connections = c.from
			first := open(t, dir, spec.Maps, tables, log)
			key := func(i int) kernel.Ct4Key {
				return kernel.Ct4Key{Saddr: uint32(i) * 77, Daddr: 5, Sport: uint16(i), Dport: 6, Proto: 17}
			}
			value := func(i int) kernel.Ct4Val {
				return kernel.Ct4Val{Meta: kernel.CtMeta{PacketCount: uint64(i) << 33, CreatedTick: kernel.NowTick(), BackendId: uint32(i), NatId: uint16(i)}, Sport: uint16(i)}
			}
			put := func(from *Replacements, first, last int) {
				t.Helper()
				tables := kernel.TablesOf(from.Maps)
				if err := tables.MapConnections(from.Maps); err != nil {
					t.Fatal(err)
				}
				for i := first; i < last; i++ {
					if err := tables.Ct4.Put(key(i), value(i)); err != nil {
						t.Fatal(err)
					}
				}
				if err := tables.Close(); err != nil {
					t.Fatal(err)
				}
			}
			put(first, 0, connections-100)
			tables.Connections = c.to
			second := open(t, dir, spec.Maps, tables, log)
			put(first, connections-100, connections)
			if err := errors.Join(second.CatchUp(), second.Finish()); err != nil {
				t.Fatal(err)
			}
			want := kernel.ConnBlocks(c.to)
			if c.stays {
				want = kernel.ConnBlocks(connections / 2)
			}
			if got, err := entriesAt(second.Maps[kernel.MapLlCt4], mapClass{connections: true}); err != nil || got < want || !c.stays && got != want {
				t.Errorf("the table has %d blocks, want %d", got, want)
			}
			m, err := ebpf.LoadPinnedMap(filepath.Join(dir, kernel.MapLlCt4), nil)
			if err != nil {
				t.Fatal(err)
			}
			m.Close()
			copied := kernel.TablesOf(second.Maps)
			if err := copied.MapConnections(second.Maps); err != nil {
				t.Fatal(err)
			}
			defer copied.Close()
			for i := range connections {
				var got kernel.Ct4Val
				if ok, err := copied.Ct4.Find(key(i), &got); err != nil || !ok || got.Meta.PacketCount != uint64(i)<<33 || got.Meta.BackendId != uint32(i) || got.Sport != uint16(i) {
					t.Fatalf("entry %d: %+v, %t, %v", i, got, ok, err)
				}
			}
			n := 0
			if err := copied.Ct4.Batches(func(keys []kernel.Ct4Key, _ []kernel.Ct4Val) error {
				n += len(keys)
				return nil
			}); err != nil || n != connections {
				t.Errorf("%d entries (%v), want %d", n, err, connections)
			}
		})
	}
}

// open opens the tables in dir, as a start does until the programs are replaced.
func open(t *testing.T, dir string, specs map[string]*ebpf.MapSpec, tables datapath.Tables, log *slog.Logger) *Replacements {
	t.Helper()
	r, err := Open(dir, specs, tables, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		CloseMaps(r.Maps)
	})
	if err := errors.Join(r.Copy(), r.PinNew()); err != nil {
		t.Fatal(err)
	}
	return r
}
