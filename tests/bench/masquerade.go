// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
)

// Where the connections go that are masqueraded: beyond the server, to so many
// addresses that one source address has ports for all of them.
const (
	outsideFirst  = "10.4.0.1"
	outsidePrefix = "10.4.0.0/16"
	outsideCount  = 64
)

// masqueradeRules give what leaves by a device that device's address.
const masqueradeRules = `
table ip bench {
	chain postrouting { type nat hook postrouting priority srcnat; oifname "%s" masquerade; }
}
`

func (r *rig) attachMasquerade() error {
	if err := (&nftables{rig: r}).keepUDP(); err != nil {
		return err
	}
	return r.node.run(fmt.Sprintf(masqueradeRules, "up1"), "nft", "-f", "-")
}

// translation measures masquerading: what the node does for the client's connections
// by up1.
func (b *bench) translation(ctx context.Context) error {
	l := lineup{paths: b.available([]string{pathKernel, pathMasquerade, pathOurs}), direct: true}
	return b.withRigs(ctx, l, b.connectionsMax, func(rigs []*rig) error {
		for _, r := range rigs {
			if err := r.node.route(outsidePrefix, backendFirst[elsewhere]); err != nil {
				return err
			}
			if d, ok := r.balancer.(*loxilight); ok {
				if err := d.masquerade(ctx, "up1"); err != nil {
					return err
				}
			}
		}
		s := b.report.section("Masquerading",
			"The client's connections leave by the other port, with the address of that port; **kernel routing**\n"+
				"translates nothing. Packets: millions of 64-byte UDP packets a second of one core, each of another connection\n"+
				"than the one before. New connections: thousands a second; UDP: the first packet and its answer, TCP: a request\n"+
				"and its answer, too, and the end, with client and server on the same core.",
			"what", pathKernel, pathMasquerade, pathOurs, pathOurs+" to "+pathMasquerade)
		if err := b.translatedPackets(ctx, rigs, s); err != nil {
			return err
		}
		return b.translatedConnections(ctx, rigs, s)
	})
}

// translatedRow enters a row, and how it stands to twice what nftables does.
func (b *bench) translatedRow(s *section, what string, c comparison, unit float64, format string) {
	s.row(append(append([]string{what}, c.cellsTo(pathKernel, unit, format, pathMasquerade, pathOurs)...), c.cell(pathOurs, pathMasquerade))...)
	b.report.atLeast("masquerading, "+what, c, pathOurs, pathMasquerade, 2)
}

func (b *bench) translatedPackets(ctx context.Context, rigs []*rig, s *section) error {
	for _, connections := range []int{1024, 65536} {
		if connections > b.connectionsMax {
			continue
		}
		f := flows{connections: connections, target: outsideFirst, targets: outsideCount, port: backendPort}
		before, err := trackedBy(ctx, rigs)
		if err != nil {
			return err
		}
		c, err := b.packetsOf(ctx, rigs, elsewhere, func(*rig) flows { return f })
		if err == nil {
			err = b.wantTracked(ctx, rigs, before, connections)
		}
		if err != nil {
			return fmt.Errorf("%d connections: %w", connections, err)
		}
		b.translatedRow(s, fmt.Sprintf("packets, %s connections", grouped(connections)), c, 1e6, "%.2f")
	}
	return nil
}

// freshBatch is how many connections are opened in one measurement.
const freshBatch = 20_000

func (b *bench) translatedConnections(ctx context.Context, rigs []*rig, s *section) error {
	count := min(freshBatch, b.packetCount)
	f := flows{connections: count, target: outsideFirst, targets: outsideCount, port: backendPort}
	sources := newSources(64)
	c, err := compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
		return connectionRate(r, elsewhere, f, sources)
	})
	if err != nil {
		return fmt.Errorf("new UDP connections: %w", err)
	}
	b.translatedRow(s, "new UDP connections", c, 1e3, "%.0f")
	times := map[string]int{}
	c, err = compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
		// Each time another backend: the ports towards one are as many as connections are in a minute.
		target := addressAt(backendFirst[elsewhere], times[r.name]%backendCount)
		times[r.name]++
		cpu, err := tcpRun(ctx, r, elsewhere, target, backendPort, b.tcpConnections, false)
		return float64(b.tcpConnections) / cpu.Seconds(), err
	})
	if err != nil {
		return fmt.Errorf("new TCP connections: %w", err)
	}
	b.translatedRow(s, "new TCP connections", c, 1e3, "%.1f")
	return nil
}

// sources are the first source addresses of connections that nobody has seen, by rig.
type sources struct {
	first int
	next  map[string]int
}

func newSources(first int) *sources { return &sources{first, map[string]int{}} }

// of returns the offset of the next one, which leaves room for 65,536 connections.
func (s *sources) of(r *rig) int {
	offset := s.next[r.name]
	s.next[r.name] = offset + 2
	return s.first + offset
}

// connectionRate opens connections, each with a packet and its answer, and returns how
// many a second of CPU time. It tries again where packets were lost: on a busy machine
// the kernel's queues overflow.
func connectionRate(r *rig, p place, f flows, fresh *sources) (float64, error) {
	const tries = 5
	var answered uint64
	for range tries {
		f.sourceOffset = fresh.of(r)
		if err := errors.Join(r.injection(true), r.receivers[p].echo(true), r.generator.sink.echo(false), r.generator.aim(f)); err != nil {
			return 0, err
		}
		cpu, err := r.generator.send(f.connections)
		if err != nil {
			return 0, err
		}
		if answered, err = r.generator.sink.count(); err != nil {
			return 0, err
		}
		if float64(answered) >= (1-lossMax)*float64(f.connections) {
			return float64(answered) / cpu.Seconds(), nil
		}
	}
	return 0, fmt.Errorf("%d connections of %d were answered", answered, f.connections)
}
