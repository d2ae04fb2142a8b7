// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
)

// The paths from one node to another, in addition to the kernel's routing.
const (
	pathVXLAN      = "kernel VXLAN"
	pathOursRouted = "loxilight, routed"
	pathOursVXLAN  = "loxilight, VXLAN"
	pathOursGeneve = "loxilight, Geneve"
	pathOursGRE    = "loxilight, GRE"
)

const (
	overlayUplink      = "up1" // of either node
	overlayVNI         = 100
	overlayMTU         = 1400    // of client and server on every path: inner packets are equal
	overlayRoom        = 1 << 17 // connections that each node has room for, at most
	overlayConnections = 1024    // that the small packets belong to
)

// tunnelTypes contains the tunnel types of our paths, or an empty string for a path without a
// tunnel.
var tunnelTypes = map[string]string{pathOursRouted: "", pathOursVXLAN: "vxlan", pathOursGeneve: "geneve", pathOursGRE: "gre"}

// side is one of two nodes.
type side struct {
	node       *namespace
	port       string // leads to its pods
	underlay   string
	vxlan, mac string   // of the kernel's VXLAN device
	pods       []string // prefixes
}

func (r *rig) sides() (near, far side) {
	return side{r.node, "up0", "10.9.0.1", "10.9.1.1", "02:00:00:00:09:01", []string{"10.0.0.0/16", sourcePrefix}},
		side{r.far, "pod0", "10.9.0.2", "10.9.1.2", "02:00:00:00:09:02", []string{"10.3.0.0/24"}}
}

// connectNodes connects the two nodes of a rig as other machines are connected.
func (r *rig) connectNodes() error {
	if err := remote(r.node, overlayUplink, serverWire, r.far, overlayUplink); err != nil {
		return err
	}
	near, far := r.sides()
	for _, s := range [][2]side{{near, far}, {far, near}} {
		mac, err := s[1].node.mac(overlayUplink)
		if err != nil {
			return err
		}
		if err := errors.Join(
			s[0].node.address(overlayUplink, s[0].underlay+"/24"),
			s[0].node.neighbour(overlayUplink, s[1].underlay, mac),
			s[0].node.sysctl("ipv4/ip_forward", "1"),
		); err != nil {
			return err
		}
	}
	return errors.Join(r.client.mtu("eth0", overlayMTU), r.server.mtu("eth0", overlayMTU))
}

// attachNodes configures the path between the two nodes that the rig is named after.
func (b *bench) attachNodes(ctx context.Context, r *rig, connections int) (err error) {
	near, far := r.sides()
	switch r.name {
	case pathKernel:
		return errors.Join(near.route(far, far.underlay), far.route(near, near.underlay))
	case pathVXLAN:
		return errors.Join(near.encapsulate(far), far.encapsulate(near))
	}
	if r.balancer, err = b.attachSide(ctx, near, far, tunnelTypes[r.name], connections); err != nil {
		return err
	}
	r.farBalancer, err = b.attachSide(ctx, far, near, tunnelTypes[r.name], connections)
	return err
}

// route adds routes to the pods of another node via one of its addresses.
func (s side) route(other side, gateway string) (err error) {
	for _, prefix := range other.pods {
		err = errors.Join(err, s.node.route(prefix, gateway))
	}
	return err
}

// encapsulate does the same through a kernel VXLAN device.
func (s side) encapsulate(other side) error {
	commands := fmt.Sprintf(`link add vx0 address %s type vxlan id %d local %s remote %s dstport 4789 dev %s nolearning
link set vx0 up
address add %s/24 dev vx0
neighbour add %s lladdr %s dev vx0 nud permanent
`, s.mac, overlayVNI, s.underlay, other.underlay, overlayUplink, s.vxlan, other.vxlan, other.mac)
	if err := s.node.run(commands, "ip", "-batch", "-"); err != nil {
		return err
	}
	return s.route(other, other.vxlan)
}

