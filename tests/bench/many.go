// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// pathControl is our path with a single service, measured in the same rounds as with many.
const pathControl = pathOurs + ", 1 service"

// many measures the cost of many services: adding them, changing one, and the cost per packet.
func (b *bench) many(ctx context.Context) error {
	services := servicesFor(onNode, b.serviceCount, backendCount, "udp")
	return b.withRigs(ctx, b.services(), 0, func(rigs []*rig) error {
		if err := b.entering(ctx, rigs, services); err != nil {
			return err
		}
		if !b.measures(pathOurs) {
			return b.packetsOfMany(ctx, rigs, services)
		}
		control, err := newRig(pathControl)
		if err != nil {
			return err
		}
		defer control.close() // its resources end with the process at the latest
		if err := b.attachOurs(ctx, control, b.daemon, 0); err != nil {
			return err
		}
		if err := control.set(ctx, services[:1]); err != nil {
			return err
		}
		return b.packetsOfMany(ctx, append(rigs, control), services)
	})
}

// entering measures the time until changes are in force for packets.
func (b *bench) entering(ctx context.Context, rigs []*rig, services []service) error {
	count := grouped(len(services))
	s := b.report.section(count+" services of 10 backends",
		"Time until a change is in force for packets: for all Services at once, from an\n"+
			"empty table; and for one Service whose backends are replaced: the median and the\n"+
			"longest of ten changes. Memory is the daemon's own.",
		"path", "all", "one change", "longest", "memory")
	for _, r := range rigs {
		if r.balancer == nil {
			continue
		}
		begin := time.Now()
		if err := r.set(ctx, services); err != nil {
			return err
		}
		all := time.Since(begin)
		last := len(services) - 1
		f := flows{connections: 1, target: services[last].address, targets: 1, port: frontendPort}
		if err := establish(r, onNode, f); err != nil {
			return fmt.Errorf("the last of %s services does not work: %w", count, err)
		}
		changes, err := alterOne(ctx, r, services[last/2])
		if err != nil {
			return err
		}
		median, longest := changes[len(changes)/2], changes[len(changes)-1]
		memory := "–"
		if d, ok := r.balancer.(*loxilight); ok {
			resident, err := d.resident()
			if err != nil {
				return err
			}
			memory = fmt.Sprintf("%d MB", resident>>20)
			b.report.atMost(count+" services of 10 backends in the data plane", all.Seconds(), 3, "s")
			b.report.atMost("one change among them", float64(longest.Microseconds())/1000, 50, "ms")
			b.report.atMost("memory of the daemon with them", float64(resident)/1e6, 200, "MB")
		}
		s.row(r.name, all.Round(time.Millisecond).String(), median.Round(10*time.Microsecond).String(),
			longest.Round(10*time.Microsecond).String(), memory)
	}
	return nil
}

// alterOne changes the backends of a service repeatedly and returns the durations, shortest first.
func alterOne(ctx context.Context, r *rig, s service) ([]time.Duration, error) {
	var times []time.Duration
	for i := range 10 {
		changed := s
		changed.backends = slices.Delete(slices.Clone(s.backends), i%len(s.backends), i%len(s.backends)+1)
		begin := time.Now()
		if err := r.balancer.alter(ctx, changed); err != nil {
			return nil, fmt.Errorf("%s: change %s: %w", r.name, s.name, err)
		}
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	return times, nil
}

// packetsOfMany measures packets through all the services.
func (b *bench) packetsOfMany(ctx context.Context, rigs []*rig, services []service) error {
	count := grouped(len(services))
	s := b.report.section("Small UDP packets through "+count+" services",
		"As above; connections are spread over all Services, and the backends are on the node.",
		"connections", pathKernel, pathNftables, pathOurs, pathOurs+" to nftables", pathOurs+" to itself with 1 service")
	for _, connections := range []int{1024, 65536} {
		for _, r := range rigs {
			n := len(services)
			if r.name == pathControl {
				n = 1
			}
			if err := establish(r, onNode, r.flowsTo(onNode, connections, n)); err != nil {
				return err
			}
		}
		c, err := compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
			return packetRate(r, onNode, max(b.packetCount, connections))
		})
		if err != nil {
			return fmt.Errorf("%d connections through %s services: %w", connections, count, err)
		}
		s.row(append(append([]string{grouped(connections)}, c.cells(1e6, "%.2f")...), c.cell(pathOurs, pathControl))...)
		b.report.atLeast(fmt.Sprintf("small packets, %s connections, %s services", grouped(connections), count), c, pathOurs, pathControl, 0.9)
	}
	return nil
}

