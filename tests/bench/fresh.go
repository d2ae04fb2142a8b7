// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// freshShare is the part of a table that is filled in one measurement of our programs alone. The
// table of firstAlone is a quarter full at first, and 60 % full after ten rounds.
const freshShare = 1.0 / 28

// freshBatch is how many connections are opened in one measurement through the whole node.
const freshBatch = 20_000

// Before new connections are measured, some are opened until our table has grown: it doubles within
// growthTime, but a measurement opens hundreds of thousands a second.
const (
	growthRounds = 4
	growthTime   = 600 * time.Millisecond
)

// compareFresh is compare for a measurement that opens connections.
func compareFresh(ctx context.Context, rigs []*rig, rounds int, measure func(*rig) (float64, error)) (comparison, error) {
	for range growthRounds {
		for _, r := range rigs {
			if _, err := measure(r); err != nil {
				return comparison{}, fmt.Errorf("%s, before the measurement: %w", r.name, err)
			}
		}
		time.Sleep(growthTime)
	}
	return compare(ctx, rigs, rounds, measure)
}

// firstAlone measures our programs alone on first packets: in a table with room, and in a table
// full of half-open connections, as under attack.
func (b *bench) firstAlone(ctx context.Context, s *section) error {
	return b.withRigs(ctx, lineup{paths: []string{pathOurs}, fixed: true}, b.tableSize, func(rigs []*rig) error {
		r := rigs[0]
		if err := r.set(ctx, servicesFor(onNode, 1, backendCount, "udp")); err != nil {
			return err
		}
		if err := establish(r, onNode, r.flowsTo(onNode, min(b.tableSize/4, b.connectionsMax), 1)); err != nil {
			return err
		}
		p, err := newReplayer(ctx, r)
		if err != nil {
			return err
		}
		defer p.close()
		f := r.flowsTo(onNode, int(freshShare*float64(b.tableSize)), 1)
		f.sourceOffset = 14 << 16 // far from the addresses of the other connections
		first := func(*rig) (float64, error) {
			return p.cost(p.program["ingress"], actRedirect, f.connections, func() error {
				f.sourceOffset += f.connections
				return r.generator.aim(f)
			})
		}
		const what = "first packet of a connection"
		c, err := compare(ctx, rigs, b.rounds, first)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		ns := c.of(r.name)
		s.row(what, fmt.Sprintf("%.0f (%.0f–%.0f)", ns.median, ns.low, ns.high))
		b.report.atMost(what, ns.median, 1000, "ns")
		for _, full := range []struct {
			what   string
			spread bool
		}{
			{"the same, in a table full of half-open connections", false},
			{"the same, all connections from different addresses", true},
		} {
			f.spread = full.spread
			for range b.tableSize / f.connections {
				if _, err := first(r); err != nil {
					return fmt.Errorf("fill the table: %w", err)
				}
			}
			if c, err = compare(ctx, rigs, b.rounds, first); err != nil {
				return fmt.Errorf("%s: %w", full.what, err)
			}
			ns = c.of(r.name)
			s.row(full.what, fmt.Sprintf("%.0f (%.0f–%.0f)", ns.median, ns.low, ns.high))
		}
		return nil
	})
}

// fresh measures new UDP connections through a Service.
func (b *bench) fresh(ctx context.Context) error {
	l := lineup{paths: append(slices.Clone(b.paths), b.available([]string{pathBare})...)}
	s := b.report.section("New UDP connections through a Service",
		"Thousands per second, each a packet and its answer, with one core as client, node and\n"+
			"server. **Bare redirect** is a program that redirects every packet of a port without\n"+
			"inspecting it: an upper bound for any program.",
		"backends", pathKernel, pathNftables, pathBare, pathOurs, pathOurs+" to nftables", pathOurs+" to bare redirect")
	return b.withEachPlace(ctx, l, 0, func(rigs []*rig, p place) error {
		services := servicesFor(p, 1, backendCount, "udp")
		for _, r := range rigs {
			if err := errors.Join(r.set(ctx, services), r.aimBare(p)); err != nil {
				return err
			}
		}
		sources := newSources(64)
		c, err := compareFresh(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
			return connectionRate(r, p, r.flowsTo(p, min(freshBatch, b.packetCount), 1), sources)
		})
		if err != nil {
			return fmt.Errorf("backends %s: %w", p, err)
		}
		cells := append([]string{string(p)}, c.cellsTo(pathKernel, 1e3, "%.0f", pathNftables, pathBare, pathOurs)...)
		s.row(append(cells, c.cell(pathOurs, pathNftables), c.cell(pathOurs, pathBare))...)
		b.report.atLeast(fmt.Sprintf("new UDP connections, backends %s", p), c, pathOurs, pathNftables, 3)
		return nil
	})
}

