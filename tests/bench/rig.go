// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
)

// A rig is one node with a client, a backend in a namespace of the node and
// another machine that has backends too. Every path that is compared has a rig of
// its own, alike to the last address:
//
//	client                     node                         pod
//	eth0 10.0.0.1-8/16 ═ veth ═ up0 10.0.0.254   pod0 ═ veth ═ eth0 10.1.0.1-10/24
//	  generator 10.2.0.0/16                      up1  ═ veth ═ eth0 10.3.0.1-10/24
//	                                                        server
type rig struct {
	name                      string
	client, node, pod, server *namespace
	generator                 *generator // in client
	receivers                 map[place]*receiver
	balancer                  balancer // of the node; nil: it only routes
}

// place is where the backends are.
type place string

const (
	onNode    place = "on the node"
	elsewhere place = "behind another port"
)

const (
	sourceFirst   = "10.2.0.0" // of the generator's connections
	sourcePrefix  = "10.2.0.0/16"
	clientAddress = "10.0.0.1"
	clientCount   = 8
	backendCount  = 10
	frontendPort  = 5000
	backendPort   = 6000
)

// first address of the backends, and of the services' frontends.
var (
	backendFirst  = map[place]string{onNode: "10.1.0.1", elsewhere: "10.3.0.1"}
	frontendFirst = map[place]string{onNode: "10.96.0.1", elsewhere: "10.98.0.1"}
	places        = []place{onNode, elsewhere}
)

// newRig builds a rig; its node is a plain router.
func newRig(name string) (*rig, error) {
	r := &rig{name: name, receivers: map[place]*receiver{}}
	for _, ns := range []**namespace{&r.client, &r.node, &r.pod, &r.server} {
		var err error
		if *ns, err = newNamespace(); err != nil {
			return nil, errors.Join(err, r.close())
		}
	}
	if err := r.connect(); err != nil {
		return nil, errors.Join(fmt.Errorf("network of %s: %w", name, err), r.close())
	}
	if err := r.equip(); err != nil {
		return nil, errors.Join(fmt.Errorf("traffic programs of %s: %w", name, err), r.close())
	}
	return r, nil
}

func (r *rig) close() (err error) {
	if r.balancer != nil {
		err = r.balancer.close()
	}
	if r.generator != nil {
		r.generator.close()
	}
	for _, receiver := range r.receivers {
		receiver.close()
	}
	for _, ns := range []*namespace{r.client, r.node, r.pod, r.server} {
		if ns != nil {
			ns.close()
		}
	}
	return err
}

// addresses returns count addresses from first on, with a prefix length.
func addresses(first string, count, bits int) []string {
	ip := net.ParseIP(first).To4()
	var list []string
	for i := range count {
		list = append(list, fmt.Sprintf("%d.%d.%d.%d/%d", ip[0], ip[1], ip[2], int(ip[3])+i, bits))
	}
	return list
}

// address returns the i-th address from first on.
func addressAt(first string, i int) string {
	ip := net.ParseIP(first).To4()
	n := uint32(ip[0])<<24 | uint32(ip[1])<<16 | uint32(ip[2])<<8 | uint32(ip[3])
	n += uint32(i)
	return net.IPv4(byte(n>>24), byte(n>>16), byte(n>>8), byte(n)).String()
}

func (r *rig) connect() error {
	stations := []struct {
		ns          *namespace
		port        string // of the node
		first       string
		count, bits int
		gateway     string
	}{
		{r.client, "up0", clientAddress, clientCount, 16, "10.0.0.254"},
		{r.pod, "pod0", backendFirst[onNode], backendCount, 24, "10.1.0.254"},
		{r.server, "up1", backendFirst[elsewhere], backendCount, 24, "10.3.0.254"},
	}
	for _, s := range stations {
		if err := errors.Join(
			veth(r.node, s.port, s.ns, "eth0"),
			s.ns.address("eth0", addresses(s.first, s.count, s.bits)...),
			r.node.address(s.port, fmt.Sprintf("%s/%d", s.gateway, s.bits)),
			s.ns.route("0.0.0.0/0", s.gateway),
		); err != nil {
			return err
		}
		inside, err := s.ns.links.LinkByName("eth0")
		if err != nil {
			return err
		}
		outside, err := r.node.links.LinkByName(s.port)
		if err != nil {
			return err
		}
		if err := s.ns.neighbour("eth0", s.gateway, outside.Attrs().HardwareAddr); err != nil {
			return err
		}
		for i := range s.count {
			if err := r.node.neighbour(s.port, addressAt(s.first, i), inside.Attrs().HardwareAddr); err != nil {
				return err
			}
		}
	}
	return errors.Join(
		r.node.route(sourcePrefix, clientAddress),
		r.node.sysctl("ipv4/ip_forward", "1"),
		r.client.sysctl("ipv4/ip_local_port_range", "1024 65535"),
	)
}

// equip loads the programs that make and swallow packets.
func (r *rig) equip() (err error) {
	if r.generator, err = newGenerator(r); err != nil {
		return err
	}
	for p, ns := range map[place]*namespace{onNode: r.pod, elsewhere: r.server} {
		if r.receivers[p], err = newReceiver(ns, "eth0"); err != nil {
			return err
		}
	}
	return nil
}

// injection prepares the node's port to take frames from the generator: a veth
// takes them from XDP only where it has NAPI, which comes with GRO.
func (r *rig) injection(on bool) error {
	return r.node.offload("up0", offloadGRO, on)
}

// segmentation switches segmentation offload of every device of the rig on or
// off. Off, packets cross the node as large as they would be behind a plain NIC.
func (r *rig) segmentation(on bool) error {
	type device struct {
		ns   *namespace
		name string
	}
	var errs []error
	for _, d := range []device{{r.client, "eth0"}, {r.pod, "eth0"}, {r.server, "eth0"},
		{r.node, "up0"}, {r.node, "up1"}, {r.node, "pod0"}} {
		errs = append(errs, d.ns.offload(d.name, offloadTSO, on), d.ns.offload(d.name, offloadGSO, on))
	}
	return errors.Join(errs...)
}
