// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
)

// ruleCounts returns the number of rules in each case; the last case has groups of prefixes, too.
func (b *bench) ruleCounts() []int { return []int{10, b.rulesMax / 10, b.rulesMax} }

func pathRules(count int) string { return grouped(count) + " rules" }

// rules measures the cost of rules: for the first packet of a connection, and for every later one.
func (b *bench) rules(ctx context.Context) error {
	if !b.measures(pathOurs) {
		return nil
	}
	counts := b.ruleCounts()
	var paths []string
	for _, count := range counts {
		paths = append(paths, pathRules(count))
	}
	l := lineup{paths: append([]string{pathUnruled}, paths...), direct: true}
	return b.withRigs(ctx, l, 0, func(rigs []*rig) error {
		for i, count := range counts {
			d, ok := rigs[1+i].balancer.(*loxilight)
			if !ok {
				return fmt.Errorf("%s: no daemon of ours", rigs[1+i].name)
			}
			if err := d.firewall(ctx, count, count == b.rulesMax); err != nil {
				return fmt.Errorf("%s: %w", rigs[1+i].name, err)
			}
		}
		s := b.report.section("Rules of the firewall",
			fmt.Sprintf("Packets are routed to a backend on the node. Every rule matches some fields\n"+
				"of the packets, but only the last rule matches all of them, and allows them.\n"+
				"In the largest set, one rule in a hundred has a group of %s prefixes. First\n"+
				"packets alone: ns by `BPF_PROG_RUN`; the other rows are rates of one core,\n"+
				"in millions per second.", grouped(groupSize)),
			append([]string{"what"}, l.paths...)...)
		return b.ruled(ctx, rigs, s, paths)
	})
}

func (b *bench) ruled(ctx context.Context, rigs []*rig, s *section, paths []string) error {
	few, many := paths[0], paths[len(paths)-1]
	alone, err := b.firstPackets(ctx, rigs)
	if err != nil {
		return err
	}
	s.row(append([]string{"first packet, the program alone"}, alone.cellsTo(pathUnruled, 1, "%.0f", paths...)...)...)
	if ratio, ok := alone.ratio(many, pathUnruled); ok {
		b.report.target("first packet, "+many+" to no rules", ratio.String(), "at most 1.2", ratio.median <= 1.2)
	}
	sources := newSources(64)
	opened, err := compareFresh(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
		return connectionRate(r, onNode, r.flowsTo(onNode, min(freshBatch, b.packetCount), 1), sources)
	})
	if err != nil {
		return fmt.Errorf("new connections: %w", err)
	}
	s.row(append([]string{"new connections, a packet and its answer"}, opened.cellsTo(pathUnruled, 1e6, "%.2f", paths...)...)...)
	for _, connections := range []int{1024, 65536} {
		if connections > b.connectionsMax {
			continue
		}
		c, err := b.packets(ctx, rigs, onNode, connections, 1)
		if err != nil {
			return fmt.Errorf("%d connections: %w", connections, err)
		}
		what := fmt.Sprintf("packets, %s connections", grouped(connections))
		s.row(append([]string{what}, c.cellsTo(pathUnruled, 1e6, "%.2f", paths...)...)...)
		b.report.atLeast(what+", "+many, c, many, few, 0.9)
	}
	return nil
}

// firstPackets measures our programs alone, on packets that open connections.
func (b *bench) firstPackets(ctx context.Context, rigs []*rig) (comparison, error) {
	replayers := map[string]*replayer{}
	for _, r := range rigs {
		p, err := newReplayer(ctx, r)
		if err != nil {
			return comparison{}, err
		}
		defer p.close()
		replayers[r.name] = p
	}
	sources := newSources(1024)
	return compareFresh(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
		p, f := replayers[r.name], r.flowsTo(onNode, min(freshBatch, b.packetCount), 1)
		return p.cost(p.program["ingress"], actUnspec, f.connections, func() error {
			f.sourceOffset = sources.of(r)
			return r.generator.aim(f)
		})
	})
}