// oneWay compares packets of UDP connections that are never answered with packets of answered ones.
func (b *bench) oneWay(ctx context.Context) error {
	if !b.measures(pathOurs) {
		return nil
	}
	s := b.report.section("One-way UDP",
		"Small UDP packets of one core through one Service, in millions per second; consecutive\n"+
			"packets belong to different connections, which are answered or not.",
		"backends", "connections", "answered", "not answered")
	return b.withEachPlace(ctx, lineup{paths: []string{pathOurs}, fixed: true}, b.tableSize, func(rigs []*rig, p place) error {
		r := rigs[0]
		if err := r.set(ctx, servicesFor(p, 1, backendCount, "udp")); err != nil {
			return err
		}
		for i, connections := range []int{1024, 65536} {
			if connections > b.connectionsMax {
				continue
			}
			c, err := b.oneWayTo(ctx, rigs, p, connections, 64*(1+i))
			if err != nil {
				return fmt.Errorf("%s, %d connections: %w", p, connections, err)
			}
			s.row(append([]string{string(p), grouped(connections)}, c.cellsTo("answered", 1e6, "%.2f", "not answered")...)...)
			what := fmt.Sprintf("one-way UDP, %s connections, backends %s", grouped(connections), p)
			b.report.atLeast(what, c, "not answered", "answered", 0.97)
		}
		return nil
	})
}

// oneWayTo compares one-way connections from other sources with answered ones.
func (b *bench) oneWayTo(ctx context.Context, rigs []*rig, p place, connections, otherSource int) (comparison, error) {
	r := rigs[0]
	answered := r.flowsTo(p, connections, 1)
	if err := establish(r, p, answered); err != nil {
		return comparison{}, err
	}
	silent := answered
	silent.sourceOffset = otherSource
	// A connection is one-way from its third packet on, if that comes 2 s or more after the first
	// one.
	for range 4 {
		if err := r.generator.aim(silent); err != nil {
			return comparison{}, err
		}
		if _, err := r.generator.send(connections); err != nil {
			return comparison{}, err
		}
		time.Sleep(1100 * time.Millisecond)
	}
	before, err := shortcutsOf(ctx, rigs)
	if err != nil {
		return comparison{}, err
	}
	var c comparison
	for round := range b.rounds + 1 {
		figures := map[string]float64{}
		for i, name := range []string{"answered", "not answered"} {
			f := []flows{answered, silent}[i]
			if err := errors.Join(ctx.Err(), r.generator.aim(f)); err != nil {
				return c, err
			}
			if figures[name], err = packetRate(r, p, max(b.packetCount, connections)); err != nil {
				return c, fmt.Errorf("%s: %w", name, err)
			}
		}
		if round > 0 {
			c.rounds = append(c.rounds, figures)
		}
	}
	now, err := shortcutsOf(ctx, rigs)
	if err != nil {
		return c, err
	}
	want := uint64(trackedShare * float64(2*b.rounds*max(b.packetCount, connections)))
	if taken := now[r.name].taken - before[r.name].taken; taken < want {
		return c, fmt.Errorf("%d packets took the fast path, of at least %d", taken, want)
	}
	return c, nil
}

// sources contains the first unused source address of each rig.
type sources struct {
	first int
	next  map[string]int
}

func newSources(first int) *sources { return &sources{first, map[string]int{}} }

// of returns the offset of the next unused source address, and reserves room for 65,536
// connections.
func (s *sources) of(r *rig) int {
	offset := s.next[r.name]
	s.next[r.name] = offset + 2
	return s.first + offset
}

// connectionRate opens connections, each with a packet and its answer, and returns their number per
// second of CPU time. It retries if packets were lost: on a busy machine the kernel's queues
// overflow.
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