// attachSide starts one of our daemons on a node, with the other node as its Peer, through a tunnel
// of the given type if there is one.
func (b *bench) attachSide(ctx context.Context, s, other side, tunnel string, connections int) (balancer, error) {
	devices := []api.InterfaceSpec{{Device: s.port, Role: "port"}, {Device: overlayUplink}}
	d, err := startLoxilight(ctx, s.node, devices, b.daemon, b.tables(connections))
	if err != nil {
		return nil, fmt.Errorf("start of loxilight: %w", err)
	}
	peer := api.PeerSpec{Underlay: words(other.underlay), Prefixes: words(other.pods...)}
	var objects []api.Object
	if tunnel != "" {
		peer.Tunnel = "mesh"
		o, failed := object(api.KindTunnel, peer.Tunnel, api.TunnelSpec{Device: "hstunnel", Type: tunnel, VNI: overlayVNI})
		objects, err = append(objects, o), failed
	}
	o, failed := object(api.KindPeer, "other", peer)
	if err = errors.Join(err, failed); err == nil {
		err = d.apply(ctx, append(objects, o))
	}
	if err == nil {
		err = b.report.note(ctx, d)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// overlay measures traffic between two nodes.
func (b *bench) overlay(ctx context.Context) error {
	paths := []string{pathKernel, pathVXLAN}
	if b.daemon != "" {
		paths = append(paths, pathOursRouted, pathOursVXLAN, pathOursGeneve, pathOursGRE)
	}
	s := b.report.section("Between nodes",
		fmt.Sprintf("The client is behind one node, the server in a namespace on another node; both have an MTU of %d on every path.\n", overlayMTU)+
			"**Kernel VXLAN** is a kernel device as CNI plugins create it, with its\n"+
			"neighbours entered beforehand. Bulk: Gbit/s, all cores. Requests: thousands per\n"+
			"second, with one core as client, server and both nodes. Packets: millions of\n"+
			fmt.Sprintf("64-byte UDP packets per second of such a core, from %s connections in turn.", grouped(overlayConnections)),
		append(append([]string{"what"}, paths...), pathOursVXLAN+" to "+pathVXLAN)...)
	row := func(what string, c comparison, unit float64, format string) {
		cells := append([]string{what}, c.cellsTo(pathKernel, unit, format, paths[1:]...)...)
		s.row(append(cells, c.cell(pathOursVXLAN, pathVXLAN))...)
	}
	return b.withRigs(ctx, lineup{paths: paths, direct: true, two: true}, min(overlayRoom, b.tableSize), func(rigs []*rig) error {
		for _, streams := range []int{1, 4} {
			c, err := compare(ctx, rigs, min(b.rounds, forwardRounds), func(r *rig) (float64, error) {
				return bulkRun(r, elsewhere, backendFirst[elsewhere], backendPort, streams, b.bulkTime)
			})
			if err != nil {
				return fmt.Errorf("bulk, streams %d: %w", streams, err)
			}
			row(fmt.Sprintf("bulk TCP, streams: %d", streams), c, 1e9/8, "%.1f")
		}
		c, err := compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) {
			cpu, err := tcpRun(ctx, r, elsewhere, backendFirst[elsewhere], backendPort, b.tcpRequests, true)
			return float64(b.tcpRequests) / cpu.Seconds(), err
		})
		if err != nil {
			return fmt.Errorf("requests: %w", err)
		}
		row("TCP requests", c, 1e3, "%.1f")
		if c, err = b.packetsBetween(ctx, rigs); err != nil {
			return fmt.Errorf("packets: %w", err)
		}
		row("small UDP packets", c, 1e6, "%.2f")
		return nil
	})
}

// packetsBetween measures small packets, and fails if they did not take our fast path on both
// nodes: otherwise the kernel would have been measured.
func (b *bench) packetsBetween(ctx context.Context, rigs []*rig) (comparison, error) {
	var daemons []*loxilight
	var before []uint64
	for _, r := range rigs {
		for _, node := range []balancer{r.balancer, r.farBalancer} {
			if d, ok := node.(*loxilight); ok {
				verdicts, err := d.verdicts(ctx)
				if err != nil {
					return comparison{}, err
				}
				daemons, before = append(daemons, d), append(before, verdicts["fast"])
			}
		}
	}
	for _, r := range rigs {
		if err := r.introduce(); err != nil {
			return comparison{}, fmt.Errorf("%s: %w", r.name, err)
		}
	}
	c, err := compare(ctx, rigs, b.rounds, func(r *rig) (float64, error) { return packetRate(r, elsewhere, b.packetCount) })
	for i, d := range daemons {
		verdicts, failed := d.verdicts(ctx)
		took, want := verdicts["fast"]-before[i], uint64(b.rounds*b.packetCount)*9/10
		if err = errors.Join(err, failed); err == nil && took < want {
			err = fmt.Errorf("%d packets took the fast path of a node, of at least %d", took, want)
		}
	}
	return c, err
}

// introduce opens the connections of the measured packets, and leaves the generator aimed at them.
// A socket answers, because the kernel marks a packet that was encapsulated, and a marked packet
// cannot be sent back into a tunnel.
func (r *rig) introduce() (err error) {
	f := flows{connections: overlayConnections, target: backendFirst[elsewhere], targets: 1, port: backendPort}
	if err := errors.Join(r.injection(true), r.generator.sink.echo(false), r.generator.aim(f)); err != nil {
		return err
	}
	send := func() error {
		_, err := r.generator.send(f.connections)
		return err
	}
	if err := r.server.do(func() error { return answerUDP(f, send) }); err != nil {
		return err
	}
	answered, err := r.generator.sink.count()
	if err == nil && answered < uint64(f.connections) {
		err = fmt.Errorf("%d answers of %d arrived", answered, f.connections)
	}
	if err != nil {
		return err
	}
	r.receivers[elsewhere], err = newReceiver(r.server, "eth0")
	return err
}

// answerUDP answers one packet of each connection; send sends these packets.
func answerUDP(f flows, send func() error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	own := unix.SockaddrInet4{Port: int(f.port)}
	copy(own.Addr[:], net.ParseIP(f.target).To4())
	const room = 8 << 20 // all packets are queued before any is read
	if err := errors.Join(patience(fd), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room), unix.Bind(fd, &own), send()); err != nil {
		return err
	}
	buffer := make([]byte, frameSize)
	for answered := range f.connections {
		n, from, err := unix.Recvfrom(fd, buffer, 0)
		if err == nil {
			err = unix.Sendto(fd, buffer[:n], 0, from)
		}
		if err != nil {
			return fmt.Errorf("%d packets of %d came: %w", answered, f.connections, err)
		}
	}
	return nil
}
