// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
)

// A rig is one node with a client, a pod with backends in a namespace of the node, and another
// machine with backends. Every compared path has a rig of its own, with the same addresses:
//
//	client                                   node                                pod
//	eth0 10.0.0.1-8/16 ─ wire0 ═ veth ═ up0 10.0.0.254  pod0 ═ veth ═ eth0 10.1.0.1-10/24
//	     generator 10.2.0.0/16                          up1  ═ veth ═ wire1 ─ eth0 10.3.0.1-10/24
//	                                                                          server
//
// The other machines, client and server, are macvlans on wires, whose far ends are also in the
// node's namespace: the ends of up0 and up1 have no peer in another namespace to which packets
// could be redirected without a device, so they are like NICs. If the node is a bridge, all hosts
// are in one subnet.
type rig struct {
	name                      string
	bridged                   bool // the node is a bridge
	client, node, pod, server *namespace
	generator                 *generator // on the client's wire
	receivers                 map[place]*receiver
	macs                      map[place]net.HardwareAddr // of the backends
	balancer                  balancer                   // of the node; nil: it only forwards
	direct                    bool                       // the client bypasses services
	bare                      map[string]*bareWay
	two                       bool       // the server is behind a second node, to which up1 leads
	fixed                     bool       // our table of connections has its full size from the start
	pods                      bool       // backends on the node are a pod, and near is another one
	near                      *namespace // behind the port pod1
	verdicts                  *verdicts  // a program that decides in user space; nil: none
	far                       *namespace // the second node
	farBalancer               balancer
}

// place is the location of the backends.
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
	nearAddress   = "10.1.9.1"
	backendCount  = 10
	frontendPort  = 5000
	backendPort   = 6000
)

// The first addresses of the backends, and of the services' frontends.
var (
	backendFirst  = map[place]string{onNode: "10.1.0.1", elsewhere: "10.3.0.1"}
	frontendFirst = map[place]string{onNode: "10.96.0.1", elsewhere: "10.98.0.1"}
	places        = []place{onNode, elsewhere}
)

// newRig builds a rig; its node is a plain router.
func newRig(name string) (*rig, error) {
	return buildRig(&rig{name: name})
}

// buildRig builds the rig that r describes.
func buildRig(r *rig) (*rig, error) {
	r.receivers = map[place]*receiver{}
	all := []**namespace{&r.client, &r.node, &r.pod, &r.server}
	if r.two {
		all = append(all, &r.far)
	}
	if r.pods {
		all = append(all, &r.near)
	}
	for _, ns := range all {
		var err error
		if *ns, err = newNamespace(); err != nil {
			return nil, errors.Join(err, r.close())
		}
	}
	if err := r.connect(); err != nil {
		return nil, errors.Join(fmt.Errorf("network of %s: %w", r.name, err), r.close())
	}
	if err := r.equip(); err != nil {
		return nil, errors.Join(fmt.Errorf("traffic programs of %s: %w", r.name, err), r.close())
	}
	return r, nil
}

func (r *rig) close() (err error) {
	for _, b := range []balancer{r.balancer, r.farBalancer} {
		if b != nil {
			err = errors.Join(err, b.close())
		}
	}
	if r.verdicts != nil {
		err = errors.Join(err, r.verdicts.close())
	}
	if r.generator != nil {
		r.generator.close()
	}
	for _, receiver := range r.receivers {
		receiver.close()
	}
	for _, way := range r.bare {
		way.close()
	}
	for _, ns := range []*namespace{r.client, r.node, r.pod, r.server, r.far, r.near} {
		if ns != nil {
			ns.close()
		}
	}
	return err
}

// addresses returns count addresses, starting at first, with a prefix length.
func addresses(first string, count, bits int) []string {
	ip := net.ParseIP(first).To4()
	var list []string
	for i := range count {
		list = append(list, fmt.Sprintf("%d.%d.%d.%d/%d", ip[0], ip[1], ip[2], int(ip[3])+i, bits))
	}
	return list
}

// addressAt returns the i-th address, counted from first.
func addressAt(first string, i int) string {
	ip := net.ParseIP(first).To4()
	n := uint32(ip[0])<<24 | uint32(ip[1])<<16 | uint32(ip[2])<<8 | uint32(ip[3])
	n += uint32(i)
	return net.IPv4(byte(n>>24), byte(n>>16), byte(n>>8), byte(n)).String()
}

// The devices that lead to the client and to the server.
const (
	clientWire = "wire0"
	serverWire = "wire1"
)

