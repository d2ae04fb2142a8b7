// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/internal/testnet"
)

// TestMessagesAreLost is H10: so many changes happen at once that messages are lost. The data plane
// makes up for them, and is notified of the next change at once.
func TestMessagesAreLost(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	n.attach()
	v := n.d.zones[zoneHost].devices
	isDeaf := func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.deaf
	}
	// Nothing reads messages meanwhile.
	v.mu.Lock()
	n.node.Do(t, func() error {
		out0, err := netlink.LinkByName("out0")
		if err != nil {
			return err
		}
		for i := range 6000 {
			err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex: out0.Attrs().Index, State: netlink.NUD_REACHABLE, IP: net.IPv4(10, 0, 1, byte(20+i%200)),
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, Family: unix.AF_INET,
			})
			if err != nil {
				return err
			}
		}
		return netlink.LinkSetMTU(out0, 1400)
	})
	v.mu.Unlock()
	testnet.Eventually(t, 5*time.Second, "messages do not fit", isDeaf)
	n.ok(n.d.Maintain(ctx))
	if isDeaf() {
		t.Fatal("nobody listens any more")
	}
	mtu := func() int { return v.byName("out0").Attrs().MTU }
	if mtu() != 1400 {
		t.Errorf("MTU %d, want 1400: not made up for", mtu())
	}
	n.node.MTU(t, "out0", 1300)
	testnet.Eventually(t, time.Second, "the next change is heard", func() bool { return mtu() == 1300 })
}
