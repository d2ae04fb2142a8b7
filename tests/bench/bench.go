// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/loxilight/loxilight/api"
)

// The paths that are compared.
const (
	pathKernel   = "kernel routing"
	pathNftables = "nftables"
	pathOurs     = "loxilight"
	pathXDP      = "loxilight, XDP" // on the client's port
	// For traffic without services.
	pathBridge    = "kernel bridge"
	pathBare      = "bare redirect"
	pathFlowtable = "nftables flowtable"
	pathOther     = "other build"
	pathOtherXDP  = "other build, XDP"
	// For translation, and for rules; the other paths for rules are named by pathRules.
	pathMasquerade = "nftables masquerade"
	pathUnruled    = "no rules"
)

// balancer turns the node of a rig from a router into a load balancer.
type balancer interface {
	// set configures exactly the given services, and returns when packets are handled accordingly.
	set(ctx context.Context, services []service) error
	// alter updates one service.
	alter(ctx context.Context, s service) error
	close() error
}

// bench is one run.
type bench struct {
	daemon string   // path of loxilightd
	other  string   // path of a different build, compared for plain traffic; empty: none
	paths  []string // measured with services
	report *report
	// The size of the run.
	rounds         int
	packetCount    int    // packets of one measurement
	connectionsMax int    // UDP connections of the largest case
	tableSize      int    // minimum room for connections in our tables
	otherTables    string // sizes of our other tables, as in the configuration
	serviceCount   int    // services of the largest case
	rulesMax       int    // rules of the largest case
	policyScale    policyScale
	tcpConnections int
	tcpRequests    int
	sharedRigs     bool // the cases of both places use the same rigs, as measurements must not
	bulkTime       time.Duration
	bulkOffloads   []bool
	bulkStreams    []int
}

// shorten reduces a run to a check that everything works.
func (b *bench) shorten() {
	b.rounds = 3
	b.packetCount = 300_000
	b.connectionsMax = 65536
	b.serviceCount = 1000
	b.rulesMax = 1000
	b.policyScale = policyScale{pods: 1000, local: 20, policies: 1000 + 20, ofServer: 20}
	b.tcpConnections, b.tcpRequests = 3200, 12_800
	b.bulkTime = 100 * time.Millisecond
}

// emulate configures a run for an emulated machine, whose clock counts instructions: it is slow,
// but repeated measurements give the same result. More connections than the minimum are pointless
// without caches.
func (b *bench) emulate() {
	b.report.emulated = true
	b.rounds = 5
	b.packetCount = 40_000
	b.connectionsMax, b.tableSize = 1024, 1<<16
	b.tcpRequests = 6_400
	b.bulkTime = 500 * time.Millisecond
	b.bulkOffloads, b.bulkStreams = []bool{false}, []int{1}
}

// measures reports whether a path is measured.
func (b *bench) measures(path string) bool { return slices.Contains(b.paths, path) }

// lineup is the set of compared paths, and the common settings of their rigs.
type lineup struct {
	paths   []string
	bridged bool // nodes are bridges
	direct  bool // clients connect to the backends directly
	two     bool // two nodes: the client is behind one of them, the server behind the other
	fixed   bool // our table of connections has its full size from the start
	pods    bool // the node has pods, under the policies of the path
}

// services is the line-up for the measurement of services.
func (b *bench) services() lineup { return lineup{paths: b.paths} }

