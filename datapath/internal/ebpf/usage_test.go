// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"testing"

	"github.com/loxilight/loxilight/datapath"
)

// TestUsageOfTranslation: mappings and blocks of ports count for the tables that they can fill.
func TestUsageOfTranslation(t *testing.T) {
	n := newNetwork(t)
	later := nowTick() + 1000 // which no pass ends
	for i := range uint16(5) {
		key := kernelMappingKey{Port: swap16(1000 + i), Proto: uint8(datapath.UDP)}
		n.ok(n.d.maps[kernelMapLlMappingOuter].Put(&key, &kernelMapping{CreatedTick: later}))
	}
	for i := range uint8(3) {
		key, block := kernelBlockKey{Nth: i}, kernelBlock{First: 1000 * uint16(i), Size: 64, CreatedTick: later}
		n.ok(n.d.maps[kernelMapLlBlock].Put(&key, &block))
		n.ok(n.d.maps[kernelMapLlBlockOwner].Put(&kernelBlockOwnerKey{First: block.First}, &key))
	}
	// Entries without a rule do not count.
	n.ok(n.d.maps[kernelMapLlMappingOuter].Put(&kernelMappingKey{Port: 1}, &kernelMapping{}))
	n.ok(n.d.maps[kernelMapLlBlockOwner].Put(&kernelBlockOwnerKey{First: 9}, &kernelBlockKey{Nth: 9}))
	n.ok(n.d.sweeper.whole(nil))
	u, err := n.d.Telemetry().Usage(context.Background())
	n.ok(err)
	for name, want := range map[string]datapath.Usage{
		"natMappings": {Used: 5, Size: uint64(n.d.maps[kernelMapLlMappingOuter].MaxEntries())},
		"natBlocks":   {Used: 3, Size: uint64(n.d.maps[kernelMapLlBlockOwner].MaxEntries())},
	} {
		if u[name] != want {
			t.Errorf("%s: %+v, want %+v", name, u[name], want)
		}
	}
}
