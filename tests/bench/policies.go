// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
)

// The paths that are compared under network policies.
const (
	pathFree             = "no policies"
	pathPolicies         = "policies"
	pathFreeXDP          = pathFree + ", XDP"
	pathPoliciesXDP      = pathPolicies + ", XDP"
	pathNftablesPolicies = "nftables with policies"
	pathIptables         = "iptables and ipset"
	pathUserSpace        = "user space"
)

// attachPods starts our daemon on a node whose pods are Endpoints, under policies unless the rig's name
// says otherwise.
func (b *bench) attachPods(ctx context.Context, r *rig, connections int) error {
	if err := b.attachOurs(ctx, r, b.daemon, connections); err != nil {
		return err
	}
	d, ok := r.balancer.(*loxilight)
	if !ok {
		return fmt.Errorf("%s: no daemon of ours", r.name)
	}
	if err := r.connectPods(ctx, d); err != nil {
		return err
	}
	if strings.HasPrefix(r.name, pathFree) {
		return nil
	}
	if err := r.addPods(ctx, d, b.policyScale.local); err != nil {
		return err
	}
	return d.apply(ctx, b.policyScale.objects())
}

// connectPods moves the ports of the pods to a bridge, which gets the addresses that they had.
func (r *rig) connectPods(ctx context.Context, d *loxilight) error {
	var gateways []string
	for _, s := range r.stations() {
		if s.ns != r.pod && s.ns != r.near {
			continue
		}
		gateways = append(gateways, fmt.Sprintf("%s/%d", s.gateway, s.bits))
		if err := r.node.run("", "ip", "address", "flush", "dev", s.port); err != nil {
			return err
		}
	}
	bridge := mustObject(api.KindBridge, "pods", api.BridgeSpec{Device: bridgeName, Addresses: gateways})
	if err := d.apply(ctx, []api.Object{bridge}); err != nil {
		return err
	}
	outside, err := r.node.mac(bridgeName)
	if err != nil {
		return err
	}
	var endpoints []api.Object
	for _, s := range r.stations() {
		name := map[*namespace]string{r.pod: "server", r.near: "client"}[s.ns]
		if name == "" {
			continue
		}
		inside, err := s.ns.mac("eth0")
		if err != nil {
			return err
		}
		spec := api.EndpointSpec{Device: s.port, MAC: inside.String(), Labels: map[string]string{"app": name}}
		for i := range s.count {
			addr := addressAt(s.first, i)
			spec.Addresses = append(spec.Addresses, addr)
			if err := r.node.neighbour(bridgeName, addr, inside); err != nil {
				return err
			}
		}
		if err := s.ns.neighbour("eth0", s.gateway, outside); err != nil {
			return err
		}
		endpoints = append(endpoints, mustObject(api.KindEndpoint, "bench/"+name, spec))
	}
	return d.apply(ctx, endpoints)
}

// addPods adds the other pods of the node; their ends of the links are all in one namespace.
func (r *rig) addPods(ctx context.Context, d *loxilight, count int) error {
	var endpoints []api.Object
	scale := policyScale{}
	for pod := range count {
		port, end := fmt.Sprint("x", pod), fmt.Sprint("y", pod)
		if err := veth(r.node, port, r.near, end); err != nil {
			return err
		}
		mac, err := r.near.mac(end)
		if err != nil {
			return err
		}
		spec := api.EndpointSpec{Device: port, MAC: mac.String(), Addresses: []string{scale.addr(pod)}}
		endpoints = append(endpoints, mustObject(api.KindEndpoint, endpointOf(pod), spec))
	}
	return d.apply(ctx, endpoints)
}

// policies measures the cost of network policies: for packets, for new connections, and of changes.
func (b *bench) policies(ctx context.Context) error {
	if !b.measures(pathOurs) {
		return nil
	}
	if err := b.packetsUnderPolicies(ctx); err != nil {
		return err
	}
	if err := b.connectionsUnderPolicies(ctx); err != nil {
		return err
	}
	return b.changesOfPolicies(ctx)
}

// packetsUnderPolicies compares packets of established connections with and without policies.
func (b *bench) packetsUnderPolicies(ctx context.Context) error {
	paths := []string{pathFree, pathPolicies, pathFreeXDP, pathPoliciesXDP}
	s := b.report.section("Established packets under network policies",
		fmt.Sprintf("A node with a pod, which is the server, without policies and with %s of them and\n"+
			"%s other pods, %d of them on the node. %d policies apply to the server; only the last\n"+
			"allows the connections. Millions of 64-byte UDP packets per second of one core, to the\n"+
			"pod or through another port, where no policy applies.",
			grouped(b.policyScale.policies), grouped(b.policyScale.pods), b.policyScale.local, b.policyScale.ofServer)+xdpText,
		"to", "connections", pathFree, pathPolicies, pathFreeXDP, pathPoliciesXDP, pathPoliciesXDP+" to "+pathFreeXDP)
	return b.withRigs(ctx, lineup{paths: paths, direct: true, pods: true}, 65536, func(rigs []*rig) error {
		for _, p := range places {
			for _, connections := range []int{1024, 65536} {
				if connections > b.connectionsMax {
					continue
				}
				c, err := b.packets(ctx, rigs, p, connections, 1)
				if err != nil {
					return fmt.Errorf("%s, %d connections: %w", p, connections, err)
				}
				cells := append([]string{string(p), grouped(connections)}, c.cellsTo(pathFree, 1e6, "%.2f", paths[1:]...)...)
				s.row(append(cells, c.cell(pathPoliciesXDP, pathFreeXDP))...)
				what := fmt.Sprintf("established packets, %s connections, %s, %s policies", grouped(connections), p, grouped(b.policyScale.policies))
				b.report.atLeast(what, c, pathPolicies, pathFree, 0.98)
				b.report.atLeast(what, c, pathPoliciesXDP, pathFreeXDP, 0.98)
			}
		}
		return nil
	})
}

