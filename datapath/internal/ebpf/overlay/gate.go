// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// checkPorts rejects keys with which all tunnels together would use too many UDP ports.
func (o *Overlay) checkPorts(t *tunnel, wanted map[kernel.TunnelKey]bool) error {
	ports := map[uint16]bool{}
	for _, other := range o.tunnels {
		keys := other.keys
		if other == t {
			keys = wanted
		}
		for k := range keys {
			ports[k.Port] = ports[k.Port] || k.Proto == unix.IPPROTO_UDP
		}
	}
	if delete(ports, 0); len(ports) > kernel.TunnelPorts {
		return fmt.Errorf("tunnels use %d UDP ports, at most %d are supported: %w", len(ports), kernel.TunnelPorts, datapath.ErrCapacity)
	}
	return nil
}

// setGate writes which incoming packets may belong to a tunnel.
func (o *Overlay) setGate() error {
	var g kernel.TunnelGate
	ports := map[uint16]bool{}
	for _, t := range o.tunnels {
		for k := range t.keys {
			if k.Proto == unix.IPPROTO_GRE {
				g.Gre = 1
			} else {
				ports[k.Port] = true
			}
		}
	}
	copy(g.Port[:], slices.Sorted(maps.Keys(ports)))
	for _, p := range o.peers {
		if len(p.prefixes) > 0 && p.owner&kernel.PrefixRouted == 0 {
			g.Inside = 1
		}
	}
	if g.Seed = o.gate.Seed; g.Seed == 0 {
		g.Seed = rand.Uint32() | 1
	}
	if g == o.gate {
		return nil
	}
	if err := o.tables.TunnelGate.Put(uint32(0), g); err != nil {
		return fmt.Errorf("tunnels: %w", err)
	}
	o.gate = g
	return nil
}
