// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// forwarding is one way in which a node forwards what no service takes: what is
// measured is plain traffic of the client with the backends themselves.
type forwarding struct {
	title   string
	base    string   // the path that the others are compared to
	paths   []string // beside it
	bridged bool
	want    map[place]float64 // of small packets with 1,024 connections, to base
}

// routed measures a router.
func (b *bench) routed(ctx context.Context) error {
	return b.forward(ctx, forwarding{
		title: "Routed",
		base:  pathKernel, paths: []string{pathFlowtable, pathBare, pathOther, pathOurs},
		want: map[place]float64{onNode: 1.45, elsewhere: 1.15},
	})
}

// bridged measures a bridge.
func (b *bench) bridged(ctx context.Context) error {
	return b.forward(ctx, forwarding{
		title: "Bridged",
		base:  pathBridge, paths: []string{pathBare, pathOther, pathOurs}, bridged: true,
	})
}

// forwardText says what the tables of plain traffic have in common.
const forwardText = "No service: the client talks to the backends, which are in a namespace that a port of the node\n" +
	"leads to (*on the node*), or behind another port. **Bare redirect** is a program that sends all packets of a\n" +
	"port the same way and looks at nothing: no program can be faster."

func (b *bench) forward(ctx context.Context, f forwarding) error {
	columns := b.available(append([]string{f.base}, f.paths...))
	f.paths = columns[1:]
	l := lineup{paths: columns, bridged: f.bridged, direct: true}
	packets := b.report.section(f.title+": small UDP packets", forwardText+"\n"+
		"Millions of 64-byte packets a second of one core, which does it all; each belongs to another connection than\nthe one before it.",
		append([]string{"to", "connections"}, columns...)...)
	for _, p := range places {
		err := b.withRigs(ctx, l, b.connectionsMax, func(rigs []*rig) error {
			return b.forwardPackets(ctx, rigs, p, f, packets)
		})
		if err != nil {
			return err
		}
	}
	return b.withRigs(ctx, l, 0, func(rigs []*rig) error {
		if err := b.forwardRequests(ctx, rigs, f, columns); err != nil {
			return err
		}
		return b.forwardBulk(ctx, rigs, f, columns)
	})
}

// forwardConnections are how many connections the small packets belong to.
var forwardConnections = []int{1024, 65536, 1_000_000}

func (b *bench) forwardPackets(ctx context.Context, rigs []*rig, p place, f forwarding, s *section) error {
	for _, r := range rigs {
		if err := r.aimBare(p); err != nil {
			return err
		}
	}
	for _, connections := range forwardConnections {
		if connections > b.connectionsMax {
			continue
		}
		before, err := trackedBy(ctx, rigs)
		if err != nil {
			return err
		}
		measured := b.as(connections)
		c, err := measured.packets(ctx, rigs, p, connections, 1)
		if err == nil {
			err = measured.wantTracked(ctx, rigs, before, connections)
		}
		if err != nil {
			return fmt.Errorf("%s, %d connections: %w", p, connections, err)
		}
		s.row(append([]string{string(p), grouped(connections)}, c.cellsTo(f.base, 1e6, "%.2f", f.paths...)...)...)
		if want := f.want[p]; want != 0 && connections == 1024 {
			b.report.atLeast(fmt.Sprintf("%s, small packets, 1,024 connections, backends %s", f.title, p), c, pathOurs, f.base, want)
		}
	}
	return nil
}

// as returns b as it measures packets of so many connections: not longer than need be.
func (b *bench) as(connections int) *bench {
	brief := *b
	if connections >= 1_000_000 {
		brief.rounds = min(b.rounds, forwardRounds)
	} else {
		brief.packetCount = b.packetCount / 2
	}
	return &brief
}

// trackedBy returns how many packets took our short cut so far.
func trackedBy(ctx context.Context, rigs []*rig) (count uint64, err error) {
	for _, r := range rigs {
		if d, ok := r.balancer.(*loxilight); ok && r.name == pathOurs {
			verdicts, err := d.verdicts(ctx)
			return verdicts["tracked"], err
		}
	}
	return 0, nil
}

