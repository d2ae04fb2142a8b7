// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// outer is the outer part of an encapsulated frame.
type outer struct {
	source, destination netip.Addr
	header              []byte // VXLAN, Geneve or GRE
	port                uint16 // UDP
}

// unwrap returns the frame in an encapsulated frame; ok: it is one.
func unwrap(frame []byte, typ datapath.TunnelType) (o outer, inner []byte, ok bool) {
	p := testpkt.Parse(frame)
	o.source, o.destination = p.Source().Addr(), p.Destination().Addr()
	l4 := 34
	if o.source.Is6() {
		l4 = 54
	}
	size, at := 8, l4+8
	if typ == datapath.TunnelGRE {
		if p.Protocol() != 47 {
			return o, nil, false
		}
		at = l4
	} else if o.port = p.Destination().Port(); p.Protocol() != testpkt.ProtoUDP || o.port != typ.DefaultPort() {
		return o, nil, false
	}
	// Over IPv6, the UDP checksum is zero (RFC 6935), which testpkt does not know.
	if len(frame) < at+size || p.CheckOuter() != nil && (o.source.Is4() || typ == datapath.TunnelGRE) {
		return o, nil, false
	}
	if p.UDP != nil && (int(binary.BigEndian.Uint16(frame[l4+4:])) != len(frame)-l4 || p.UDP.Source < 0xc000) {
		return o, nil, false
	}
	o.header = frame[at : at+size]
	return o, frame[at+size:], true
}

// mirrorTunnel makes a tunnel to a collector behind out0, whose MTU has room for whole frames.
func (n *mirrorNetwork) mirrorTunnel(typ datapath.TunnelType, remote string) {
	n.t.Helper()
	testnet.Veth(n.t, testnet.Port{NS: n.node, Name: "tun0", MAC: "02:4c:4c:00:00:01"}, testnet.Port{NS: n.node, Name: "tun0-e"})
	n.node.Run(n.t, "ip", "link", "set", "out0", "mtu", "1600")
	n.backends.Run(n.t, "ip", "link", "set", "eth0", "mtu", "1600")
	ctx := n.t.Context()
	n.ok(n.d.Tunnels().Update(ctx, "overlay", datapath.Tunnel{Device: "tun0", Type: typ, VNI: 7, Port: typ.DefaultPort()}))
	n.ok(n.d.Peers().Update(ctx, "collector", datapath.Peer{Tunnel: "overlay", Underlay: []netip.Addr{netip.MustParseAddr(remote)}}))
}

// TestMirrorToPeer: the collector receives exactly the frames of the wire in the tunnel's
// encapsulation under the mirror's VNI, and the outer packets are not copied again.
func TestMirrorToPeer(t *testing.T) {
	const vni = 0x654321
	for _, remote := range []string{"10.0.1.13", "2001:db8:2::13"} {
		for typ := range datapath.TunnelTypes {
			typ := datapath.TunnelType(typ)
			t.Run(fmt.Sprint(typ, " to ", remote), func(t *testing.T) {
				n := newMirrorNetwork(t)
				n.attach()
				n.mirrorTunnel(typ, remote)
				to := datapath.MirrorTarget{Peer: "collector", VNI: vni}
				n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections, To: to})
				// The uplink is mirrored, too: with copies of copies, this would not end.
				n.mirror("uplink", datapath.Mirror{Port: "out0", Direction: bothDirections})
				// The neighbour is known: copies of frames that are not IP packets do not resolve it.
				n.node.Run(t, "ping", "-c", "1", "-W", "2", remote)
				before, _ := n.d.Telemetry().MirrorState("m")
				at := n.mark()
				n.talk()
				n.sender.Send(t, testpkt.Build(testpkt.Ethernet{Source: n.client.MAC(t, "eth0"), Destination: [6]byte{2, 2, 2, 2, 2, 2}, Type: 0x88b5}, testpkt.Raw("not IP")))
				n.settle()
				header := binary.BigEndian.AppendUint32(map[datapath.TunnelType][]byte{
					datapath.TunnelVXLAN: {8, 0, 0, 0}, datapath.TunnelGeneve: {0, 0, 0x65, 0x58}, datapath.TunnelGRE: {0x20, 0, 0x65, 0x58},
				}[typ], vni<<8)
				if typ == datapath.TunnelGRE {
					header = binary.BigEndian.AppendUint32(header[:4], vni)
				}
				var want, got []string
				equal := func() bool {
					want, got = nil, nil
					for _, f := range n.client0.Frames()[at.client:] {
						want = append(want, string(f))
					}
					for _, f := range n.backends0.Frames()[at.backends:] {
						if o, inner, ok := unwrap(f, typ); ok && o.destination.String() == remote && slices.Equal(o.header, header) {
							got = append(got, string(inner))
						}
					}
					slices.Sort(want)
					slices.Sort(got)
					return slices.Equal(want, got)
				}
				for deadline := time.Now().Add(3 * time.Second); !equal() && time.Now().Before(deadline); {
					time.Sleep(20 * time.Millisecond)
				}
				if !slices.Equal(want, got) || len(got) == 0 {
					t.Errorf("%d copies, want %d", len(got), len(want))
					for _, f := range want {
						if !slices.Contains(got, f) {
							t.Logf("missing:\n%s", testpkt.Parse([]byte(f)))
						}
					}
				}
				for _, f := range n.copied(at) {
					if o, _, ok := unwrap([]byte(f), typ); ok && slices.Equal(o.header, header) {
						t.Errorf("copy of a copy:\n%s", testpkt.Parse([]byte(f)))
						break
					}
				}
				if s, _ := n.d.Telemetry().MirrorState("m"); s.Packets-before.Packets != uint64(len(want)) || s.Drops != 0 {
					t.Errorf("state %+v, want %d copies", s, len(want))
				}
			})
		}
	}
}

