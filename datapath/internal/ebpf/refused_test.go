// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestFullMapsRefuse: the kernel's errors for full maps, which depend on the type of the map, are
// reported as exceeded capacity.
func TestFullMapsRefuse(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	refused := web(1)
	for i := range 70 { // the prefix trie of source ranges has room for 2 * 64
		a := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
		b := netip.AddrFrom4([4]byte{203, 0, 114, byte(i)})
		refused.SourceRanges = append(refused.SourceRanges, netip.PrefixFrom(a, 32), netip.PrefixFrom(b, 32))
	}
	if err := n.d.Services().Update(ctx, "ranges", refused); !errors.Is(err, datapath.ErrCapacity) {
		t.Errorf("a full prefix trie: error %v, want an error that wraps ErrCapacity", err)
	}
	stats := n.d.maps[kernel.MapLlServiceStats]
	zeros := make([]kernel.ServiceStats, ebpf.MustPossibleCPU())
	for id := uint32(1000); id < 1000+stats.MaxEntries()-1; id++ { // the service ranges has an entry
		n.ok(stats.Update(id, zeros, ebpf.UpdateAny))
	}
	if err := n.d.Services().Update(ctx, "stats", web(1)); !errors.Is(err, datapath.ErrCapacity) {
		t.Errorf("a full hash table: error %v, want an error that wraps ErrCapacity", err)
	}
}
