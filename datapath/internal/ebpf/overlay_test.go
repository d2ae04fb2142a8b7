// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// tunnelCase is a type of tunnel over an underlay of one address family.
type tunnelCase struct {
	spec          datapath.Tunnel
	local, remote netip.Addr
	header        []byte // between the outer IP header (and UDP header, if any) and the inner Ethernet or IP header
}

func tunnelCases() (all []tunnelCase) {
	for _, underlay := range [][2]string{{"10.0.1.1", "10.0.1.34"}, {"2001:db8:2::1", "2001:db8:2::34"}} {
		local, remote := netip.MustParseAddr(underlay[0]), netip.MustParseAddr(underlay[1])
		all = append(all,
			tunnelCase{datapath.Tunnel{Type: datapath.TunnelVXLAN, VNI: 0x123456, Port: 4789}, local, remote, []byte{8, 0, 0, 0, 0x12, 0x34, 0x56, 0}},
			tunnelCase{datapath.Tunnel{Type: datapath.TunnelGeneve, VNI: 0x123456, Port: 6081}, local, remote, []byte{0, 0, 0x65, 0x58, 0x12, 0x34, 0x56, 0}},
			tunnelCase{datapath.Tunnel{Type: datapath.TunnelGRE, VNI: 0x12345678}, local, remote, []byte{0x20, 0, 0, 0, 0x12, 0x34, 0x56, 0x78}},
			tunnelCase{datapath.Tunnel{Type: datapath.TunnelGRE}, local, remote, []byte{0, 0, 0, 0}},
		)
	}
	return all
}

func (c *tunnelCase) name() string {
	return fmt.Sprintf("%s %#x over %s", c.spec.Type, c.spec.VNI, c.local)
}

const tunnelPeer = 5

var (
	innerMAC  = [6]byte{0x02, 0x4c, 0x4c, 0, 0, 0x01}
	innerFrom = [6]byte{0x02, 0x4c, 0x4c, 0, 0, 0x02}
)

// overlay enters the tunnel and a peer behind out0 with the prefixes of the far addresses. Packets
// that arrive on in0 are packets that the kernel has sent through the tunnel's device.
func (r *rig) overlay(c *tunnelCase) {
	r.t.Helper()
	entry := kernel.Peer{Local: kernel.AddrOf(c.local), Remote: kernel.AddrOf(c.remote), TunnelId: 1, Type: kernel.TunnelTypes[c.spec.Type], DeviceIfindex: r.in.index,
		OutIfindex: r.out.index, Seed: 0x5eed1234}
	entry.HeaderLen = uint32(copy(entry.Header[:], overlay.Header(&c.spec, c.local, c.remote)))
	r.put(kernel.MapLlPeer, uint32(tunnelPeer), entry)
	for _, f := range families {
		k := kernel.PeerPrefixKeyOf(netip.PrefixFrom(f.far.Addr(), f.far.Addr().BitLen()-8).Masked())
		r.put(kernel.MapLlPeerPrefix, &k, uint32(tunnelPeer))
	}
	r.put(kernel.MapLlPeerId, kernel.PeerKey{Underlay: kernel.AddrOf(c.remote), TunnelId: 1}, uint32(tunnelPeer))
	r.put(kernel.MapLlPeerId, kernel.PeerKey{Underlay: kernel.AddrOf(c.remote)}, uint32(tunnelPeer))
	r.put(kernel.MapLlNexthop, uint32(9), kernel.Nexthop{Ifindex: r.out.index, MtuBytes: 1500, Dmac: r.out.other, Smac: r.out.mac, CheckedTick: rigTick()})
	r.put(kernel.MapLlPeerNexthop, uint32(tunnelPeer), uint32(9))
	key := kernel.TunnelKey{Local: kernel.AddrOf(c.local), Vni: c.spec.VNI, Proto: testpkt.ProtoUDP, Port: kernel.Swap16(c.spec.Port)}
	gate := kernel.TunnelGate{Port: [8]uint16{kernel.Swap16(c.spec.Port)}}
	if c.spec.Type == datapath.TunnelGRE {
		key.Proto, gate = 47, kernel.TunnelGate{Gre: 1}
		if c.spec.VNI != 0 {
			key.Keyed = 1
		}
	}
	r.put(kernel.MapLlTunnel, key, kernel.Tunnel{Id: 1, Type: kernel.TunnelTypes[c.spec.Type]})
	r.put(kernel.MapLlTunnelGate, uint32(0), gate)
}

