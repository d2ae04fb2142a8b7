// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// outside is the destination of the masqueraded connections: behind a host, with enough addresses
// that one source address has ports for all of them.
type outside struct {
	device        string // through which they leave
	first, prefix string
}

var outsides = map[place]outside{
	onNode:    {"pod0", "10.5.0.1", "10.5.0.0/16"},
	elsewhere: {"up1", "10.4.0.1", "10.4.0.0/16"},
}

const outsideCount = 64

// masqueradeRules translate the source of packets that leave through a device to the device's
// address.
const masqueradeRules = `
table ip bench {
	chain postrouting { type nat hook postrouting priority srcnat; oifname { "up1", "pod0" } masquerade; }
}
`

func (r *rig) attachMasquerade() error {
	if err := (&nftables{rig: r}).keepUDP(); err != nil {
		return err
	}
	return r.node.run(masqueradeRules, "nft", "-f", "-")
}

// translators are the paths in addition to plain routing.
var translators = []string{pathMasquerade, pathBare, pathOther, pathOurs}

// translation measures masquerading of the client's connections through the other ports.
func (b *bench) translation(ctx context.Context) error {
	l := b.withXDP(lineup{paths: b.available(append([]string{pathKernel}, translators...)), direct: true})
	s := b.report.section("Masquerading",
		"The client's connections leave with the address of their output port: a port to\n"+
			"a namespace on the node (*on the node*; each packet is rewritten as much as a\n"+
			"reply to a masqueraded client in that namespace would be), or the other port.\n"+
			"**Kernel routing** and the **bare redirect**, a program that redirects every\n"+
			"packet of a port without inspecting it, translate nothing. Packets: throughput\n"+
			"of a single core, in millions of 64-byte UDP packets per second; consecutive\n"+
			"packets belong to different connections. New connections: thousands per second\n"+
			"(UDP: the first packet and its reply; TCP: also a request, its reply and the\n"+
			"close), with client and server on the same core."+xdpText,
		slices.Concat([]string{"what", "to", pathKernel}, b.available(translators), b.available(pathsInXDP), []string{pathOurs + " to " + pathMasquerade})...)
	return b.withEachPlace(ctx, l, b.connectionsMax, func(rigs []*rig, p place) error {
		if err := masqueradeBy(ctx, rigs, p); err != nil {
			return err
		}
		if err := b.translatedPackets(ctx, rigs, p, s); err != nil || p == onNode {
			return err
		}
		// XDP does not handle new connections.
		rigs = slices.DeleteFunc(slices.Clone(rigs), func(r *rig) bool { return r.inXDP() })
		return b.translatedConnections(ctx, rigs, p, s)
	})
}

// masqueradeBy makes the rigs route connections to the outside through the host at a place.
func masqueradeBy(ctx context.Context, rigs []*rig, p place) error {
	for _, r := range rigs {
		if err := errors.Join(r.node.route(outsides[p].prefix, backendFirst[p]), r.aimBare(p)); err != nil {
			return err
		}
		if d, ok := r.balancer.(*loxilight); ok {
			if err := d.masquerade(ctx, outsides[p].device); err != nil {
				return err
			}
		}
	}
	return nil
}

// translatedRow adds a row, and its ratio to the result of nftables, with a target.
func (b *bench) translatedRow(s *section, what string, p place, c comparison, unit float64, format string, want float64) {
	cells := append([]string{what, string(p)}, c.cellsTo(pathKernel, unit, format, slices.Concat(b.available(translators), b.available(pathsInXDP))...)...)
	s.row(append(cells, c.cell(pathOurs, pathMasquerade))...)
	b.report.atLeast(fmt.Sprintf("masquerading, %s, %s", what, p), c, pathOurs, pathMasquerade, want)
	b.report.atLeast(fmt.Sprintf("masquerading, %s, %s, in XDP", what, p), c, pathXDP, pathMasquerade, want)
}

func (b *bench) translatedPackets(ctx context.Context, rigs []*rig, p place, s *section) error {
	for _, connections := range []int{1024, 65536} {
		if connections > b.connectionsMax {
			continue
		}
		f := flows{connections: connections, target: outsides[p].first, targets: outsideCount, port: backendPort}
		before, err := shortcutsOf(ctx, rigs)
		if err != nil {
			return err
		}
		c, err := b.packetsOf(ctx, rigs, p, func(*rig) flows { return f })
		if err == nil {
			err = b.wantTaken(ctx, rigs, before, connections, trackedShare)
		}
		if err != nil {
			return fmt.Errorf("%s, %d connections: %w", p, connections, err)
		}
		b.translatedRow(s, fmt.Sprintf("packets, %s connections", grouped(connections)), p, c, 1e6, "%.2f", 2)
	}
	return nil
}

func (b *bench) translatedConnections(ctx context.Context, rigs []*rig, p place, s *section) error {
	count := min(freshBatch, b.packetCount)
	f := flows{connections: count, target: outsides[p].first, targets: outsideCount, port: backendPort}
	sources := newSources(64)
	c, err := compareFresh(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
		return connectionRate(r, p, f, sources)
	})
	if err != nil {
		return fmt.Errorf("new UDP connections: %w", err)
	}
	b.translatedRow(s, "new UDP connections", p, c, 1e3, "%.0f", 2.4)
	times := map[string]int{}
	c, err = compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
		// A different backend each time: the ports towards one backend suffice for a minute of
		// connections.
		target := addressAt(backendFirst[p], times[r.name]%backendCount)
		times[r.name]++
		cpu, err := tcpRun(ctx, r, p, target, backendPort, b.tcpConnections, false)
		return float64(b.tcpConnections) / cpu.Seconds(), err
	})
	if err != nil {
		return fmt.Errorf("new TCP connections: %w", err)
	}
	b.translatedRow(s, "new TCP connections", p, c, 1e3, "%.1f", 1.2) // the bare redirect has about 1.3
	return nil
}
