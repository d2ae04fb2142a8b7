// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"fmt"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// The tables that packets fill, besides connections, by their names in [Reader.Usage].
const (
	tableAffinity = "affinity"
	tableNextHops = "nextHops"
	tableMappings = "natMappings"
	tableBlocks   = "natBlocks"
	tableLearned  = "nameAddresses"
)

// Usage implements [datapath.Telemetry]. It returns how full the tables are, keyed by their names
// in the configuration; connections have one table per address family. The numbers for connections
// and NAT are as of the last sweep.
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
	learned := uint64(0)
	now := kernel.NowTick()
	err = r.options.Tables.Learned.Batches(func(_ []kernel.LearnedKey, values []kernel.Learned) error {
		for i := range values {
			if int32(now-values[i].ExpiryTick) <= 0 { // the others are deleted if there is no room
				learned++
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count addresses of names: %w", err)
	}
	// A map may have kept its old size.
	of := func(name string, entries, each uint64) datapath.Usage {
		return datapath.Usage{Used: entries / each, Size: uint64(r.options.Maps[name].MaxEntries()) / each}
	}
	sizes := r.options.Sweeper.Capacity()
	used, size := r.options.NextHops.Usage()
	u := map[string]datapath.Usage{
		// A connection has two entries.
		"connections IPv4": {Used: conns[conn.IPv4] / 2, Size: uint64(sizes[conn.IPv4])},
		"connections IPv6": {Used: conns[conn.IPv6] / 2, Size: uint64(sizes[conn.IPv6])},
		tableAffinity:      of(kernel.MapLlAffinity, affinity, 1),
		tableLearned:       of(kernel.MapLlLearned, learned, 1),
		tableNextHops:      {Used: uint64(used), Size: uint64(size)},
	}
	// The outer side always has at least as many entries as the inner side.
	mappings, blocks := r.options.NATs.Entries()
	u[tableMappings] = of(kernel.MapLlMappingOuter, mappings, 1)
	u[tableBlocks] = of(kernel.MapLlBlockOwner, blocks, 1)
	r.options.Services.Usage(u, r.options.Sizes)
	return u, nil
}

// Owners implements [datapath.Telemetry].
func (r *Reader) Owners(_ context.Context, add func(table string, o datapath.Owner, entries uint64)) error {
	t := r.options.Tables
	err := t.Affinity.Batches(func(keys []kernel.AffinityKey, _ []kernel.Affinity) error {
		for i := range keys {
			k := &keys[i]
			add(tableAffinity, datapath.Owner{Service: r.options.Services.Name(k.ServiceId), Source: k.Client.Addr()}, 1)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("owners of affinity entries: %w", err)
	}
	err = t.MappingOuter.Batches(func(_ []kernel.MappingKey, values []kernel.Mapping) error {
		for i := range values {
			v := &values[i]
			add(tableMappings, datapath.Owner{NAT: r.options.NATs.Name(v.NatId), Source: v.Addr.Addr()}, 1)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("owners of NAT mappings: %w", err)
	}
	err = t.BlockOwner.Batches(func(_ []kernel.BlockOwnerKey, values []kernel.BlockKey) error {
		for i := range values {
			v := &values[i]
			add(tableBlocks, datapath.Owner{NAT: r.options.NATs.Name(v.NatId), Source: v.Inner.Addr()}, 1)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("owners of port blocks: %w", err)
	}
	err = r.options.NextHops.Each(func(k kernel.NexthopKey) {
		add(tableNextHops, datapath.Owner{Device: r.options.DeviceName(k.Netns, int(k.Ifindex)), InSwitch: k.Netns != 0}, 1)
	})
	if err != nil {
		return fmt.Errorf("owners of next hops: %w", err)
	}
	return nil
}
