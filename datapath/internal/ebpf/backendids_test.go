// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"testing"

	"github.com/cilium/ebpf"
)

// TestBackendIDStaysFree: an id whose counters cannot be set to zero stays free.
func TestBackendIDStaysFree(t *testing.T) {
	tiny, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer tiny.Close()
	ids := &backendIDs{
		d:     &DataPlane{tables: tablesOf(map[string]*ebpf.Map{kernelMapLlBackendLoad: tiny})},
		next:  8,
		free:  []uint32{7}, // beyond the table
		total: 8,
	}
	for range 2 {
		if id, err := ids.take(); err == nil {
			t.Fatalf("id %d without its counters", id)
		}
	}
	if len(ids.free) != 1 || ids.free[0] != 7 {
		t.Errorf("free ids %v, want 7", ids.free)
	}
}
