// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"testing"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestTooBigIsTold is F04 and F06: where the packet of a client leaves with an address of
// the node, nobody but us can tell it that it is too large for the way: with the MTU of
// that way, about the packet as it was sent, from where it came in. What fits goes on.
func TestTooBigIsTold(t *testing.T) {
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
				header := 20
				if f.name == "IPv6" {
					told, max, tos, header = testpkt.PacketTooBig(1280), 1232, 0, 40
				}
				sized := func(size int, s path) []byte {
					payload := testpkt.Raw(make([]byte, size-header-map[uint8]int{testpkt.ProtoTCP: 20, testpkt.ProtoUDP: 8}[proto]))
					l4 := testpkt.Layer(testpkt.UDP{Source: s.client.Port(), Destination: s.vip.Port()})
					if proto == testpkt.ProtoTCP {
						l4 = testpkt.TCP{Source: s.client.Port(), Destination: s.vip.Port(), Seq: 9, Ack: 7, Flags: testpkt.ACK}
					}
					return testpkt.Build(r.in.arrives(), ipHeader(s.client.Addr(), s.vip.Addr(), 61), l4, payload)
				}
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

// mtu sets what the programs know of a device.
func (p rigPort) mtu(r *rig, bytes uint32) {
	r.t.Helper()
	var d kernelDevice
	key := kernelDeviceKey{Ifindex: p.index}
	r.ok(r.maps[kernelMapLlDevice].Lookup(key, &d))
	d.MtuBytes = bytes
	r.put(kernelMapLlDevice, key, d)
}
