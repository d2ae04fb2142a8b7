// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"fmt"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Usage implements [datapath.Telemetry]. It returns how full the tables are, keyed by their names
// in the configuration. For connections, which have one table per family, it returns the fuller
// one. The numbers for connections and NAT are as of the last sweep.
func (r *Reader) Usage(context.Context) (map[string]datapath.Usage, error) {
	if err := r.options.Sweeper.Refresh(); err != nil {
		return nil, err
	}
	conns := r.options.Sweeper.Entries()
	affinity := uint64(0)
	err := r.options.Tables.Affinity.Batches(func(keys []kernel.AffinityKey, _ []kernel.Affinity) error {
		affinity += uint64(len(keys))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count affinity entries: %w", err)
	}
	// A map may have kept its old size.
	of := func(name string, entries, each uint64) datapath.Usage {
		return datapath.Usage{Used: entries / each, Size: uint64(r.options.Maps[name].MaxEntries()) / each}
	}
	u := map[string]datapath.Usage{
		"connections": {
			Used: max(conns[conn.IPv4], conns[conn.IPv6]) / 2,
			Size: uint64(kernel.ConnCapacity(r.options.Tables.Ct4.MaxEntries())),
		},
		"affinity": of(kernel.MapLlAffinity, affinity, 1),
	}
	// The outer side always has at least as many entries as the inner side.
	mappings, blocks := r.options.NATs.Entries()
	u["natMappings"] = of(kernel.MapLlMappingOuter, mappings, 1)
	u["natBlocks"] = of(kernel.MapLlBlockOwner, blocks, 1)
	r.options.Services.Usage(u, r.options.Sizes)
	return u, nil
}
