// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/loxilight/loxilight/loxilightd/internal/config"
)

// TestSizesAreLogged: the log shows which tables are sized according to the machine's
// memory, and the status contains all sizes; they are the same after a restart.
func TestSizesAreLogged(t *testing.T) {
	s := newSite(t, "tables: {services: 77, connections: auto}")
	auto := uint64(config.Default("default").Tables.Connections)
	for range 2 {
		p := s.run()
		p.wantLog("sizes of the tables", `chosen_by_memory="tables.connections tables.backends `, "memory_of=", "tables.services=77")
		c := s.status().Capacity
		if c["services"].Size != 77 || c["connections IPv4"].Size != auto || c["connections IPv6"].Size != auto {
			t.Errorf("sizes %+v, want 77 services and %d connections of each family", c, auto)
		}
		p.stop()
	}
}
