// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// bareWay is the program on a port that redirects all packets to one destination.
type bareWay struct {
	objects trafficObjects
}

// attachBare attaches to each port of the node a program that redirects all IPv4 packets without
// any lookup: from the client to the backends at the place last passed to aimBare, and back.
func (r *rig) attachBare() error {
	r.direct = true
	r.bare = map[string]*bareWay{}
	for _, port := range []string{"up0", "up1", "pod0"} {
		way := new(bareWay)
		if err := loadTrafficObjects(&way.objects, nil); err != nil {
			return fmt.Errorf("load traffic programs: %w", err)
		}
		r.bare[port] = way
		if err := attach(r.node, port, way.objects.Bare); err != nil {
			return err
		}
	}
	for _, port := range []string{"up1", "pod0"} {
		if err := r.send(port, "up0", r.client, false); err != nil {
			return err
		}
	}
	return nil
}

// aimBare redirects packets from the client to the backends at a place.
func (r *rig) aimBare(p place) error {
	if r.bare == nil {
		return nil
	}
	if p == onNode {
		return r.send("up0", "pod0", r.pod, true)
	}
	return r.send("up0", "up1", r.server, false)
}

// send redirects packets that arrive on one port to another port and the host behind it: directly
// into its namespace if peer is set.
func (r *rig) send(from, to string, station *namespace, peer bool) error {
	link, err := r.node.links.LinkByName(to)
	if err != nil {
		return fmt.Errorf("device %s: %w", to, err)
	}
	mac, err := station.mac("eth0")
	if err != nil {
		return err
	}
	way := trafficWay{Ifindex: uint32(link.Attrs().Index)}
	if peer {
		way.Peer = 1
	}
	copy(way.Dmac[:], mac)
	copy(way.Smac[:], link.Attrs().HardwareAddr)
	if err := r.bare[from].objects.Ways.Update(uint32(0), &way, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("send packets of %s to %s: %w", from, to, err)
	}
	return nil
}

func (w *bareWay) close() { w.objects.Close() } // harmless if it fails: the process is about to end