// wantTracked fails where packets that were measured did not take our short cut, but for
// the few that show the kernel who is there: it would be the kernel that was measured.
func (b *bench) wantTracked(ctx context.Context, rigs []*rig, before uint64, connections int) error {
	now, err := trackedBy(ctx, rigs)
	want := uint64(b.rounds*max(b.packetCount, connections)) * 9 / 10 // and one round to warm up
	if err == nil && b.measures(pathOurs) && now-before < want {
		err = fmt.Errorf("%d packets took the short cut, of at least %d", now-before, want)
	}
	return err
}

func (b *bench) forwardRequests(ctx context.Context, rigs []*rig, f forwarding, columns []string) error {
	s := b.report.section(f.title+": TCP requests",
		fmt.Sprintf("Thousands a second of one core that is client, node and server, on %d connections that stay; %d bytes each way.", tcpBatch, requestSize),
		append([]string{"to"}, columns...)...)
	for _, p := range places {
		c, err := compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
			if err := r.aimBare(p); err != nil {
				return 0, err
			}
			target, port := r.tcpTarget(p)
			cpu, err := tcpRun(ctx, r, p, target, port, b.tcpRequests, true)
			return float64(b.tcpRequests) / cpu.Seconds(), err
		})
		if err != nil {
			return fmt.Errorf("requests to backends %s: %w", p, err)
		}
		s.row(append([]string{string(p)}, c.cellsTo(f.base, 1e3, "%.1f", f.paths...)...)...)
	}
	return nil
}

// forwardRounds is how often bulk traffic is measured, and that of a million connections:
// they take most of the time, and their rounds are long.
const forwardRounds = 5

func (b *bench) forwardBulk(ctx context.Context, rigs []*rig, f forwarding, columns []string) error {
	s := b.report.section(f.title+": bulk TCP",
		"Gbit/s, all cores. Without segmentation offload packets cross the node as they do behind a plain NIC.",
		append([]string{"to", "offload", "streams"}, columns...)...)
	for _, p := range places {
		for _, offload := range []bool{true, false} {
			var errs []error
			for _, r := range rigs {
				errs = append(errs, r.aimBare(p), r.segmentation(offload))
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			for _, streams := range []int{1, 4} {
				c, err := compare(ctx, rigs, min(b.rounds, forwardRounds), func(r *rig) (float64, error) {
					target, port := r.tcpTarget(p)
					return bulkRun(r, p, target, port, streams, b.bulkTime)
				})
				if err != nil {
					return fmt.Errorf("%d streams to backends %s: %w", streams, p, err)
				}
				s.row(append([]string{string(p), onOff(offload), fmt.Sprint(streams)}, c.cellsTo(f.base, 1e9/8, "%.1f", f.paths...)...)...)
			}
		}
	}
	return nil
}

// available returns those of paths that can be measured here.
func (b *bench) available(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		switch path {
		case pathOurs:
			return b.daemon == ""
		case pathOther:
			return b.other == ""
		case pathFlowtable:
			return !b.flowtable()
		}
		return false
	})
}

// flowtableRules let the kernel's short cut carry what its connection tracking knows.
const flowtableRules = `
table inet bench {
	flowtable f { hook ingress priority 0; devices = { %s }; }
	chain forward {
		type filter hook forward priority 0;
		meta l4proto { tcp, udp } ct state established flow add @f
	}
}
`

// attachFlowtable gives the node a flowtable.
func (r *rig) attachFlowtable() error {
	if err := (&nftables{rig: r}).keepUDP(); err != nil {
		return err
	}
	return r.node.run(fmt.Sprintf(flowtableRules, "up0, up1, pod0"), "nft", "-f", "-")
}

// flowtable says whether this kernel has them.
func (b *bench) flowtable() bool {
	ns, err := newNamespace()
	if err != nil {
		return false
	}
	defer ns.close()
	return ns.run(fmt.Sprintf(flowtableRules, "lo"), "nft", "-f", "-") == nil
}
