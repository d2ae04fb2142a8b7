// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
)

// TestMessagesAreLost is H10: so many changes happen at once that netlink messages are lost. The
// data plane reads the current state instead, and is notified of the next change at once.
func TestMessagesAreLost(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	n.attach()
	v := n.d.namespaces[netnsHost].devices
	isDeaf := func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.deaf
	}
	// While the lock is held, nothing reads messages.
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
		t.Fatal("no receiver is left")
	}
	mtu := func() int { return v.ByName("out0").Attrs().MTU }
	if mtu() != 1400 {
		t.Errorf("MTU %d, want 1400: not made up for", mtu())
	}
	n.node.MTU(t, "out0", 1300)
	testnet.Eventually(t, time.Second, "the next change is heard", func() bool { return mtu() == 1300 })
}

// TestReceivingFails: after a receive error, the subscriptions to routing rules, filters and XDP
// features are opened again, and report the next change at once.
func TestReceivingFails(t *testing.T) {
	var failing atomic.Bool
	var failed, received atomic.Int64
	receiveBefore := receive
	t.Cleanup(func() { receive = receiveBefore })
	receive = func(s *nl.NetlinkSocket) ([]syscall.NetlinkMessage, error) {
		messages, err := receiveBefore(s)
		if failing.Load() {
			failed.Add(1)
			return nil, unix.EIO
		}
		received.Add(1)
		return messages, err
	}
	n := newXDPNetwork(t, datapath.XDPNative)
	n.requireXDPTargets()
	v := n.d.namespaces[netnsHost].devices
	out0 := v.ByName("out0").Attrs().Index
	sends := func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.xdpTargets.frames[out0]
	}
	testnet.Eventually(t, 5*time.Second, "out0 transmits XDP frames", sends)
	// Each change is reported to a different subscription.
	changes := []struct {
		name string
		once func(on bool)
	}{
		{"routing rules", func(on bool) {
			n.node.Run(t, "ip", "rule", map[bool]string{true: "add", false: "del"}[on], "from", "192.0.2.99", "lookup", "main")
		}},
		{"filters", func(on bool) {
			n.node.Run(t, "tc", "qdisc", map[bool]string{true: "add", false: "del"}[on], "dev", "out0", "clsact")
		}},
		{"XDP features", func(on bool) { n.backends.Offload(t, "eth0", !on, testnet.GRO) }},
	}
	failing.Store(true)
	for i, c := range changes {
		c.once(true)
		testnet.Eventually(t, 5*time.Second, c.name+": an error", func() bool { return failed.Load() > int64(i) })
	}
	failing.Store(false)
	isDeaf := func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.deaf
	}
	testnet.Eventually(t, 5*time.Second, "subscriptions have ended", isDeaf)
	n.ok(n.d.Maintain(context.Background()))
	if isDeaf() {
		t.Fatal("the subscriptions were not opened again")
	}
	if sends() {
		t.Error("a change of XDP features was not detected after messages were lost")
	}
	for _, c := range changes {
		before := received.Load()
		c.once(false)
		testnet.Eventually(t, 5*time.Second, c.name+": the next change is reported", func() bool { return received.Load() > before })
	}
	testnet.Eventually(t, 5*time.Second, "out0 transmits XDP frames again", sends)
}