// tunnelEnd makes in0 the other end of the tunnel's device.
func (r *rig) tunnelEnd() {
	r.t.Helper()
	r.put(kernel.MapLlBridgePort, kernel.BridgePortKey{Ifindex: r.in.index}, kernel.BridgePort{Flags: kernel.BridgePortTunnel})
	r.put(kernel.MapLlBridged, (r.in.index&0xffff)>>6, uint64(1)<<(r.in.index&63))
}

// wrap returns an inner frame as a peer would send it, encapsulated.
func (c *tunnelCase) wrap(eth testpkt.Ethernet, from, to netip.Addr, port uint16, class uint8, inner []byte) []byte {
	var ip testpkt.Layer = testpkt.IPv4{Source: from, Destination: to, TTL: 64, TOS: class, DontFragment: true, Protocol: 47}
	if from.Is6() {
		ip = testpkt.IPv6{Source: from, Destination: to, HopLimit: 64, Class: class, Protocol: 47}
	}
	header := append([]byte(nil), c.header...)
	if c.spec.Type == datapath.TunnelGRE {
		copy(header[2:], inner[12:14])
		return testpkt.Build(eth, ip, testpkt.Raw(append(header, inner[14:]...)))
	}
	switch v := ip.(type) {
	case testpkt.IPv4:
		v.Protocol = 0
		ip = v
	case testpkt.IPv6:
		v.Protocol = 0
		ip = v
	}
	udp := testpkt.UDP{Source: port, Destination: c.spec.Port, NoChecksum: true}
	return testpkt.Build(eth, ip, udp, testpkt.Payload(append(header, inner...)))
}

// innerPackets returns packets from the client to hosts behind the peer, as frames.
func innerPackets(eth testpkt.Ethernet, f family) map[string][]byte {
	all := map[string][]byte{}
	for name, proto := range protocols {
		all[name] = packet(eth, proto, f.client, f.far, stageData, 63)
	}
	icmp := testpkt.ICMP{Type: testpkt.EchoRequest, ID: 0x5152, Seq: 3}
	if f.client.Addr().Is6() {
		icmp.V6, icmp.Type = true, testpkt.V6EchoRequest
	}
	all["ICMP"] = testpkt.Build(eth, ipHeader(f.client.Addr(), f.far.Addr(), 63), icmp, testpkt.Payload("ping"))
	return all
}

// TestEncapsulated checks the exact bytes that are sent to a peer.
func TestEncapsulated(t *testing.T) {
	base := newRig(t)
	for _, c := range tunnelCases() {
		for _, f := range families {
			t.Run(c.name()+" "+f.name, func(t *testing.T) {
				r := base.fresh(t)
				r.overlay(&c)
				r.tunnelEnd()
				for name, in := range innerPackets(r.in.arrives(), f) {
					action, out := r.run(r.ingress, r.in, in)
					if action != actRedirect {
						t.Errorf("%s: action %d; counters %v", name, action, r.counters())
						continue
					}
					inner := append([]byte(nil), in...)
					copy(inner, innerMAC[:])
					copy(inner[6:], innerFrom[:])
					port := uint16(0)
					if c.spec.Type != datapath.TunnelGRE {
						port = binary.BigEndian.Uint16(out[map[bool]int{true: 34, false: 54}[c.remote.Is4()]:])
						if port < 49152 {
							t.Errorf("%s: source port %d is below 49152", name, port)
						}
					}
					if d := testpkt.Diff(c.wrap(r.out.leaves(), c.local, c.remote, port, 0x10, inner), out); d != "" {
						t.Errorf("%s (- want, + got):\n%s", name, d)
					}
					if _, again := r.run(r.ingress, r.in, in); testpkt.Diff(out, again) != "" {
						t.Errorf("%s: the same packet is not sent the same way again", name)
					}
				}
				r.counted(nil)
			})
		}
	}
}