// station is a host behind a port of the node.
type station struct {
	ns, node    *namespace
	port        string // of the node
	wire        string // between them; empty: the host is in a namespace of the node
	first       string
	count, bits int
	gateway     string
}

func (r *rig) stations() []station {
	list := []station{
		{r.client, r.node, "up0", clientWire, clientAddress, clientCount, 16, "10.0.0.254"},
		{r.pod, r.node, "pod0", "", backendFirst[onNode], backendCount, 24, "10.1.0.254"},
		{r.server, r.node, "up1", serverWire, backendFirst[elsewhere], backendCount, 24, "10.3.0.254"},
	}
	if r.two {
		server := &list[2]
		server.node, server.port, server.wire = r.far, "pod0", ""
	}
	if r.pods {
		list = append(list, station{r.near, r.node, "pod1", "", nearAddress, 1, 24, "10.1.9.254"})
	}
	if r.bridged {
		for i := range list {
			list[i].bits = 8
		}
	}
	return list
}

func (r *rig) connect() error {
	if r.bridged {
		if err := r.node.bridge(bridgeName); err != nil {
			return err
		}
	}
	for _, s := range r.stations() {
		var err error
		if s.wire != "" {
			err = remote(s.node, s.port, s.wire, s.ns, "eth0")
		} else {
			err = veth(s.node, s.port, s.ns, "eth0")
		}
		if err == nil {
			err = s.ns.address("eth0", addresses(s.first, s.count, s.bits)...)
		}
		if err == nil && r.bridged {
			err = s.node.enslave(s.port, bridgeName)
		} else if err == nil {
			err = s.connectRouted()
		}
		if err != nil {
			return err
		}
	}
	if r.bridged {
		return r.acquaint()
	}
	if r.two {
		if err := r.connectNodes(); err != nil {
			return err
		}
	}
	return errors.Join(
		r.node.route(sourcePrefix, clientAddress),
		r.node.sysctl("ipv4/ip_forward", "1"),
		r.client.sysctl("ipv4/ip_local_port_range", "1024 65535"),
	)
}

// bridgeName is the bridge of a bridged node.
const bridgeName = "br0"

// connectRouted makes the node the router of the station.
func (s station) connectRouted() error {
	inside, err := s.ns.mac("eth0")
	if err != nil {
		return err
	}
	outside, err := s.node.mac(s.port)
	if err != nil {
		return err
	}
	if err := errors.Join(
		s.node.address(s.port, fmt.Sprintf("%s/%d", s.gateway, s.bits)),
		s.ns.route("0.0.0.0/0", s.gateway),
		s.ns.neighbour("eth0", s.gateway, outside),
	); err != nil {
		return err
	}
	for i := range s.count {
		if err := s.node.neighbour(s.port, addressAt(s.first, i), inside); err != nil {
			return err
		}
	}
	return nil
}

// acquaint gives the hosts behind a bridge neighbour entries for each other.
func (r *rig) acquaint() error {
	for _, s := range r.stations() {
		mac, err := s.ns.mac("eth0")
		if err != nil {
			return err
		}
		for _, other := range r.stations() {
			for i := range s.count {
				if other.ns == s.ns {
					break
				}
				if err := other.ns.neighbour("eth0", addressAt(s.first, i), mac); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// equip loads the programs that make and swallow packets.
func (r *rig) equip() (err error) {
	if r.generator, err = newGenerator(r); err != nil {
		return err
	}
	r.macs = map[place]net.HardwareAddr{}
	for p := range backendFirst {
		if r.macs[p], err = r.backend(p).mac("eth0"); err != nil {
			return err
		}
	}
	if r.receivers[onNode], err = newReceiver(r.pod, "eth0"); err != nil {
		return err
	}
	if !r.two { // with two nodes, the wire is the underlay
		r.receivers[elsewhere], err = newReceiver(r.node, serverWire)
	}
	return err
}

// injection prepares the node's port for frames from the generator: a veth accepts frames from XDP
// only with NAPI, which GRO enables.
func (r *rig) injection(on bool) error {
	return r.node.offload("up0", offloadGRO, on)
}

// segmentation switches segmentation offload of every device of the rig on or off. If it is off,
// packets cross the node as large as behind a plain NIC; packets from other machines are segmented
// on the wire.
func (r *rig) segmentation(on bool) error {
	errs := []error{r.pod.offload("eth0", offloadTSO, on), r.pod.offload("eth0", offloadGSO, on)}
	for _, device := range []string{clientWire, serverWire, "up0", "up1", "pod0"} {
		errs = append(errs, r.node.offload(device, offloadTSO, on), r.node.offload(device, offloadGSO, on))
	}
	return errors.Join(errs...)
}
