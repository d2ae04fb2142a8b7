// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestRefusedUpdateLeavesNothingBehind makes an update fail after backends and one of the selection
// tables are written: after the next successful update, the kernel holds exactly its entries.
func TestRefusedUpdateLeavesNothingBehind(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	small := web(2)
	n.ok(n.d.Services().Update(ctx, "web", small))

	refused := web(1) // 10.0.1.12 is removed, and the IPv4 table changes
	refused.SourceRanges = nil
	for i := range 70 { // the map of source ranges has room for 2 * 64
		a := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
		b := netip.AddrFrom4([4]byte{203, 0, 114, byte(i)})
		refused.SourceRanges = append(refused.SourceRanges, netip.PrefixFrom(a, 32), netip.PrefixFrom(b, 32))
	}
	if err := n.d.Services().Update(ctx, "web", refused); !errors.Is(err, datapath.ErrCapacity) {
		t.Fatalf("error %v, want an error that wraps ErrCapacity", err)
	}
	n.ok(n.d.Services().Update(ctx, "web", small))

	testnet.Eventually(t, 5*time.Second, "one selection table, two backends and no source range are left", func() bool {
		n.ok(n.d.Maintain(ctx))
		tables, ids, ranges := make(map[uint32]bool), 0, 0
		n.ok(n.d.tables.Slot.Batches(func(keys []kernel.SlotKey, _ []kernel.SlotChunk) error {
			for _, k := range keys {
				tables[k.TableId] = true
			}
			return nil
		}))
		n.ok(n.d.tables.Backend.Batches(func(_ []uint32, entries []kernel.Backend) error {
			for _, e := range entries {
				if e.ServiceId != 0 {
					ids++
				}
			}
			return nil
		}))
		var key kernel.SourceRangeKey
		var family uint8
		it := n.d.maps[kernel.MapLlSourceRange].Iterate()
		for it.Next(&key, &family) {
			ranges++
		}
		return len(tables) == 1 && ids == 2 && ranges == 0
	})
}

// names returns the ids in the map of service names.
func (n *network) names() (ids []uint32) {
	n.t.Helper()
	n.ok(n.d.tables.ServiceName.Batches(func(keys []uint32, _ []kernel.ServiceName) error {
		ids = append(ids, keys...)
		return nil
	}))
	return ids
}

// TestServiceThatCannotBeEnteredHasNoName is T14: if the kernel has no room for a new service's
// counters, failed attempts do not leave its name behind.
func TestServiceThatCannotBeEnteredHasNoName(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	stats := n.d.maps[kernel.MapLlServiceStats]
	zeros := make([]kernel.ServiceStats, ebpf.MustPossibleCPU())
	for id := uint32(1000); id < 1000+stats.MaxEntries(); id++ {
		n.ok(stats.Update(id, zeros, ebpf.UpdateAny))
	}
	for range 3 {
		if err := n.d.Services().Update(ctx, "web", web(1)); !errors.Is(err, datapath.ErrCapacity) {
			t.Fatalf("error %v, want an error that wraps ErrCapacity", err)
		}
		if ids := n.names(); len(ids) != 0 {
			t.Errorf("names of %v are left behind", ids)
		}
	}
	n.ok(stats.Delete(uint32(1000)))
	n.ok(n.d.Services().Update(ctx, "web", web(1)))
	first := n.names()
	name := kernel.ServiceNameOf("web") // as left by an earlier version
	n.ok(n.d.maps[kernel.MapLlServiceName].Update(uint32(1), &name, ebpf.UpdateAny))
	n.restart("tcx")
	if ids := n.names(); len(first) != 1 || !slices.Equal(ids, first) {
		t.Errorf("names of %v after a restart, want %v", ids, first)
	}
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(ctx, "web", web(1)))
	if _, err := n.ask("198.51.100.10:80"); err != nil {
		t.Error(err)
	}
}
