// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	frameSize = 60 // bytes, without the FCS: the smallest Ethernet frame
	ipSize    = frameSize - 14
	udpSize   = ipSize - 20
)

// flows describes the packets of the generator.
type flows struct {
	connections  int
	sourceOffset int    // relative to the first source address
	target       string // first destination address
	targets      int    // number of destination addresses of the connections
	port         uint16
	hop          net.HardwareAddr // destination of frames; nil: the node
	spread       bool             // each connection has a source address of its own
}

// portsLog2 is the logarithm of the number of source ports of each source address, as in
// traffic.bpf.c.
const portsLog2 = 15

// generator generates UDP packets from the client without a socket: XDP live frames, which the
// kernel sends on the client's wire.
type generator struct {
	objects  trafficObjects
	node     *namespace // the wire is in it
	index    int        // of the wire
	own, hop net.HardwareAddr
	sink     *receiver // of the answers
}

func newGenerator(r *rig) (*generator, error) {
	g := &generator{node: r.node}
	wire, err := r.node.links.LinkByName(clientWire)
	if err != nil {
		return nil, err
	}
	own, err := r.client.links.LinkByName("eth0")
	if err != nil {
		return nil, err
	}
	hop, err := r.node.links.LinkByName("up0")
	if err != nil {
		return nil, err
	}
	g.index, g.own, g.hop = wire.Attrs().Index, own.Attrs().HardwareAddr, hop.Attrs().HardwareAddr
	if err := loadTrafficObjects(&g.objects, nil); err != nil {
		return nil, fmt.Errorf("load traffic programs: %w", err)
	}
	if g.sink, err = newReceiver(r.node, clientWire); err != nil {
		return nil, errors.Join(err, g.objects.Close())
	}
	return g, nil
}

func (g *generator) close() {
	g.sink.close()
	g.objects.Close() // harmless if it fails: the process is about to end
}

// aim makes the generator send f, beginning with its first connection.
func (g *generator) aim(f flows) error { return g.aimAt(f, 0) }

// aimAt makes the generator send f, beginning at position first in the order of its connections.
func (g *generator) aimAt(f flows, first int) error {
	leap := leapOf(f.connections)
	flow := trafficFlow{
		Index:       uint32(first * leap % f.connections),
		Count:       uint32(f.connections),
		Leap:        uint32(leap),
		FirstSource: hostOrder(sourceFirst) + uint32(f.sourceOffset),
		FirstTarget: hostOrder(f.target),
		TargetCount: uint32(f.targets),
		TargetPort:  f.port,
		PortsLog2:   portsLog2,
		LenBytes:    ipSize,
	}
	if f.spread {
		flow.PortsLog2 = 0
	}
	hop := f.hop
	if hop == nil {
		hop = g.hop
	}
	copy(flow.Dmac[:], hop)
	copy(flow.Smac[:], g.own)
	ip := []uint16{0x4500, ipSize, 0, 0x4000, 64<<8 | unix.IPPROTO_UDP}
	udp := []uint16{unix.IPPROTO_UDP, udpSize, f.port, udpSize}
	flow.IpCsum, flow.UdpCsum = wireSum(ip), wireSum(udp)
	if err := g.objects.Flows.Put(uint32(0), &flow); err != nil {
		return fmt.Errorf("aim the generator: %w", err)
	}
	return nil
}

// leapOf returns the distance between one connection and the next: about 0.618 of count, and
// coprime to it, so that every connection has its turn.
func leapOf(count int) int {
	for leap := max(1, count*618/1000); leap < count; leap++ {
		if gcd(leap, count) == 1 {
			return leap
		}
	}
	return 0 // one connection
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// wireSum adds 16-bit words in network byte order, as the checksum does.
func wireSum(words []uint16) (sum uint32) {
	for _, w := range words {
		sum += uint32(w>>8 | w<<8)
	}
	return sum
}

func hostOrder(ip string) uint32 { return binary.BigEndian.Uint32(net.ParseIP(ip).To4()) }

// send makes count packets and returns the CPU time of generating them, forwarding them through the
// node and swallowing them, all on one CPU.
func (g *generator) send(count int) (cpu time.Duration, err error) {
	err = g.node.do(func() error {
		options := &ebpf.RunOptions{
			Data:    make([]byte, frameSize),
			Context: xdpContext{DataEnd: frameSize, IngressIfindex: uint32(g.index)},
			Repeat:  uint32(count),
			Flags:   unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		}
		watch, err := startWatch()
		if err != nil {
			return err
		}
		if _, err := g.objects.Generate.Run(options); err != nil {
			return fmt.Errorf("run the generator: %w", err)
		}
		cpu, err = watch.stop()
		return err
	})
	return cpu, err
}

// xdpContext is struct xdp_md.
type xdpContext struct {
	Data, DataEnd, DataMeta                     uint32
	IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// receiver counts the UDP packets that arrive on a device, and swallows them or sends them back.
// Other packets are passed to the stack.
type receiver struct {
	objects trafficObjects
	inXDP   link.Link // before the program that swallows packets; nil: none
}

func newReceiver(ns *namespace, device string) (*receiver, error) {
	rcv := new(receiver)
	if err := loadTrafficObjects(&rcv.objects, nil); err != nil {
		return nil, fmt.Errorf("load traffic programs: %w", err)
	}
	if err := attach(ns, device, rcv.objects.Swallow); err != nil {
		return nil, errors.Join(err, rcv.objects.Close())
	}
	return rcv, nil
}

func (rcv *receiver) close() {
	if rcv.inXDP != nil {
		rcv.inXDP.Close() // as below
	}
	rcv.objects.Close() // harmless if it fails: the process is about to end
}

// attach attaches a program to the ingress hook of a device with a cls_bpf filter, which every
// kernel has.
func attach(ns *namespace, device string, program *ebpf.Program) error {
	dev, err := ns.links.LinkByName(device)
	if err != nil {
		return err
	}
	index := dev.Attrs().Index
	err = ns.links.QdiscAdd(&netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	})
	if err != nil {
		return fmt.Errorf("add clsact to %s: %w", device, err)
	}
	err = ns.links.FilterAdd(&netlink.BpfFilter{
		FilterAttrs:  netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:           program.FD(),
		Name:         "bench_sink",
		DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("attach the sink to %s: %w", device, err)
	}
	return nil
}

// echo sets whether packets are sent back, and resets the count.
func (rcv *receiver) echo(on bool) error {
	var sink trafficSink
	if on {
		sink.Echo = 1
	}
	if err := rcv.objects.Sinks.Put(uint32(0), &sink); err != nil {
		return fmt.Errorf("set the sink: %w", err)
	}
	return nil
}

// count returns the packets seen since the last call of echo.
func (rcv *receiver) count() (uint64, error) {
	var sink trafficSink
	if err := rcv.objects.Sinks.Lookup(uint32(0), &sink); err != nil {
		return 0, fmt.Errorf("read the sink: %w", err)
	}
	return sink.PacketCount, nil
}
