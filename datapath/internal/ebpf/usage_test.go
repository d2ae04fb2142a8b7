// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestUsageOfTranslation: mappings and port blocks are counted as usage of the tables that they
// can fill.
func TestUsageOfTranslation(t *testing.T) {
	n := newNetwork(t)
	later := kernel.NowTick() + 1000 // no pass ends these entries
	for i := range uint16(5) {
		key := kernel.MappingKey{Port: kernel.Swap16(1000 + i), Proto: uint8(datapath.UDP)}
		n.ok(n.d.maps[kernel.MapLlMappingOuter].Put(&key, &kernel.Mapping{CreatedTick: later}))
	}
	for i := range uint8(3) {
		key, block := kernel.BlockKey{Nth: i}, kernel.Block{First: 1000 * uint16(i), Size: 64, CreatedTick: later}
		n.ok(n.d.maps[kernel.MapLlBlock].Put(&key, &block))
		n.ok(n.d.maps[kernel.MapLlBlockOwner].Put(&kernel.BlockOwnerKey{First: block.First}, &key))
	}
	// Entries without a rule are not counted.
	n.ok(n.d.maps[kernel.MapLlMappingOuter].Put(&kernel.MappingKey{Port: 1}, &kernel.Mapping{}))
	n.ok(n.d.maps[kernel.MapLlBlockOwner].Put(&kernel.BlockOwnerKey{First: 9}, &kernel.BlockKey{Nth: 9}))
	n.ok(n.d.sweeper.Whole())
	u, err := n.d.Telemetry().Usage(context.Background())
	n.ok(err)
	for name, want := range map[string]datapath.Usage{
		"natMappings": {Used: 5, Size: uint64(n.d.maps[kernel.MapLlMappingOuter].MaxEntries())},
		"natBlocks":   {Used: 3, Size: uint64(n.d.maps[kernel.MapLlBlockOwner].MaxEntries())},
	} {
		if u[name] != want {
			t.Errorf("%s: %+v, want %+v", name, u[name], want)
		}
	}
}