// TestDecapsulated checks which packets a tunnel delivers.
func TestDecapsulated(t *testing.T) {
	base := newRig(t)
	for _, c := range tunnelCases() {
		for _, f := range families {
			t.Run(c.name()+" "+f.name, func(t *testing.T) {
				r := base.fresh(t)
				r.overlay(&c)
				arrives := r.out.arrives()
				for name, inner := range innerPackets(testpkt.Ethernet{Source: [6]byte{2, 9, 8, 7, 6, 5}, Destination: innerMAC}, f) {
					want := append([]byte(nil), inner...)
					copy(want[6:], innerFrom[:])
					copy(want, innerMAC[:])
					r.step(name, r.out, c.wrap(arrives, c.remote, c.local, 50001, 0x10, inner), actRedirect, want)
				}
				// Not delivered: packets from an unknown peer, of another network, or with a
				// congestion mark although the sender is not ECN-capable.
				inner := packet(testpkt.Ethernet{Source: innerFrom, Destination: innerMAC}, testpkt.ProtoUDP, f.far, f.client, stageData, 63)
				stranger := c.remote.Next()
				unknown := c.wrap(arrives, stranger, c.local, 50001, 0, inner)
				r.step("from another host", r.out, unknown, actShot, unknown)
				marked := c.wrap(arrives, c.remote, c.local, 50001, 3, inner)
				r.step("marked", r.out, marked, actShot, marked)
				want := map[string]uint64{"DROP_TUNNEL_UNKNOWN_PEER": 1, "DROP_TUNNEL_ECN": 1}
				other := c
				other.header = append([]byte(nil), c.header...)
				if len(other.header) == 8 {
					other.header[6]++
					elsewhere := other.wrap(arrives, c.remote, c.local, 50001, 0, inner)
					r.step("of another network", r.out, elsewhere, actUnspec, elsewhere)
					if c.spec.Type != datapath.TunnelGRE {
						want["VERDICT_SLOW"] = 1 // counted like any packet
					}
				}
				r.counted(want)
			})
		}
	}
}

// TestCongestion: if the sender of the inner packet is ECN-capable, that packet gets the congestion
// mark of the outer packet, and its checksum is corrected (RFC 6040, figure 4).
func TestCongestion(t *testing.T) {
	r := newRig(t)
	c := tunnelCases()[0]
	r.overlay(&c)
	eth := testpkt.Ethernet{Source: innerFrom, Destination: innerMAC}
	frame := func(f family, ecn uint8) []byte {
		var ip testpkt.Layer = testpkt.IPv4{Source: f.client.Addr(), Destination: f.far.Addr(), TTL: 63, TOS: 0x10 | ecn, DontFragment: true}
		if f.client.Addr().Is6() {
			ip = testpkt.IPv6{Source: f.client.Addr(), Destination: f.far.Addr(), HopLimit: 63, Class: 0x10 | ecn}
		}
		return testpkt.Build(eth, ip, testpkt.UDP{Source: f.client.Port(), Destination: f.far.Port()}, testpkt.Payload("marked?"))
	}
	for _, f := range families {
		for _, row := range [][3]uint8{ // inner, outer, result
			{0, 0, 0}, {0, 1, 0}, {0, 2, 0}, {2, 0, 2}, {2, 1, 1}, {2, 2, 2}, {2, 3, 3}, {1, 0, 1}, {1, 2, 1}, {1, 3, 3}, {3, 0, 3}, {3, 1, 3}, {3, 3, 3},
		} {
			in := c.wrap(r.out.arrives(), c.remote, c.local, 50001, 0x10|row[1], frame(f, row[0]))
			r.step(fmt.Sprintf("%s: inner %d, outer %d", f.name, row[0], row[1]), r.out, in, actRedirect, frame(f, row[2]))
		}
	}
}
