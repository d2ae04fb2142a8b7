// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// forwarding is one way in which a node forwards plain traffic between the client and the backends,
// without services.
type forwarding struct {
	title   string
	about   string   // additional text
	base    string   // the path that the others are compared to
	paths   []string // compared with base
	bridged bool
	want    map[place]float64 // minimum ratio to base: small packets, 1,024 connections
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
		title: "Bridged", about: bridgeFlowtable(),
		base: pathBridge, paths: []string{pathBare, pathOther, pathOurs}, bridged: true,
	})
}

// forwardText describes what the tables of plain traffic have in common.
const forwardText = "No Service is involved. The client sends directly to the backends, which are in a\n" +
	"network namespace on the node (*on the node*) or on another machine (*behind another\n" +
	"port*). **Bare redirect** is a program that redirects every packet of a port without\n" +
	"inspecting it: an upper bound for any program."

func (b *bench) forward(ctx context.Context, f forwarding) error {
	columns := b.available(append([]string{f.base}, f.paths...))
	f.paths = columns[1:]
	l := lineup{paths: columns, bridged: f.bridged, direct: true}
	withXDP, text := l, f.about
	if !f.bridged { // bridged packets are handled in tc
		withXDP, text = b.withXDP(l), xdpText
	}
	if slices.Contains(columns, pathFlowtable) {
		text += flowtableText
	}
	packets := b.report.section(f.title+": small UDP packets", forwardText+"\n"+
		"Throughput of a single core that does all the work, in millions of 64-byte packets\n"+
		"per second; consecutive packets belong to different connections."+text,
		f.header(withXDP.paths, "to", "connections")...)
	err := b.withEachPlace(ctx, withXDP, b.connectionsMax, func(rigs []*rig, p place) error {
		return b.forwardPackets(ctx, rigs, p, f, withXDP.paths[1:], packets)
	})
	if err != nil {
		return err
	}
	return b.withRigs(ctx, l, 0, func(rigs []*rig) error {
		if err := b.forwardRequests(ctx, rigs, f, columns); err != nil {
			return err
		}
		return b.forwardBulk(ctx, rigs, f, columns)
	})
}

// forwardConnections are the numbers of connections that the small packets belong to.
var forwardConnections = []int{1024, 65536, 1_000_000}

func (b *bench) forwardPackets(ctx context.Context, rigs []*rig, p place, f forwarding, paths []string, s *section) error {
	for _, r := range rigs {
		if err := r.aimBare(p); err != nil {
			return err
		}
	}
	for _, connections := range forwardConnections {
		if connections > b.connectionsMax {
			continue
		}
		before, err := shortcutsOf(ctx, rigs)
		if err != nil {
			return err
		}
		measured := b.as(connections)
		c, err := measured.packets(ctx, rigs, p, connections, 1)
		if err == nil {
			err = measured.wantTaken(ctx, rigs, before, connections, trackedShare)
		}
		if err == nil {
			err = wantOffloaded(rigs, connections)
		}
		if err != nil {
			return fmt.Errorf("%s, %d connections: %w", p, connections, err)
		}
		s.row(f.cells(c, paths, 1e6, "%.2f", string(p), grouped(connections))...)
		if want := f.want[p]; want != 0 && connections == 1024 {
			what := fmt.Sprintf("%s, small packets, 1,024 connections, backends %s", f.title, p)
			b.report.atLeast(what, c, pathOurs, f.base, want)
			b.report.atLeast(what+", in XDP", c, pathXDP, f.base, want)
		}
	}
	return nil
}

// as returns a copy of b for measurements with this many connections, with no more rounds or
// packets than necessary.
func (b *bench) as(connections int) *bench {
	brief := *b
	if connections >= 1_000_000 {
		brief.rounds = min(b.rounds, forwardRounds)
	} else {
		brief.packetCount = b.packetCount / 2
	}
	return &brief
}

func (b *bench) forwardRequests(ctx context.Context, rigs []*rig, f forwarding, columns []string) error {
	s := b.report.section(f.title+": TCP requests",
		fmt.Sprintf("Thousands of requests per second, with one core as client, node and server, on %d connections that stay open; %d bytes each way.", tcpBatch, requestSize),
		f.header(columns, "to")...)
	for _, p := range places {
		before, err := shortcutsOf(ctx, rigs)
		if err != nil {
			return err
		}
		c, err := compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
			if err := r.aimBare(p); err != nil {
				return 0, err
			}
			target, port := r.tcpTarget(p)
			cpu, err := tcpRun(ctx, r, p, target, port, b.tcpRequests, true)
			return float64(b.tcpRequests) / cpu.Seconds(), err
		})
		if err == nil {
			err = before.wantShare(ctx, rigs, tcpBatch*(b.rounds+1))
		}
		if err != nil {
			return fmt.Errorf("requests to backends %s: %w", p, err)
		}
		s.row(f.cells(c, f.paths, 1e3, "%.1f", string(p))...)
	}
	return nil
}

// forwardRounds is the maximum number of rounds for bulk traffic and for a million connections,
// whose rounds take longest.
const forwardRounds = 5

func (b *bench) forwardBulk(ctx context.Context, rigs []*rig, f forwarding, columns []string) error {
	s := b.report.section(f.title+": bulk TCP",
		"Gbit/s, all cores. Without segmentation offload, packets cross the node as they do on a plain NIC.",
		f.header(columns, "to", "offload", "streams")...)
	for _, p := range places {
		for _, offload := range b.bulkOffloads {
			var errs []error
			for _, r := range rigs {
				errs = append(errs, r.aimBare(p), r.segmentation(offload))
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			for _, streams := range b.bulkStreams {
				before, err := shortcutsOf(ctx, rigs)
				if err != nil {
					return err
				}
				rounds := min(b.rounds, forwardRounds)
				c, err := compare(ctx, rigs, rounds, func(r *rig) (float64, error) {
					target, port := r.tcpTarget(p)
					return bulkRun(r, p, target, port, streams, b.bulkTime)
				})
				if err == nil {
					err = before.wantShare(ctx, rigs, streams*(rounds+1))
				}
				if err != nil {
					return fmt.Errorf("%d streams to backends %s: %w", streams, p, err)
				}
				s.row(f.cells(c, f.paths, 1e9/8, "%.1f", string(p), onOff(offload), fmt.Sprint(streams))...)
			}
		}
	}
	return nil
}

// header returns the columns of a table: the subject of a row, paths, and the ratio of our path to
// the kernel's flowtable.
func (f *forwarding) header(paths []string, about ...string) []string {
	columns := append(about, paths...)
	if slices.Contains(paths, pathFlowtable) && slices.Contains(paths, pathOurs) {
		columns = append(columns, pathOurs+" to "+pathFlowtable)
	}
	return columns
}

// cells returns a row of a table with that header.
func (f *forwarding) cells(c comparison, paths []string, unit float64, format string, about ...string) []string {
	cells := append(about, c.cellsTo(f.base, unit, format, paths...)...)
	if slices.Contains(paths, pathFlowtable) && slices.Contains(paths, pathOurs) {
		cells = append(cells, c.cell(pathOurs, pathFlowtable))
	}
	return cells
}

// available returns the paths that can be measured here.
func (b *bench) available(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		switch path {
		case pathOurs, pathXDP:
			return b.daemon == ""
		case pathOther, pathOtherXDP:
			return b.other == ""
		case pathFlowtable:
			return !flowtableIn("inet")
		}
		return false
	})
}
