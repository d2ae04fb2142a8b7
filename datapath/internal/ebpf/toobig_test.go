// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestTooBigIsReported: if a client's packet leaves with an address of the node as
// source, only our programs can report that it exceeds the path MTU. The error contains that MTU,
// quotes the packet as it was sent, and comes from the device on which the packet arrived. Packets
// that fit are forwarded.
func TestTooBigIsReported(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, proto := range map[string]uint8{"TCP": testpkt.ProtoTCP, "UDP": testpkt.ProtoUDP} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				r.out.mtu(r, 1280)
				p := r.connect(f, proto, natModes[3])
				r.slow("opening", p, stageOpen)
				r.slow("answer", p, stageAnswer)
				r.slow("confirmation", p, stageConfirm)
				told, max, tos := testpkt.FragmentationNeeded(1280), 548, uint8(0xd0)
				if f.name == "IPv6" {
					told, max, tos = testpkt.PacketTooBig(1280), 1232, 0
				}
				r.put(kernel.MapLlLocal, kernel.LocalKey{Addr: kernel.AddrOf(f.outAddr)}, uint8(1))
				sized := func(size int, s path) []byte { return ofSize(r.in.arrives(), proto, s.client, s.vip, size) }
				before := r.counters()
				in := sized(1281, p)
				r.step("a byte too long", r.in, in, actRedirect, testpkt.Build(r.in.leaves(),
					answerIP(f.inAddr, f.client.Addr(), tos), told, testpkt.Raw(in[14:min(len(in), 14+max)])))
				before["DROP_TOO_BIG"]++
				before["VERDICT_ANSWERED"]++
				r.counted(before)
				r.run(r.ingress, r.in, sized(1280, p))
				before["VERDICT_SLOW"]++
				r.counted(before)
			})
		}
	}
}

// TestSegmentsInAList: the length check of a packet whose segments are in a list (SCTP) is left to
// the kernel, which knows the segments.
func TestSegmentsInAList(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			p := r.connect(f, testpkt.ProtoUDP, natModes[3])
			r.slow("opening", p, stageOpen)
			before := r.counters()
			r.gso = 0xffff // GSO_BY_FRAGS
			r.run(r.ingress, r.in, ofSize(r.in.arrives(), testpkt.ProtoUDP, p.client, p.vip, 3000))
			before["VERDICT_SLOW"]++
			r.counted(before)
		})
	}
}

// ofSize builds a packet of an open connection with size bytes from its IP header on.
func ofSize(eth testpkt.Ethernet, proto uint8, from, to netip.AddrPort, size int) []byte {
	l4, headers := testpkt.Layer(testpkt.UDP{Source: from.Port(), Destination: to.Port()}), 28
	if proto == testpkt.ProtoTCP {
		l4, headers = testpkt.TCP{Source: from.Port(), Destination: to.Port(), Seq: 9, Ack: 7, Flags: testpkt.ACK}, 40
	}
	if from.Addr().Is6() {
		headers += 20
	}
	return testpkt.Build(eth, ipHeader(from.Addr(), to.Addr(), 61), l4, testpkt.Raw(make([]byte, size-headers)))
}

// TestTooBigRepliesAreReported does the same for replies of a backend if the frontend is an address
// of the node.
func TestTooBigRepliesAreReported(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		bits := f.vip.Addr().BitLen()
		base.ns.Addr(t, "in0", fmt.Sprintf("%s/%d", f.vip.Addr(), bits))
		t.Run(f.name, func(t *testing.T) {
			r := base.fresh(t)
			r.in.mtu(r, 1280)
			r.put(kernel.MapLlLocal, kernel.LocalKey{Addr: kernel.AddrOf(f.vip.Addr())}, uint8(1))
			p := r.connect(f, testpkt.ProtoUDP, natModes[0])
			r.slow("opening", p, stageOpen)
			told, max, tos := testpkt.FragmentationNeeded(1280), 548, uint8(0xd0)
			if f.name == "IPv6" {
				told, max, tos = testpkt.PacketTooBig(1280), 1232, 0
			}
			in := ofSize(r.out.arrives(), p.proto, p.backend, p.source, 1400)
			r.step("an answer too long", r.out, in, actRedirect, testpkt.Build(r.out.leaves(),
				answerIP(f.outAddr, p.backend.Addr(), tos), told, testpkt.Raw(in[14:min(len(in), 14+max)])))
			r.counted(map[string]uint64{"VERDICT_SLOW": 1, "DROP_TOO_BIG": 1, "VERDICT_ANSWERED": 1})
		})
	}
}

// mtu sets the MTU of a device in the programs' table.
func (p rigPort) mtu(r *rig, bytes uint32) {
	r.t.Helper()
	var d kernel.Device
	key := kernel.DeviceKey{Ifindex: p.index}
	r.ok(r.maps[kernel.MapLlDevice].Lookup(key, &d))
	d.MtuBytes = bytes
	r.put(kernel.MapLlDevice, key, d)
}
