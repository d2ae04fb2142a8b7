// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// tooBig builds a router's "packet too big" error, which quotes at most quoted bytes of about.
func (r *rig) tooBig(to netip.Addr, mtu uint16, code uint8, about []byte, quoted int) []byte {
	if to.Is6() {
		return r.tooBigFrom(netip.MustParseAddr("2001:db8:99::99"), to, mtu, code, about, quoted)
	}
	return r.tooBigFrom(netip.MustParseAddr("198.51.100.99"), to, mtu, code, about, quoted)
}

// sourcePort returns the source port that the data plane assigns to outer packets of a flow.
func (r *rig) sourcePort(c *tunnelCase, inner []byte) uint16 {
	r.t.Helper()
	if c.spec.Type == datapath.TunnelGRE {
		return 0
	}
	r.tunnelEnd()
	frame := append([]byte(nil), inner...)
	copy(frame, r.in.mac[:])
	copy(frame[6:], r.in.other[:])
	action, out := r.run(r.ingress, r.in, frame)
	if action != actRedirect {
		r.t.Fatalf("action %d for %s", action, testpkt.Parse(frame))
	}
	return testpkt.Parse(out).Source().Port()
}

func (r *rig) tooBigFrom(router, to netip.Addr, mtu uint16, code uint8, about []byte, quoted int) []byte {
	icmp := testpkt.ICMP{Type: 3, Code: code, Seq: mtu}
	if to.Is6() {
		icmp = testpkt.ICMP{V6: true, Type: 2, Code: code, Seq: mtu}
	}
	about = about[14:]
	return testpkt.Build(r.out.arrives(), ipHeader(router, to, 60), icmp, testpkt.Payload(about[:min(quoted, len(about))]))
}

// TestUnderlayMTU: a router's error about a packet to a peer is honoured only if the quoted packet
// is certainly one of ours.
func TestUnderlayMTU(t *testing.T) {
	const whole = 1 << 16
	base := newRig(t)
	for _, c := range tunnelCases() {
		t.Run(c.name(), func(t *testing.T) {
			r := base.fresh(t)
			r.overlay(&c)
			inner := packet(testpkt.Ethernet{Source: innerFrom, Destination: innerMAC}, testpkt.ProtoUDP, families[0].client, families[0].far, stageData, 63)
			sent := func(c tunnelCase, from, to netip.Addr, port uint16) []byte {
				return c.wrap(r.out.leaves(), from, to, port, 0, inner)
			}
			port := r.sourcePort(&c, inner)
			ours := sent(c, c.local, c.remote, port)
			heard := func() (is kernel.PeerPmtu) {
				r.ok(r.maps[kernel.MapLlPeerPmtu].Lookup(uint32(tunnelPeer), &is))
				return is
			}
			say := func(what string, frame []byte, want uint32) {
				t.Helper()
				if action, _ := r.run(r.ingress, r.out, frame); action != actUnspec {
					t.Errorf("%s: action %d: the kernel is to see it", what, action)
				}
				if got := heard(); got.MtuBytes != want {
					t.Errorf("%s: MTU %d, want %d", what, got.MtuBytes, want)
				}
			}
			code := map[bool]uint8{true: 4, false: 0}[c.local.Is4()]
			say("another address of the node's", r.tooBig(c.local.Next(), 1400, code, ours, whole), 0)
			say("not sent by us", r.tooBig(c.local, 1400, code, sent(c, c.local.Next(), c.remote, port), whole), 0)
			say("to an address that is no peer", r.tooBig(c.local, 1400, code, sent(c, c.local, c.remote.Next(), port), whole), 0)
			say("too little to carry", r.tooBig(c.local, 1279, code, ours, whole), 0)
			say("cut off", r.tooBig(c.local, 1400, code, ours, map[bool]int{true: 27, false: 47}[c.local.Is4()]), 0)
			other := c
			other.spec.Port++
			other.header = append([]byte(nil), c.header...)
			if len(other.header) == 8 {
				other.header[5]++
				say("of another network", r.tooBig(c.local, 1400, code, sent(other, c.local, c.remote, port), whole), 0)
			}
			if c.spec.Type != datapath.TunnelGRE {
				other.header = c.header
				say("to another port", r.tooBig(c.local, 1400, code, sent(other, c.local, c.remote, port), whole), 0)
				say("from a port that no tunnel uses", r.tooBig(c.local, 1400, code, sent(c, c.local, c.remote, 4001), whole), 0)
				say("from a port that the flow does not have", r.tooBig(c.local, 1400, code, sent(c, c.local, c.remote, port^1), whole), 0)
				say("cut off before the inner ports", r.tooBig(c.local, 1400, code, ours, map[bool]int{true: 72, false: 92}[c.local.Is4()]), 0)
			}
			if c.local.Is4() {
				say("of another kind", r.tooBig(c.local, 1400, 1, ours, whole), 0)
			}
			for _, f := range families { // a host behind a tunnel is not a router of the underlay
				if router := f.far.Addr(); router.Is4() == c.local.Is4() {
					say("from behind a peer", r.tooBigFrom(router, c.local, 1400, code, ours, whole), 0)
				}
			}
			say("one of ours", r.tooBig(c.local, 1400, code, ours, whole), 1400)
			say("more, while that holds", r.tooBig(c.local, 1450, code, ours, whole), 1400)
			say("less", r.tooBig(c.local, 1300, code, ours, whole), 1300)
			old := heard()
			old.HeardTick -= kernel.TicksOf(overlay.PathMTUAge)
			r.put(kernel.MapLlPeerPmtu, uint32(tunnelPeer), old)
			say("more, when that is old", r.tooBig(c.local, 1350, code, ours, whole), 1350)

			// Errors by the link between switch and host are ignored: pods can send them.
			var entry kernel.Peer
			r.ok(r.maps[kernel.MapLlPeer].Lookup(uint32(tunnelPeer), &entry))
			entry.LinkHostIfindex = r.out.index
			r.put(kernel.MapLlPeer, uint32(tunnelPeer), entry)
			say("from the switch", r.tooBig(c.local, 1300, code, ours, whole), 1350)
		})
	}
}