// others are the implementations with which ours is compared, and our goals for new TCP connections.
var others = map[string]float64{pathNftablesPolicies: 1.2, pathIptables: 2, pathUserSpace: 5}

// connectionsUnderPolicies compares what opens connections, and what may not.
func (b *bench) connectionsUnderPolicies(ctx context.Context) error {
	paths := []string{pathFree, pathPolicies, pathNftablesPolicies, pathIptables, pathUserSpace}
	s := b.report.section("New connections under network policies",
		fmt.Sprintf("As above, compared with other implementations on a node that routes between its pods:\n"+
			"**nftables** has a verdict map by pod, a chain for each pod and a set for each team;\n"+
			"**iptables and ipset** a chain for each pod and each policy, as Calico and kube-router\n"+
			"have; both accept packets of known connections first. In **user space**, a program that\n"+
			"looks into one map decides about each first packet (NFQUEUE). %d policies apply to the\n"+
			"server. Thousands per second of one core, which is client, node and server: UDP\n"+
			"connections, each a packet and its answer; TCP connections from pod to pod, each with a\n"+
			"request and the close; UDP packets that no policy allows.", b.policyScale.ofServer),
		append([]string{"what"}, paths...)...)
	// netfilter keeps all of them until the end.
	opened := (b.rounds + 1 + growthRounds) * (freshBatch + b.tcpConnections)
	return b.withRigs(ctx, lineup{paths: paths, direct: true, pods: true}, 2*opened, func(rigs []*rig) error {
		row := func(what, base string, c comparison) {
			var cells []string
			for _, path := range paths {
				switch {
				case len(c.rounds) == 0 || c.rounds[0][path] == 0:
					cells = append(cells, "–")
				case path == base:
					cells = append(cells, fmt.Sprintf("%.0f", c.of(base).median/1e3))
				default:
					cells = append(cells, c.cell(path, base))
				}
			}
			s.row(append([]string{what}, cells...)...)
		}
		kernel := slices.DeleteFunc(slices.Clone(rigs), func(r *rig) bool { return r.name == pathUserSpace })
		sources := newSources(64)
		c, err := compareFresh(ctx, kernel, b.rounds, func(r *rig) (float64, error) {
			return connectionRate(r, onNode, r.flowsTo(onNode, min(freshBatch, b.packetCount), 1), sources)
		})
		if err != nil {
			return fmt.Errorf("new UDP connections: %w", err)
		}
		row("UDP connections", pathFree, c)
		if c, err = b.tcpUnderPolicies(ctx, rigs); err != nil {
			return fmt.Errorf("new TCP connections: %w", err)
		}
		row("TCP connections", pathFree, c)
		for _, path := range paths[2:] {
			b.report.atLeast("new TCP connections under policies", c, pathPolicies, path, others[path])
		}
		if c, err = compare(ctx, kernel[1:], b.rounds, b.deniedRate); err != nil {
			return fmt.Errorf("denied packets: %w", err)
		}
		row("denied packets", pathPolicies, c)
		b.report.atLeast("denied packets", c, pathPolicies, pathNftablesPolicies, 1)
		return nil
	})
}

// tcpUnderPolicies opens TCP connections from pod to pod.
func (b *bench) tcpUnderPolicies(ctx context.Context, rigs []*rig) (comparison, error) {
	times := map[string]int{}
	return compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
		target := addressAt(backendFirst[onNode], times[r.name]%backendCount)
		times[r.name]++
		pods := &rig{name: r.name, client: r.near, pod: r.pod}
		var before, after time.Duration
		var err error
		if r.verdicts != nil {
			if before, err = r.verdicts.used(); err != nil {
				return 0, err
			}
		}
		cpu, err := tcpRun(ctx, pods, onNode, target, backendPort, b.tcpConnections, false)
		if err == nil && r.verdicts != nil {
			after, err = r.verdicts.used()
		}
		return float64(b.tcpConnections) / (cpu + after - before).Seconds(), err
	})
}

// deniedRate sends packets that policies deny, and returns their number per second of CPU time.
func (b *bench) deniedRate(r *rig) (float64, error) {
	f := flows{connections: 1024, target: backendFirst[onNode], targets: backendCount, port: deniedPort}
	if err := errors.Join(r.injection(true), r.receivers[onNode].echo(false), r.generator.aim(f)); err != nil {
		return 0, err
	}
	cpu, err := r.generator.send(b.packetCount)
	if err != nil {
		return 0, err
	}
	passed, err := r.receivers[onNode].count()
	if err == nil && passed > 0 {
		err = fmt.Errorf("%d packets passed that policies deny", passed)
	}
	return float64(b.packetCount) / cpu.Seconds(), err
}
