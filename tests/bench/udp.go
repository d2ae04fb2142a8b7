// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
)

// flowsTo returns connections from the rig's client to all of its services at a place, or to all
// backends there if it has no services.
func (r *rig) flowsTo(p place, connections, services int) flows {
	if r.balancer == nil || r.direct {
		return flows{connections: connections, target: backendFirst[p], targets: backendCount, port: backendPort, hop: r.hop(p)}
	}
	return flows{connections: connections, target: frontendFirst[p], targets: services, port: frontendPort}
}

// hop returns the destination of frames to backends at a place, or nil for the node.
func (r *rig) hop(p place) net.HardwareAddr {
	if !r.bridged {
		return nil
	}
	return r.macs[p]
}

// establishBatch is how many connections are half-open at once: far fewer than a source may have.
const establishBatch = 4096

// establish opens connections, each with a packet, its answer and another packet: UDP is
// established when its client sends again after the answer. It leaves the generator aimed at them.
func establish(r *rig, p place, f flows) error {
	if err := errors.Join(r.injection(true), r.receivers[p].echo(true)); err != nil {
		return err
	}
	for first := 0; first < f.connections; first += establishBatch {
		if err := establishSome(r, f, first, min(establishBatch, f.connections-first)); err != nil {
			return err
		}
	}
	return errors.Join(r.generator.aim(f), r.receivers[p].echo(false))
}

// establishSome opens count connections of f. A few may find no place in a table that is nearly
// full, whatever is tried.
func establishSome(r *rig, f flows, first, count int) error {
	const tries = 5
	var answered uint64
	for try := range tries {
		if err := errors.Join(r.generator.sink.echo(false), r.generator.aimAt(f, first)); err != nil {
			return err
		}
		if _, err := r.generator.send(count); err != nil {
			return err
		}
		var err error
		if answered, err = r.generator.sink.count(); err != nil {
			return err
		}
		if try < tries-1 && answered < uint64(count) || float64(answered) < (1-unplacedMax)*float64(count) {
			continue
		}
		if err := r.generator.aimAt(f, first); err != nil {
			return err
		}
		_, err = r.generator.send(count)
		return err
	}
	return fmt.Errorf("%s: %d of %d connections to %s, port %d: %d packets answered",
		r.name, count, f.connections, f.target, f.port, answered)
}

// unplacedMax is the share of connections that may find no place in the table. With the largest
// number of connections the table is 95 % full; by the random key of its hash, up to about 20 find
// none.
const unplacedMax = 0.002

// lossMax is the share of packets that may be lost in a measurement.
const lossMax = 0.01

// packetRate sends packets of the connections that the generator is aimed at, and returns how many
// arrived per second of CPU time.
func packetRate(r *rig, p place, packets int) (float64, error) {
	if err := r.receivers[p].echo(false); err != nil {
		return 0, err
	}
	cpu, err := r.generator.send(packets)
	if err != nil {
		return 0, err
	}
	arrived, err := r.receivers[p].count()
	if err != nil {
		return 0, err
	}
	if float64(arrived) < (1-lossMax)*float64(packets) {
		return 0, fmt.Errorf("%d packets of %d arrived", arrived, packets)
	}
	return float64(arrived) / cpu.Seconds(), nil
}

// packetCases are the numbers of connections that the packets belong to, each with our target
// relative to kernel routing.
var packetCases = []struct {
	connections int
	want        map[place]float64
}{
	{1, nil},
	{1024, map[place]float64{onNode: 1.4, elsewhere: 1.05}},
	{65536, map[place]float64{onNode: 1.0, elsewhere: 0.8}},
	{100000, nil},
	{1000000, map[place]float64{onNode: 1.0, elsewhere: 0.8}},
}

// udp measures small packets through one service, by place and number of connections.
func (b *bench) udp(ctx context.Context) error {
	s := b.report.section("Small UDP packets",
		"Throughput of a single core, in millions of 64-byte packets per second, through\n"+
			"one Service with ten backends. Consecutive packets belong to different\n"+
			"connections. The core does all the work: it generates a packet (XDP live frames\n"+
			"by `BPF_PROG_RUN`), carries it through the node and drops it. In the last row\n"+
			"there is no node: packets are dropped where they are generated, an upper bound\n"+
			"for any path."+xdpText,
		"backends", "connections", pathKernel, pathNftables, pathOurs, pathXDP, pathOurs+" to nftables")
	err := b.withEachPlace(ctx, b.withXDP(b.services()), b.connectionsMax, func(rigs []*rig, p place) error {
		services := servicesFor(p, 1, backendCount, "udp")
		for _, r := range rigs {
			if err := r.set(ctx, services); err != nil {
				return err
			}
		}
		for _, pc := range packetCases {
			if pc.connections > b.connectionsMax {
				continue
			}
			c, err := b.packets(ctx, rigs, p, pc.connections, 1)
			if err != nil {
				return fmt.Errorf("%s, %d connections: %w", p, pc.connections, err)
			}
			cells := append([]string{string(p), grouped(pc.connections)}, c.cellsTo(pathKernel, 1e6, "%.2f", pathNftables, pathOurs, pathXDP)...)
			s.row(append(cells, c.cell(pathOurs, pathNftables))...)
			what := fmt.Sprintf("small packets, %s connections, backends %s", grouped(pc.connections), p)
			if want := pc.want[p]; want != 0 {
				b.report.atLeast(what, c, pathOurs, pathKernel, want)
				b.report.atLeast(what+", in XDP", c, pathXDP, pathKernel, want)
			}
		}
		return b.memory(ctx, p)
	})
	if err != nil {
		return err
	}
	ceiling, err := b.ceiling(ctx)
	s.row("none", "1", fmt.Sprintf("%.2f", ceiling/1e6), "–", "–", "–", "–")
	return err
}

// ceiling measures the rate of packets that are dropped as soon as they reach the node, the upper
// bound for every path.
func (b *bench) ceiling(ctx context.Context) (float64, error) {
	const name = "none"
	r, err := newRig(name)
	if err != nil {
		return 0, err
	}
	defer r.close() // its resources end with the process at the latest
	if r.receivers[name], err = newReceiver(r.node, "up0"); err != nil {
		return 0, err
	}
	if err := errors.Join(r.injection(true), r.generator.aim(r.flowsTo(onNode, 1, 1))); err != nil {
		return 0, err
	}
	c, err := compare(ctx, []*rig{r}, b.rounds, func(r *rig) (float64, error) { return packetRate(r, name, b.packetCount) })
	if err != nil {
		return 0, fmt.Errorf("packets swallowed on arrival: %w", err)
	}
	return c.of(name).median, nil
}

// packets compares the rigs with the given numbers of connections and services.
func (b *bench) packets(ctx context.Context, rigs []*rig, p place, connections, services int) (comparison, error) {
	return b.packetsOf(ctx, rigs, p, func(r *rig) flows { return r.flowsTo(p, connections, services) })
}

// packetsOf compares the rigs with packets of connections that are already open.
func (b *bench) packetsOf(ctx context.Context, rigs []*rig, p place, of func(*rig) flows) (comparison, error) {
	packets := b.packetCount
	for _, r := range rigs {
		f := of(r)
		packets = max(packets, f.connections)
		if err := establish(r, p, f); err != nil {
			return comparison{}, err
		}
	}
	for _, r := range rigs {
		if err := wantXDP(ctx, r); err != nil {
			return comparison{}, fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) { return packetRate(r, p, packets) })
}
