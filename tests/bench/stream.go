// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// tcpTarget returns the address to which the rig's client connects.
func (r *rig) tcpTarget(p place) (string, int) {
	if r.balancer == nil || r.direct {
		return backendFirst[p], backendPort
	}
	return frontendFirst[p], frontendPort
}

// tcpWant are our targets for TCP connections, relative to nftables. With a program that inspects
// nothing, the ratio is about 1.3.
var tcpWant = map[place]float64{onNode: 1.29, elsewhere: 1.27}

// tcp measures connections and requests.
func (b *bench) tcp(ctx context.Context) error {
	l := lineup{paths: append(slices.Clone(b.paths), b.available([]string{pathBare, pathOther})...)}
	others := slices.DeleteFunc(slices.Clone(l.paths[1:]), func(path string) bool { return path == pathNftables || path == pathOurs })
	others = append(append([]string{pathNftables}, others...), pathOurs)
	s := b.report.section("TCP connections and requests",
		fmt.Sprintf("Thousands per second, with one core as client, node and server, %d at a time; %d bytes each way.\n"+
			"In the rows *connections*, each connection carries one request; in the rows\n"+
			"*requests*, persistent connections carry many, one after the other. **Bare\n"+
			"redirect** is a program that redirects every packet of a port without inspecting\n"+
			"it: an upper bound for any program.", tcpBatch, requestSize),
		slices.Concat([]string{"backends", "what", pathKernel}, others, []string{pathOurs + " to nftables"})...)
	return b.withRigs(ctx, l, 0, func(rigs []*rig) error {
		for _, p := range places {
			if err := setAll(ctx, rigs, servicesFor(p, 1, backendCount, "tcp")); err != nil {
				return err
			}
			for _, keep := range []bool{false, true} {
				what, count := "connections", b.tcpConnections
				if keep {
					what, count = "requests", b.tcpRequests
				}
				c, err := compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
					if err := r.aimBare(p); err != nil {
						return 0, err
					}
					target, port := r.tcpTarget(p)
					cpu, err := tcpRun(ctx, r, p, target, port, count, keep)
					return float64(count) / cpu.Seconds(), err
				})
				if err != nil {
					return fmt.Errorf("%s to backends %s: %w", what, p, err)
				}
				cells := append(c.cellsTo(pathKernel, 1e3, "%.1f", others...), c.cell(pathOurs, pathNftables))
				s.row(append([]string{string(p), what}, cells...)...)
				if !keep {
					b.report.atLeast(fmt.Sprintf("TCP connections, backends %s", p), c, pathOurs, pathNftables, tcpWant[p])
				}
			}
		}
		return nil
	})
}

// bulk measures throughput.
func (b *bench) bulk(ctx context.Context) error {
	s := b.report.section("Bulk TCP",
		"Gbit/s, all cores. Without segmentation offload, packets cross the node as they do on a plain NIC.",
		"backends", "offload", "streams", pathKernel, pathNftables, pathOurs, pathOurs+" to nftables")
	return b.withRigs(ctx, b.services(), 0, func(rigs []*rig) error {
		for _, p := range places {
			if err := setAll(ctx, rigs, servicesFor(p, 1, backendCount, "tcp")); err != nil {
				return err
			}
			for _, offload := range []bool{true, false} {
				var errs []error
				for _, r := range rigs {
					errs = append(errs, r.segmentation(offload))
				}
				if err := errors.Join(errs...); err != nil {
					return err
				}
				for _, streams := range []int{1, 4} {
					c, err := compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
						target, port := r.tcpTarget(p)
						return bulkRun(r, p, target, port, streams, b.bulkTime)
					})
					if err != nil {
						return fmt.Errorf("%d streams to backends %s: %w", streams, p, err)
					}
					s.row(append([]string{string(p), onOff(offload), fmt.Sprint(streams)}, c.cells(1e9/8, "%.1f")...)...)
					want := 1.0
					if offload {
						want = 0.9 // counts as equal
					}
					what := fmt.Sprintf("bulk TCP, streams: %d, offload %s, backends %s", streams, onOff(offload), p)
					b.report.atLeast(what, c, pathOurs, pathKernel, want)
				}
			}
		}
		return nil
	})
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func setAll(ctx context.Context, rigs []*rig, services []service) error {
	for _, r := range rigs {
		if err := r.set(ctx, services); err != nil {
			return err
		}
	}
	return nil
}
