// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// pathPair is a pair of devices from one pod to the other.
const pathPair = "veth pair"

// podToPod measures traffic between two pods of one node, on the node's bridge.
func (b *bench) podToPod(ctx context.Context, ours, theirs *attacher) (err error) {
	pair := &rig{name: pathPair}
	defer func() { err = errors.Join(err, pair.close()) }()
	if pair.client, err = newNamespace(); err != nil {
		return err
	}
	if pair.server, err = newNamespace(); err != nil {
		return err
	}
	if err := errors.Join(veth(pair.client, "eth0", pair.server, "eth0"),
		pair.client.address("eth0", "10.213.0.1/16"), pair.server.address("eth0", "10.213.0.2/16")); err != nil {
		return err
	}
	rigs := []*rig{pair, {name: pathPlugin, client: theirs.pods[0], server: theirs.pods[1]}, {name: pathOurs, client: ours.pods[0], server: ours.pods[1]}}
	targets := map[string]string{}
	for _, r := range rigs {
		if targets[r.name], err = r.server.firstAddress("eth0"); err != nil {
			return err
		}
	}
	s := b.report.section("Pod to pod",
		"Two pods on one node, connected by each plugin as above, or by a plain **veth\n"+
			"pair**. Bulk: Gbit/s, all cores. Requests: thousands per second, with one core\n"+
			"as client, server and node.",
		"what", pathPair, pathPlugin, pathOurs, pathOurs+" to "+pathPlugin)
	row := func(what string, c comparison, unit float64) {
		s.row(append(append([]string{what}, c.cellsTo(pathPair, unit, "%.1f", pathPlugin, pathOurs)...), c.cell(pathOurs, pathPlugin))...)
	}
	for _, streams := range []int{1, 4} {
		c, err := compare(ctx, rigs, min(b.rounds, forwardRounds), func(r *rig) (float64, error) {
			return bulkRun(r, elsewhere, targets[r.name], backendPort, streams, b.bulkTime)
		})
		if err != nil {
			return fmt.Errorf("bulk, streams %d: %w", streams, err)
		}
		row(fmt.Sprintf("bulk TCP, streams: %d", streams), c, 1e9/8)
	}
	c, err := compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
		cpu, err := tcpRun(ctx, r, elsewhere, targets[r.name], backendPort, b.tcpRequests, true)
		return float64(b.tcpRequests) / cpu.Seconds(), err
	})
	if err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	row("TCP requests", c, 1e3)
	return nil
}

// firstAddress returns the first IPv4 address of a device.
func (ns *namespace) firstAddress(device string) (string, error) {
	link, err := ns.links.LinkByName(device)
	if err != nil {
		return "", fmt.Errorf("device %s: %w", device, err)
	}
	list, err := ns.links.AddrList(link, netlink.FAMILY_V4)
	if err == nil && len(list) == 0 {
		err = errors.New("it has none")
	}
	if err != nil {
		return "", fmt.Errorf("IPv4 address of %s: %w", device, err)
	}
	return list[0].IP.String(), nil
}
