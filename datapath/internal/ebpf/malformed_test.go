// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// untouched sends a frame to the ingress hook and checks that it is left to the kernel unchanged:
// no connection is created, and the service does not count it.
func (r *rig) untouched(what string, frame []byte) {
	r.t.Helper()
	r.step(what, r.in, frame, actUnspec, frame)
	if n := r.entries(); n != 0 {
		r.t.Errorf("%s: %d entries", what, n)
	}
	if s := r.stats(7); s.ConnectionCount != 0 {
		r.t.Errorf("%s: the service counts %d connections", what, s.ConnectionCount)
	}
}

// TestMappedAddresses: an IPv6 packet with an IPv4-mapped address (RFC 4291, section 2.5.5.2) does
// not match an IPv4 frontend or client.
func TestMappedAddresses(t *testing.T) {
	base := newRig(t)
	mapped := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	}
	for name, proto := range protocols {
		t.Run(name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.connect(families[0], proto, natModes[0])
			for what, way := range map[string][2]netip.AddrPort{
				"destination": {families[1].client, mapped(p.vip)},
				"source":      {mapped(p.client), families[1].vip},
				"both":        {mapped(p.client), mapped(p.vip)},
			} {
				frame := packet(r.in.arrives(), proto, way[0], way[1], stageOpen, 61)
				r.untouched(what, frame)
			}
		})
	}
}

// TestHeadersBeyondPacket: a packet that, according to the length in its IP header, ends before the
// ports has no ports.
func TestHeadersBeyondPacket(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, proto, natModes[0])
				frame := packet(r.in.arrives(), proto, p.client, p.vip, stageOpen, 61)
				if f.client.Addr().Is4() {
					for _, length := range []byte{21, 20, 12, 0} {
						setLength4(frame, length)
						r.untouched("total length", frame)
					}
					return
				}
				for _, length := range []byte{7, 0} {
					frame[14+5] = length
					frame[14+4] = 0
					r.untouched("payload length", frame)
				}
				// An extension header that is longer than the payload.
				frame = packet(r.in.arrives(), proto, p.client, p.vip, stageOpen, 61)
				options := []byte{frame[14+6], 0, 1, 4, 0, 0, 0, 0}
				long := append(append(append([]byte{}, frame[:14+40]...), options...), frame[14+40:]...)
				long[14+6] = testpkt.Destination
				for _, length := range []byte{8, 7, 0} {
					long[14+4], long[14+5] = 0, length
					r.untouched("extension header", long)
				}
			})
		}
	}
}

// setLength4 sets the length of an IPv4 packet, and the checksum of its header.
func setLength4(frame []byte, length byte) {
	ip := frame[14:34]
	ip[2], ip[3], ip[10], ip[11] = 0, length, 0, 0
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(ip[i])<<8 | uint32(ip[i+1])
	}
	sum = sum>>16 + sum&0xffff
	sum = ^(sum>>16 + sum&0xffff)
	ip[10], ip[11] = byte(sum>>8), byte(sum)
}

// TestNoRoomForPlain: if the table has no room for a connection without a service, the kernel
// forwards it untracked.
func TestNoRoomForPlain(t *testing.T) {
	base := newRig(t, sized(1))
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				for port := range uint16(kernel.ConnBlock) {
					taken := rigTuple{proto, netip.AddrPortFrom(f.far.Addr(), 1+port), f.client}
					r.write(taken, rigConn{leaves: taken, rigMeta: rigMeta{State: uint8(kernel.CtStateCT_ESTABLISHED)}})
				}
				for port := range uint16(4) {
					client := netip.AddrPortFrom(f.client.Addr(), 2000+port)
					frame := packet(r.in.arrives(), proto, client, f.far, stageOpen, 61)
					r.step("first packet", r.in, frame, actUnspec, frame)
				}
			})
		}
	}
}

// TestSCTPFragmentsWithOtherPorts: if the ports of an SCTP packet change, its checksum cannot be
// corrected from the first fragment alone, so the fragment is dropped.
func TestSCTPFragmentsWithOtherPorts(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.connect(f, testpkt.ProtoSCTP, natModes[0])
			frame := packet(r.in.arrives(), testpkt.ProtoSCTP, p.client, p.vip, stageOpen, 61)
			mtu := len(frame) - 14 - 8
			if f.client.Addr().Is6() {
				mtu = len(frame) - 14
			}
			first := testpkt.Fragments(frame, mtu, 1)[0]
			if action, _ := r.run(r.ingress, r.in, first); action != actShot {
				t.Errorf("action %d, want that it is dropped", action)
			}
			r.counted(map[string]uint64{"DROP_REWRITE": 1})
		})
	}
}
