// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/device"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/guard"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
	"github.com/loxilight/loxilight/internal/testnet"
)

// network is a namespace with a device that leads to another namespace, and the devices of the
// former as the data plane follows them.
type network struct {
	t              *testing.T
	node, backends *testnet.NS
	namespace      *hook.Netns
	devices        *Devices
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, node: testnet.New(t, "node"), backends: testnet.New(t, "backends")}
	testnet.Veth(t,
		testnet.Port{NS: n.node, Name: "out0", Addrs: []string{"10.0.1.1/24", "2001:db8:2::1/64"}},
		testnet.Port{NS: n.backends, Name: "eth0", Addrs: []string{"10.0.1.11/24", "2001:db8:2::11/64"}})
	n.node.Do(t, func() (err error) {
		n.namespace, err = hook.OpenNetns(hook.Host, "")
		return err
	})
	t.Cleanup(func() { n.ok(n.namespace.Close()) })
	tables, _ := testtables.New(t, testtables.Small, &testmap.Faults{})
	n.devices = New(Options{
		Netns: n.namespace, Tables: tables, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Uplinks: new(UplinkNames),
		Guard:        func(guard.Device) (mac [6]byte, ok bool) { return mac, false },
		LostAddr:     func() {},
		FollowAddrs:  func() error { return nil },
		NamesChanged: func([]string) error { return nil },
		Invalidate:   func(func(kernel.NexthopKey) bool) error { return nil },
		Forget:       func(func(netip.Addr) bool) error { return nil },
		IsTunnel:     func(string) bool { return false },
		PathsChanged: func() {},
		LacksProgram: func(int, <-chan struct{}) bool { return false },
		HasMirrors:   func(int) bool { return false }, IsMirrored: func(int) bool { return false },
		Signal: func() {},
	})
	n.ok(n.devices.Start())
	t.Cleanup(n.devices.Close)
	return n
}

func (n *network) ok(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// requireXDPTargets skips the test on kernels that do not report XDP transmit targets.
func (n *network) requireXDPTargets() {
	n.t.Helper()
	transmitters, err := device.XDPTransmitters(n.namespace)
	n.ok(err)
	if transmitters == nil {
		n.t.Skip("kernels before 6.3 do not report which devices can transmit XDP frames")
	}
}

// TestMessagesAreLost: so many changes happen at once that netlink messages are lost. The
// data plane reads the current state instead, and is notified of the next change at once.
func TestMessagesAreLost(t *testing.T) {
	n := newNetwork(t)
	v := n.devices
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
	n.ok(v.Maintain())
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
	n := newNetwork(t)
	n.requireXDPTargets()
	n.backends.Offload(t, "eth0", true, testnet.GRO)
	v := n.devices
	out0 := v.ByName("out0").Attrs().Index
	v.SetXDP(out0, datapath.XDPNative)
	n.ok(v.SetPort(out0, true))
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
	n.ok(v.Maintain())
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

// TestFollowAllRests: continuous updates are handled at intervals, and once after the last update.
func TestFollowAllRests(t *testing.T) {
	const took = 2 * time.Millisecond
	v := &Devices{done: make(chan struct{})}
	updates := make(chan int)
	var handled, seen, last atomic.Int64
	v.wg.Add(1)
	go followAll(v, updates, func(int) {}, func() { handled.Add(1); time.Sleep(took); seen.Store(last.Load()) })
	begin := time.Now()
	for i := int64(1); time.Since(begin) < 50*took; i++ {
		last.Store(i)
		updates <- 0
	}
	if n, most := handled.Load(), int64(time.Since(begin)/(4*took))+1; n == 0 || n > most {
		t.Errorf("looked at %d times in %s, want 1 to %d times", n, time.Since(begin), most)
	}
	testnet.Eventually(t, 5*time.Second, "the last is seen", func() bool { return seen.Load() == last.Load() })
	close(v.done)
	close(updates)
	v.wg.Wait()
}