// memory reports the kernel memory for connections, of a node whose kernel tracks them and of ours.
func (b *bench) memory(ctx context.Context, p place) error {
	if p != onNode {
		return nil
	}
	s := b.report.section("Memory",
		"The kernel's connection tracking allocates entries on demand, in addition to its\n"+
			"hash table. loxilight's tables grow; at the start they have their default sizes.\n"+
			"Both directions of a connection are counted.",
		"path", "bytes a connection", "for a million connections", "all tables at the start", "of the daemon")
	row := func(name string, perConnection float64, others ...string) {
		const million = 1e6
		s.row(append([]string{name, fmt.Sprintf("%.0f", perConnection), fmt.Sprintf("%.0f MB", perConnection*million/1e6)}, others...)...)
	}
	slab, err := slabBytes("nf_conntrack")
	if err != nil {
		return err
	}
	connections := 0
	for _, pc := range packetCases {
		if pc.connections <= b.connectionsMax {
			connections = max(connections, pc.connections)
		}
	}
	row(pathNftables, float64(slab)/float64(connections), "–", "–")
	before, err := mapBytes()
	if err != nil {
		return err
	}
	return b.withRigs(ctx, lineup{paths: b.available([]string{pathOurs})}, 0, func(fresh []*rig) error {
		for _, r := range fresh {
			d := r.balancer.(*loxilight)
			each, err := d.connectionBytes(ctx)
			if err != nil {
				return err
			}
			start, err := mapBytes()
			if err != nil {
				return err
			}
			start -= before
			resident, err := d.resident()
			if err != nil {
				return err
			}
			row(pathOurs, each, fmt.Sprintf("%d MB", start/1e6), fmt.Sprintf("%d MB", resident/1e6))
			b.report.atMost("all tables at the start", float64(start)/(1<<20), 100, "MiB")
			b.report.atMost("memory of a connection", each, 300, "bytes")
		}
		return nil
	})
}

// mapBytes returns the kernel memory of all maps of our daemons.
func mapBytes() (sum uint64, err error) {
	for id := ebpf.MapID(0); ; {
		id, err = ebpf.MapGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return sum, nil
		}
		if err != nil {
			return 0, err
		}
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return 0, err
		}
		info, err := m.Info()
		m.Close() // nothing was written
		if err != nil {
			return 0, err
		}
		if strings.HasPrefix(info.Name, "ll_") {
			bytes, _ := info.Memlock()
			sum += bytes
		}
	}
}

// connectionBytes returns the memory of an IPv4 connection in a table that has as many as it is
// made for: two entries, and a quarter of a free entry.
func (d *loxilight) connectionBytes(ctx context.Context) (float64, error) {
	const name, entries = "ll_ct4", 64 // of a block
	ids, err := d.hooks(ctx, "up0")
	if err != nil {
		return 0, err
	}
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(ids["ingress"]))
	if err != nil {
		return 0, fmt.Errorf("program on the ingress hook of up0: %w", err)
	}
	defer program.Close() // only closes a file descriptor
	info, err := program.Info()
	if err != nil {
		return 0, err
	}
	maps, _ := info.MapIDs()
	for _, id := range maps {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return 0, err
		}
		defer m.Close() // nothing was written
		if info, err := m.Info(); err != nil {
			return 0, err
		} else if info.Name != name {
			continue
		}
		var segment *ebpf.Map
		if err := m.Lookup(uint32(0), &segment); err != nil {
			return 0, fmt.Errorf("first segment of %s: %w", name, err)
		}
		defer segment.Close() // nothing was written
		info, err := segment.Info()
		if err != nil {
			return 0, err
		}
		bytes, _ := info.Memlock()
		return 2.25 * float64(bytes) / float64(info.MaxEntries*entries), nil
	}
	return 0, fmt.Errorf("the program on up0 has no map %s", name)
}
