// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"net/netip"
	"sync"

	"github.com/loxilight/loxilight/datapath"
)

// maxWays limits how many next hops towards backends and NAT targets are looked up for one state of
// the node. Nothing is reported about any others.
const maxWays = 256

// hopCache holds the next hops that were looked up for one state of the node.
type hopCache struct {
	telemetry datapath.Telemetry

	mu    sync.Mutex
	known map[datapath.Hop]datapath.HopState
}

func newHopCache(telemetry datapath.Telemetry) *hopCache {
	return &hopCache{telemetry: telemetry, known: map[datapath.Hop]datapath.HopState{}}
}

// to returns the next hop towards an address. The zero value means that the address belongs to the
// node, or that nothing is known.
func (c *hopCache) to(addr netip.Addr, inSwitch bool) datapath.HopState {
	return c.lookup(datapath.Hop{Addr: addr, Switch: inSwitch})
}

// lookup returns the state of a next hop.
func (c *hopCache) lookup(h datapath.Hop) datapath.HopState {
	limit := maxWays
	if h.From != (datapath.Arrival{}) {
		limit *= 1 + maxArrivals
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	is, ok := c.known[h]
	if !ok && len(c.known) < limit {
		is = c.telemetry.HopTo(h, false)
		c.known[h] = is
	}
	return is
}

// full reports whether the limit on lookups has been reached.
func (c *hopCache) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.known) >= maxWays
}
