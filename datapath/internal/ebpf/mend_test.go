// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"os"
	"path/filepath"
	"testing"
)

// TestUnpinnedHooksArePinnedAgain: another program removes the pins of attached programs. They are
// pinned again without being detached: no packet bypasses them, and the next start finds them.
func TestUnpinnedHooksArePinnedAgain(t *testing.T) {
	for _, kind := range []string{"tcx", "tc"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "tcx" {
				requireTCX(t)
			}
			n := newNetwork(t)
			n.restart(kind)
			n.attach()
			stream := n.countedStream(brief(10, 1))
			ctx := t.Context()
			for range 3 {
				pins, err := filepath.Glob(filepath.Join(n.d.ports.Folder(netnsHost, "in0"), "*gress*"))
				if err != nil || len(pins) != 2 {
					t.Fatalf("pins %v, %v", pins, err)
				}
				for _, pin := range pins {
					n.ok(os.Remove(pin))
				}
				n.attach() // or the keeper, whichever comes first
				if ok, err := n.d.Ports().Verify(ctx, "in0"); !ok || err != nil {
					t.Errorf("afterwards: %v, %v", ok, err)
				}
				n.restart(kind)
			}
			n.attach()
			if sent, handled := stream.end(); sent != handled || sent == 0 {
				t.Errorf("%d datagrams were sent, %d were handled", sent, handled)
			}
		})
	}
}
