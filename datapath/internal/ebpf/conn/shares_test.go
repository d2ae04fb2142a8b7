// SPDX-License-Identifier: Apache-2.0

package conn

import "testing"

// TestCrowds: all crowds together may use a quarter of the table of half-open connections, and a
// crowd has room for the connections that it is opening, however small the table is.
func TestCrowds(t *testing.T) {
	for _, c := range []struct{ halfOpen, crowds, slots uint32 }{
		{1, 1, 1}, {64, 1, 8}, {256, 1, 32}, {1024, 4, 32}, {2048, 8, 32}, {16384, 8, 256}, {1 << 20, 8, 256},
	} {
		if crowds, slots := crowdsFor(c.halfOpen); crowds != c.crowds || slots != c.slots {
			t.Errorf("tables.halfOpen %d: %d crowds with %d slots, want %d with %d",
				c.halfOpen, crowds, slots, c.crowds, c.slots)
		}
	}
}