// withRigs builds a rig for each path, ours with room for the given number of connections, and
// removes the rigs when fn returns.
func (b *bench) withRigs(ctx context.Context, l lineup, connections int, fn func([]*rig) error) (err error) {
	restore, err := raiseConntrack(connections)
	if err != nil {
		return fmt.Errorf("raise the conntrack limit: %w", err)
	}
	defer func() { err = errors.Join(err, restore()) }()
	var rigs []*rig
	defer func() {
		for _, r := range rigs {
			err = errors.Join(err, r.close())
		}
	}()
	for _, name := range l.paths {
		r, err := buildRig(&rig{name: name, bridged: l.bridged, direct: l.direct, two: l.two, fixed: l.fixed, pods: l.pods})
		if err != nil {
			return err
		}
		rigs = append(rigs, r)
	}
	errs := make([]error, len(rigs))
	var all sync.WaitGroup
	for i, r := range rigs {
		all.Go(func() {
			if err := b.attachPath(ctx, r, connections); err != nil {
				errs[i] = fmt.Errorf("%s: %w", r.name, err)
			}
		})
	}
	if all.Wait(); errors.Join(errs...) != nil {
		return errors.Join(errs...)
	}
	return fn(rigs)
}

// withEachPlace is withRigs for the backends of each place: by default with new rigs for each.
func (b *bench) withEachPlace(ctx context.Context, l lineup, connections int, fn func([]*rig, place) error) error {
	if b.sharedRigs {
		return b.withRigs(ctx, l, connections, func(rigs []*rig) error {
			for _, p := range places {
				if err := fn(rigs, p); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, p := range places {
		if err := b.withRigs(ctx, l, connections, func(rigs []*rig) error { return fn(rigs, p) }); err != nil {
			return err
		}
	}
	return nil
}

// attachPath configures the node of a rig for the path in the rig's name.
func (b *bench) attachPath(ctx context.Context, r *rig, connections int) error {
	if r.two {
		return b.attachNodes(ctx, r, connections)
	}
	switch r.name {
	case pathNftablesPolicies:
		return r.attachNftablesPolicies(&b.policyScale)
	case pathIptables:
		return r.attachIptables(&b.policyScale)
	case pathUserSpace:
		return r.attachUserSpace()
	case pathNftables:
		r.balancer = &nftables{rig: r}
		return nil
	case pathOther, pathOtherXDP:
		return b.attachOurs(ctx, r, b.other, connections)
	case pathBare:
		return r.attachBare()
	case pathFlowtable:
		return r.attachFlowtable()
	case pathMasquerade:
		return r.attachMasquerade()
	case pathKernel, pathBridge:
		return nil
	}
	if r.pods {
		return b.attachPods(ctx, r, connections)
	}
	return b.attachOurs(ctx, r, b.daemon, connections) // its name contains its configuration
}

// ampleTables are the sizes of the other tables of a benchmark.
const ampleTables = "services: 65536, backends: 1048576"

// tables returns the sizes of the tables of a daemon with room for the given number of connections;
// the tables of connections grow from their default minimum.
func (b *bench) tables(connections int) string {
	return fmt.Sprintf("{connections: {min: %d, max: %d}, %s}", min(connections, 65536), connections, b.otherTables)
}

// attachOurs starts one of our daemons on the rig's node.
func (b *bench) attachOurs(ctx context.Context, r *rig, daemon string, connections int) error {
	devices := []api.InterfaceSpec{{Device: "up0"}, {Device: "up1"}}
	if !r.pods { // else it is the port of an Endpoint
		devices = append(devices, api.InterfaceSpec{Device: "pod0", Role: "port"})
	}
	if r.inXDP() {
		devices[0].XDP = "native"
		if err := r.takeFrames(); err != nil {
			return err
		}
	}
	tables := b.tables(max(connections, b.tableSize))
	if daemon == b.other || r.fixed {
		tables = fmt.Sprintf("{connections: %d, %s}", max(connections, b.tableSize), b.otherTables) // every version knows this form
	}
	d, err := startLoxilight(ctx, r.node, devices, daemon, tables)
	if err != nil {
		return fmt.Errorf("start of loxilight: %w", err)
	}
	r.balancer = d
	return b.report.note(ctx, d)
}

// set configures the rig's balancer with services; a plain router needs none.
func (r *rig) set(ctx context.Context, services []service) error {
	if r.balancer == nil {
		return nil
	}
	if err := r.balancer.set(ctx, services); err != nil {
		return fmt.Errorf("%s: set %d services: %w", r.name, len(services), err)
	}
	return nil
}
