// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// opens sends the first packets of a client's connections, each from the next port, and returns
// their outer ports, 0 for refused connections.
func (r *rig) opens(client netip.Addr, server netip.AddrPort, count int) (ports []uint16) {
	r.t.Helper()
	var ctx [44]uint32
	ctx[9], ctx[10] = r.in.index, r.out.index
	frame := packet(r.out.leaves(), testpkt.ProtoUDP, netip.AddrPortFrom(client, 1), server, stageOpen, 60)
	frame[14+20+6], frame[14+20+7] = 0, 0 // no checksum
	out := make([]byte, len(frame)+256)
	r.ns.Do(r.t, func() error {
		for i := range count {
			port := uint16(1000 + i)
			frame[14+20], frame[14+21] = byte(port>>8), byte(port)
			opts := ebpf.RunOptions{Data: frame, DataOut: out[:cap(out)], Context: ctx[:]}
			action, err := r.egress.Run(&opts)
			if err != nil {
				return err
			}
			if int32(action) == actShot {
				ports = append(ports, 0)
			} else {
				ports = append(ports, sourcePort(opts.DataOut, testpkt.ProtoUDP))
			}
		}
		return nil
	})
	return ports
}

// TestPortsRunOut: towards one server, one client gets its share of 15 in 16 free ports,
// each port once. Further connections are refused, and counted for the NAT. Towards another server
// all ports are still free.
func TestPortsRunOut(t *testing.T) {
	r := newRig(t, sized(160_000))
	n := r.adoptNAT(slog.DiscardHandler, datapath.PortRange{First: 1024, Last: 29999}, datapath.PortRange{First: 40000, Last: 65535})
	const free = 28976 + 25536 - 64
	r.put(kernel.MapLlPortTaken, uint32(1000), ^uint64(0)) // 64000 to 64063
	r.ok(n.Update(context.Background(), datapath.NodeSet, datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{"away": masquerade("out0")}}))
	f := families[0]
	seen := make(map[uint16]bool)
	opened, refused := 0, 0
	for i, port := range r.opens(f.client.Addr(), f.far, 60_000) {
		switch {
		case port == 0:
			refused++
		case seen[port] || port < 1024 || port >= 30000 && port < 40000 || port >= 64000 && port < 64064:
			t.Fatalf("connection %d has port %d", i, port)
		default:
			seen[port] = true
			opened++
		}
	}
	if want := free * 15 / 16; opened < want*99/100 || opened > want*101/100 {
		t.Errorf("%d connections were opened, want about %d", opened, want)
	}
	c, _, err := n.Counters("away")
	if err != nil || c.Connections != uint64(opened) || c.Drops["no_port"] != uint64(refused) || r.counters()["DROP_NO_PORT"] != uint64(refused) {
		t.Errorf("%d opened and %d refused; counters %+v, %v", opened, refused, c, err)
	}
	other := netip.AddrPortFrom(f.far.Addr().Next(), f.far.Port())
	for i, port := range r.opens(f.client.Addr(), other, 1000) {
		if port == 0 {
			t.Fatalf("connection %d to another server was refused", i)
		}
	}
}

// TestPortBlocks: inner addresses have their own blocks, up to a limit, and the beginning and end
// of each block are logged.
func TestPortBlocks(t *testing.T) {
	r := newRig(t, sized(2048))
	rule := masquerade("out0")
	rule.BlockSize, rule.Log = 64, true
	r.translate(map[datapath.NATName]datapath.NAT{"away": rule})
	var log bytes.Buffer
	n := r.adoptNAT(slog.NewTextHandler(&log, nil), datapath.PortRange{First: 61000, Last: 65535})
	r.ok(n.Update(context.Background(), datapath.NodeSet, datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{"away": rule}}))
	f := families[0]
	owner := make(map[uint16]netip.Addr)
	for _, inner := range []netip.Addr{f.client.Addr(), f.client.Addr().Next()} {
		blocks := make(map[uint16]int)
		refused := 0
		for _, port := range r.opens(inner, f.far, 300) {
			if port == 0 {
				refused++
				continue
			}
			block := (port - 61000) / 64
			blocks[block]++
			if o, taken := owner[block]; taken && o != inner {
				t.Fatalf("%s and %s have ports of one block", o, inner)
			}
			owner[block] = inner
		}
		if len(blocks) != 4 || refused != 300-4*64 {
			t.Errorf("%s has blocks %v, and %d connections were refused", inner, blocks, refused)
		}
	}
	r.ok(n.NewPass().PassEnded())
	if got := strings.Count(log.String(), `msg="NAT mapping created" nat=away inner=192.0.2.1`); got != 8 {
		t.Errorf("%d blocks were logged, want 8:\n%s", got, log.String())
	}
	p := passLater(n, kernel.TicksOf(datapath.BlockTimeout)+10)
	p.Use(netip.AddrPortFrom(f.outAddr, 61000+64*firstOf(owner)), testpkt.ProtoUDP, 0)
	r.ok(p.PassEnded())
	if got := strings.Count(log.String(), "NAT mapping deleted"); got != 7 || r.count(kernel.MapLlBlock) != 1 || r.count(kernel.MapLlBlockOwner) != 1 {
		t.Errorf("%d blocks have ended, want 7; %d are left, with %d owners", got, r.count(kernel.MapLlBlock), r.count(kernel.MapLlBlockOwner))
	}
}

func firstOf(m map[uint16]netip.Addr) uint16 {
	for k := range m {
		return k
	}
	return 0
}

// TestSocketsKeepTheirPorts: a port that a socket of the node uses is not assigned.
func TestSocketsKeepTheirPorts(t *testing.T) {
	interval := snatInterval
	t.Cleanup(func() { snatInterval = interval })
	snatInterval = 0
	n := newNetwork(t)
	n.attach()
	rule := masquerade("out0")
	rule.Ports = []datapath.PortRange{{First: 5000, Last: 5003}}
	for _, at := range []string{"0.0.0.0:5001", "10.0.1.1:5002"} {
		c := n.node.ListenUDP(t, at)
		t.Cleanup(func() { c.Close() }) // keeps the port in use
	}
	testnet.Eventually(t, 10*time.Second, "the node's sockets are known", func() bool {
		n.ok(n.d.Maintain(context.Background()))
		var word uint64
		n.ok(n.d.tables.PortTaken.Lookup(5001/64, &word))
		return word>>(5001%64)&1 == 1 && word>>(5002%64)&1 == 1
	})
	n.translate(map[datapath.NATName]datapath.NAT{"away": rule})
	reflector(t, n.backends, "10.0.1.11:3478")
	ports := make(map[uint16]bool)
	for _, local := range []string{"192.0.2.10:7001", "192.0.2.10:7002"} {
		ports[seenBy(t, n.client.ListenUDP(t, local), "10.0.1.11:3478").Port()] = true
	}
	if !ports[5000] || !ports[5003] {
		t.Errorf("the ports are %v, want 5000 and 5003", ports)
	}
	c := n.client.ListenUDP(t, "192.0.2.10:7003")
	if hears(t, c, n.backends, "", netip.MustParseAddrPort("10.0.1.1:5000")) {
		t.Error("another host's packet arrives")
	}
	_, err := c.WriteTo([]byte("one too many"), netUDP("10.0.1.11:3478"))
	n.ok(err)
	got, _, err := n.d.Telemetry().NATCounters(context.Background(), "away")
	if err != nil || got.Connections != 2 || got.Drops["no_port"] != 1 {
		t.Errorf("counters %+v, %v; want two connections and one drop", got, err)
	}
}
