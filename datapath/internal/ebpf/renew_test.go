// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestSwitchNamespaceIsDeleted deletes the switch's namespace although it has a port, and creates
// another namespace with that name: the port is attached there, and the old namespace ends.
func TestSwitchNamespaceIsDeleted(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	n.ok(n.d.Close())
	n.config.SwitchNamespace = testnet.UniqueName("switch")
	for _, how := range []string{"", "tc"} {
		n.config.Attach = how
		n.open()
		for round := range 3 {
			outside := testnet.New(t, "outside")
			testnet.MakeNamed(t, n.config.SwitchNamespace)
			t.Run("plug in", func(t *testing.T) { // the subtest releases the namespace when it ends
				testnet.Veth(t, testnet.Port{NS: testnet.Named(t, n.config.SwitchNamespace), Name: "p1"}, testnet.Port{NS: outside, Name: "eth0"})
			})
			testnet.Eventually(t, 5*time.Second, "the port is attached", func() bool {
				n.ok(n.d.Maintain(ctx))
				return n.d.Ports().Update(ctx, "p1", datapath.Port{Device: "p1", Switch: true}) == nil
			})
			if ok, err := n.d.Ports().Verify(ctx, "p1"); !ok || err != nil {
				t.Fatalf("round %d: attached, and not: %v", round, err)
			}
			testnet.DeleteNamed(t, n.config.SwitchNamespace)
			n.ok(n.d.Maintain(ctx))
			if ok, err := n.d.Ports().Verify(ctx, "p1"); ok || err != nil {
				t.Errorf("round %d: a port without a namespace is as configured: %v", round, err)
			}
			if err := n.d.Ports().Update(ctx, "p1", datapath.Port{Device: "p1", Switch: true}); !errors.Is(err, datapath.ErrAbsent) {
				t.Errorf("round %d: %v", round, err)
			}
			// No process holds the namespace now: the kernel deletes its devices, and the veth
			// peer.
			testnet.Eventually(t, 5*time.Second, "the old namespace ends", func() bool {
				return outside.Try(func() error {
					_, err := netlink.LinkByName("eth0")
					return err
				}) != nil
			})
			var key kernel.DeviceKey
			var value kernel.Device
			for entries := n.d.maps[kernel.MapLlDevice].Iterate(); entries.Next(&key, &value); {
				if key.Netns == netnsSwitch {
					t.Errorf("round %d: device %d of the switch is still known", round, key.Ifindex)
				}
			}
		}
		n.ok(n.d.Ports().Delete(ctx, "p1"))
		n.ok(n.d.Close())
	}
	n.d = nil
}
