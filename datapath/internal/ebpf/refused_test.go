// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestRefusedUpdateLeavesNothingBehind refuses an update after backends and one of
// the selection tables are written: when the next one has succeeded, the kernel
// holds what that one wants and nothing else.
func TestRefusedUpdateLeavesNothingBehind(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	small := web(2)
	n.ok(n.d.Services().Update(ctx, "web", small))

	refused := web(1) // 10.0.1.12 goes, and the IPv4 table is another
	refused.SourceRanges = nil
	for i := range 70 { // the map of source ranges holds twice 64
		a := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
		b := netip.AddrFrom4([4]byte{203, 0, 114, byte(i)})
		refused.SourceRanges = append(refused.SourceRanges, netip.PrefixFrom(a, 32), netip.PrefixFrom(b, 32))
	}
	if err := n.d.Services().Update(ctx, "web", refused); !errors.Is(err, datapath.ErrCapacity) {
		t.Fatalf("error %v, want one that wraps ErrCapacity", err)
	}
	n.ok(n.d.Services().Update(ctx, "web", small))

	testnet.Eventually(t, 5*time.Second, "one selection table, two backends and no source range are left", func() bool {
		n.ok(n.d.Maintain(ctx))
		tables, ids, ranges := make(map[uint32]bool), 0, 0
		n.ok(batches(n.d.maps[kernelMapLlSlot], func(keys []kernelSlotKey, _ []kernelSlotChunk) error {
			for _, k := range keys {
				tables[k.TableId] = true
			}
			return nil
		}))
		n.ok(batches(n.d.maps[kernelMapLlBackend], func(_ []uint32, entries []kernelBackend) error {
			for _, e := range entries {
				if e.ServiceId != 0 {
					ids++
				}
			}
			return nil
		}))
		var key kernelSourceRangeKey
		var family uint8
		it := n.d.maps[kernelMapLlSourceRange].Iterate()
		for it.Next(&key, &family) {
			ranges++
		}
		return len(tables) == 1 && ids == 2 && ranges == 0
	})
}
