// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestBridgeSeesEachMAC: of the connections that were silent for long, the kernel's bridge gets one
// packet for each source MAC and port, so that it does not forget where the MAC is. The others stay
// on the fast path. Routed packets and bridged frames are treated alike.
func TestBridgeSeesEachMAC(t *testing.T) {
	for _, bridged := range []bool{false, true} {
		t.Run(fmt.Sprintf("bridged=%t", bridged), func(t *testing.T) {
			f := newFastRig(t)
			taken := func(base fastBase, mac, vid byte) bool {
				c := base.build(f)
				c.mayBridge, c.bridgePort = true, &kernel.BridgePort{Bridge: 99, Domain: 3, Flags: uint16(kernel.BridgePortFlagBRIDGE_PORT_F_FLAT), Vid: uint16(vid)}
				copy(c.bridgePort.Mac[:], c.frame)
				if bridged {
					c.bridgePort.Mac[5] ^= 1
					c.next.Flags |= uint32(kernel.NexthopFlagNEXTHOP_F_BRIDGED)
					copy(c.next.Dmac[:], c.frame)
				}
				c.frame[11] = mac
				c.meta.LastSeenTick -= 100
				return f.outcome(f.ingress, c).action == int32(actRedirect)
			}
			var bases []fastBase
			for _, b := range f.bases() {
				if b.flags == 0 {
					bases = append(bases, b)
				}
			}
			// The window may end between two packets, but not twice.
			try := func() (wrong []string) {
				for _, step := range []struct {
					what     string
					mac, vid byte
					want     bool
				}{
					{"first packet of a MAC", 1, 0, false}, {"next connection of the MAC", 1, 0, true},
					{"another MAC", 2, 0, false}, {"the MAC in another VLAN", 1, 7, false},
					{"the MAC back in its VLAN", 1, 0, false}, {"the other MAC again", 2, 0, true},
				} {
					for i, b := range bases {
						if want := step.want || i > 0; taken(b, step.mac, step.vid) != want {
							wrong = append(wrong, fmt.Sprintf("%s, %s: on the fast path: %t, want %t", step.what, b.name, !want, want))
						}
					}
				}
				return wrong
			}
			if len(bases) < 4 {
				t.Fatalf("%d connections", len(bases))
			}
			wrong := try()
			if len(wrong) > 0 {
				for i := range uint32(1 << 13) {
					f.put(kernel.MapLlBridgeSeen, i, kernel.BridgeSeen{})
				}
				wrong = try()
			}
			for _, w := range wrong {
				t.Error(w)
			}
		})
	}
}