// TestMirrorOfDecapsulated: packets that arrive through a tunnel and leave through a mirrored port are
// copied to a peer, whose header differs in family from theirs.
func TestMirrorOfDecapsulated(t *testing.T) {
	for _, remote := range []string{"10.0.1.13", "2001:db8:2::13"} {
		t.Run(remote, func(t *testing.T) {
			n := newMirrorNetwork(t)
			n.attach()
			n.mirrorTunnel(datapath.TunnelVXLAN, "10.0.1.13")
			ctx := t.Context()
			n.ok(n.d.Peers().Update(ctx, "far", datapath.Peer{Tunnel: "overlay", Underlay: []netip.Addr{netip.MustParseAddr("10.0.1.12")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}}))
			n.ok(n.d.Peers().Update(ctx, "collector", datapath.Peer{Tunnel: "overlay", Underlay: []netip.Addr{netip.MustParseAddr(remote)}}))
			n.node.Run(t, "ip", "route", "add", "10.77.0.0/16", "dev", "tun0")
			n.mirror("m", datapath.Mirror{Port: "in0", Direction: datapath.MirrorOut, To: datapath.MirrorTarget{Peer: "collector", VNI: 9}})
			n.node.Run(t, "ping", "-c", "1", "-W", "2", remote)
			n.ok(n.ping(n.client, "192.0.2.1", 10))
			n.settle()
			at := n.mark()
			isInner := func(f []byte) bool { return testpkt.Parse(f).Destination().Port() == 2222 }
			// The kernel considers what its own tunnels send encapsulated, even after decapsulation.
			for _, c := range []string{
				"link add vx0 address 02:4c:4c:00:00:02 type vxlan id 7 local 10.0.1.12 remote 10.0.1.1 dstport 4789 dev eth0", "link set vx0 up", "addr add 10.77.0.5/32 dev vx0",
				"route add 192.0.2.10 dev vx0 src 10.77.0.5", "neigh replace 192.0.2.10 lladdr 02:4c:4c:00:00:01 dev vx0",
			} {
				n.backends.Run(t, "ip", strings.Fields(c)...)
			}
			c, err := n.backends.Dial("udp", "10.77.0.5:1111", "192.0.2.10:2222", time.Second)
			n.ok(err)
			defer c.Close()
			for range 3 {
				_, err := c.Write([]byte("from afar"))
				n.ok(err)
				n.settle()
			}
			want := selected(n.client0, at.client, isInner)
			var got []string
			for _, f := range n.backends0.Frames()[at.backends:] {
				if o, copied, ok := unwrap(f, datapath.TunnelVXLAN); ok && o.header[6] == 9 && isInner(copied) {
					got = append(got, string(copied))
				}
			}
			if len(want) != 3 || !slices.Equal(want, got) {
				s, _ := n.d.Telemetry().MirrorState("m")
				t.Errorf("%d copies of %d packets; state %+v; drops %v", len(got), len(want), s, n.dropped())
			}
		})
	}
}

// TestMirrorTooBig: copies that do not fit the path to a peer are counted as drops, unless they are
// cut.
func TestMirrorTooBig(t *testing.T) {
	n := newMirrorNetwork(t)
	n.attach()
	n.mirrorTunnel(datapath.TunnelVXLAN, "10.0.1.13")
	n.node.Run(t, "ip", "link", "set", "out0", "mtu", "1500")
	m := datapath.Mirror{Port: "in0", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Peer: "collector", VNI: 9}, Match: datapath.Match{Protocols: []datapath.Protocol{datapath.ICMP}}}
	testnet.Eventually(t, 3*time.Second, "the MTU is known", func() bool {
		return n.d.Mirrors().Update(t.Context(), "m", m) == nil
	})
	time.Sleep(200 * time.Millisecond)
	n.ok(n.ping(n.client, "10.0.1.11", 1472))
	n.ok(n.ping(n.client, "10.0.1.11", 100))
	s, _ := n.d.Telemetry().MirrorState("m")
	if s.Drops != 1 || s.Packets != 1 {
		t.Errorf("state %+v, want one drop and one copy", s)
	}
	m.Length = 128
	n.mirror("m", m)
	n.ok(n.ping(n.client, "10.0.1.11", 1472))
	if s, _ := n.d.Telemetry().MirrorState("m"); s.Drops != 1 || s.Packets != 2 {
		t.Errorf("state %+v, want another copy", s)
	}
}
