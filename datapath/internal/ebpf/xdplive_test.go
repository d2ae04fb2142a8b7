// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/device"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// xdpNetwork is a network with XDP programs on both ports of the node. The devices of the hosts
// around it act like NICs: they complete checksums, and accept XDP frames.
type xdpNetwork struct {
	*network
	mode datapath.XDPMode
}

func newXDPNetwork(t *testing.T, mode datapath.XDPMode) *xdpNetwork {
	t.Helper()
	n := &xdpNetwork{newNetwork(t), mode}
	for _, ns := range []*testnet.NS{n.client, n.backends} {
		ns.Offload(t, "eth0", false, testnet.TSO, testnet.GSO, testnet.TxChecksum)
		ns.Offload(t, "eth0", true, testnet.GRO)
	}
	n.update(mode)
	// From now on the kernel counts every run.
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	n.ok(err)
	t.Cleanup(func() { stats.Close() })
	return n
}

func (n *xdpNetwork) update(mode datapath.XDPMode) {
	n.t.Helper()
	for _, device := range []string{"in0", "out0"} {
		n.ok(n.d.Ports().Update(context.Background(), datapath.PortName(device), datapath.Port{Device: device, XDP: mode}))
	}
}

// xdpOf returns the XDP program on the device of a port.
func (n *network) xdpOf(name datapath.PortName) *hook.XDP {
	n.t.Helper()
	for _, h := range n.port(name).Hooks {
		if x, ok := h.(*hook.XDP); ok {
			return x
		}
	}
	n.t.Fatalf("port %q has no XDP program", name)
	return nil
}

// runs returns how often programs have run on the tc ingress hooks, and in XDP.
func (n *xdpNetwork) runs() (tc, inXDP uint64) {
	n.t.Helper()
	n.ok(n.eachHook(func(h hook.Attachment) error {
		if strings.HasSuffix(h.Name(), "egress") {
			return nil
		}
		p, err := ebpf.NewProgramFromID(h.Program())
		if err != nil {
			return err
		}
		defer p.Close()
		s, err := p.Stats()
		if err != nil {
			return err
		}
		if strings.HasPrefix(h.Name(), "xdp-") {
			inXDP += s.RunCount
		} else {
			tc += s.RunCount
		}
		return nil
	}))
	return tc, inXDP
}

// wantXDP exchanges words until some of them and their replies take only XDP, or, if not wanted,
// checks that no word does.
func (n *xdpNetwork) wantXDP(what string, wanted bool, exchange func(word string)) {
	n.t.Helper()
	alone := 0
	tries := 40
	for try := range tries {
		tc, inXDP := n.runs()
		exchange(fmt.Sprint(what, " ", try))
		nowTC, nowXDP := n.runs()
		if nowTC == tc && nowXDP >= inXDP+2 {
			if alone++; alone == 3 {
				break
			}
		}
		if !wanted && try == 10 {
			break
		}
	}
	if (alone > 0) != wanted {
		tc, inXDP := n.runs()
		tracked, slow := n.verdicts()
		list, _, err := n.d.Connections().List(context.Background(), datapath.ConnectionFilter{}, "", 10)
		n.t.Errorf("%s: %d words by XDP alone, wanted any: %v; %d runs at tc, %d in XDP, %d tracked, %d slow; %+v %v", what, alone, wanted, tc, inXDP, tracked, slow, list, err)
	}
}

func (n *network) dialUDP(addr string) net.Conn {
	n.t.Helper()
	c, err := n.client.Dial("udp", "", addr, time.Second)
	n.ok(err)
	n.t.Cleanup(func() { c.Close() })
	return c
}

// TestXDPForwards: packets of both families and protocols that XDP forwards arrive with the right
// checksums, routed and through a service.
//
//	client ─ eth0 ══ in0 (XDP) node (XDP) out0 ══ eth0 ─ backends
func TestXDPForwards(t *testing.T) {
	for _, mode := range []datapath.XDPMode{datapath.XDPNative, datapath.XDPGeneric} {
		for _, x := range []struct{ name, server, target string }{
			{"routed", "10.0.1.11:8080", "10.0.1.11:8080"},
			{"routed", "[2001:db8:2::11]:8080", "[2001:db8:2::11]:8080"},
			{"service", "10.0.1.11:8080", "198.51.100.10:80"},
			{"service", "[2001:db8:2::11]:8080", "[2001:db8:53::10]:80"},
		} {
			t.Run(fmt.Sprint(mode, " ", x.name, " ", x.target), func(t *testing.T) {
				n := newXDPNetwork(t, mode)
				if mode == datapath.XDPNative {
					n.requireXDPTargets()
				}
				n.backends.ServeTCP(t, x.server, "tcp")
				n.backends.ServeUDP(t, x.server, "udp")
				if x.name == "service" {
					n.ok(n.d.Services().Update(context.Background(), "web", datapath.Service{
						Frontends:   []datapath.Frontend{frontend(x.target, datapath.TCP), frontend(x.target, datapath.UDP)},
						Backends:    backendAddrs(8080, netip.MustParseAddrPort(x.server).Addr().String()),
						IdleTimeout: datapath.DefaultIdleTimeout(),
					}))
				}
				tcp := n.dial(x.target)
				n.wantXDP("TCP", true, func(word string) { tcp.echo(t, word) })
				udp := n.dialUDP(x.target)
				n.wantXDP("UDP", true, func(word string) {
					if _, err := testtraffic.ExchangeUDP(udp, []byte(word)); err != nil {
						t.Errorf("%q: %v", word, err)
					}
				})
				// Text that is larger than a packet, with an odd number of bytes.
				tcp.echo(t, strings.Repeat("abcdefg", 9999))
				n.noDrops()
			})
		}
	}
}

func (n *network) noDrops() {
	n.t.Helper()
	c, err := n.d.Telemetry().NodeCounters(context.Background())
	n.ok(err)
	for reason, count := range c.Drops {
		if count != 0 {
			n.t.Errorf("%d packets dropped: %s", count, reason)
		}
	}
}

// requireXDPTargets skips the test on kernels that do not report XDP transmit targets.
func (n *xdpNetwork) requireXDPTargets() {
	n.t.Helper()
	z, err := n.d.namespaces.Open(netnsHost)
	n.ok(err)
	transmitters, err := device.XDPTransmitters(z.Netns)
	n.ok(err)
	if transmitters == nil {
		n.t.Skip("kernels before 6.3 do not report which devices can transmit XDP frames")
	}
}

// TestXDPLeavesUnfinishedChecksums: packets of sockets behind a veth have partial checksums, which
// XDP cannot complete; they take the tc path, and arrive.
func TestXDPLeavesUnfinishedChecksums(t *testing.T) {
	for _, mode := range []datapath.XDPMode{datapath.XDPNative, datapath.XDPGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			n := newXDPNetwork(t, mode)
			for _, ns := range []*testnet.NS{n.client, n.backends} {
				ns.Offload(t, "eth0", true, testnet.TxChecksum)
			}
			n.serve()
			n.ok(n.d.Services().Update(context.Background(), "web", web(1)))
			tcp := n.dial("198.51.100.10:80")
			n.wantXDP("TCP", false, func(word string) { tcp.echo(t, word) })
			tcp.echo(t, strings.Repeat("abcdefg", 9999))
			udp := n.dialUDP("198.51.100.10:80")
			n.wantXDP("UDP", false, func(word string) {
				if _, err := testtraffic.ExchangeUDP(udp, []byte(word)); err != nil {
					t.Errorf("%q: %v", word, err)
				}
			})
			n.noDrops()
		})
	}
}

// TestXDPKnowsWhoTakesFrames: packets to a veth whose peer does not accept XDP frames, which XDP
// would lose, take the tc path; so do packets to a device with a limiting qdisc.
func TestXDPKnowsWhoTakesFrames(t *testing.T) {
	n := newXDPNetwork(t, datapath.XDPNative)
	n.serve()
	n.ok(n.d.Services().Update(context.Background(), "web", web(1)))
	c := n.dial("198.51.100.10:80")
	word := func(word string) { c.echo(t, word) }
	transmitters := func(wanted bool) {
		t.Helper()
		testnet.Eventually(t, 5*time.Second, fmt.Sprint("the devices take frames: ", wanted), func() bool {
			return n.flagsOf("in0")&n.flagsOf("out0")&kernel.DeviceXDPXmit != 0 == wanted && (n.flagsOf("in0")|n.flagsOf("out0"))&kernel.DeviceXDPXmit != 0 == wanted
		})
	}
	z, err := n.d.namespaces.Open(netnsHost)
	n.ok(err)
	if found, err := device.XDPTransmitters(z.Netns); found == nil {
		n.ok(err)
		n.wantXDP("on a kernel that does not tell", false, word)
		n.wantFallback("only from Linux 6.3 on")
		return
	}
	transmitters(true)
	n.wantXDP("with GRO", true, word)
	n.wantFallback("")
	// The hosts' devices have no XDP program, so without GRO they have no NAPI.
	for _, ns := range []*testnet.NS{n.client, n.backends} {
		ns.Offload(t, "eth0", false, testnet.GRO)
	}
	transmitters(false)
	n.wantXDP("without GRO", false, word)
	n.wantFallback("packets that leave through in0, out0 take the tc path")
	for _, ns := range []*testnet.NS{n.client, n.backends} {
		ns.Offload(t, "eth0", true, testnet.GRO)
	}
	transmitters(true)
	n.wantXDP("with GRO again", true, word)
	for _, device := range []string{"in0", "out0"} {
		if !n.bound(device) {
			t.Log("this kernel has no qdisc tbf")
			return
		}
	}
	n.ok(z.Devices.Scan()) // otherwise done every 30 s
	transmitters(false)
	n.wantXDP("with a bound", false, word)
	n.noDrops()
}

// wantFallback compares the reported fallback of XDP.
func (n *network) wantFallback(want string) {
	n.t.Helper()
	f, err := n.d.Telemetry().Features(context.Background())
	if got := f.Fallbacks["xdp host"]; err != nil || (got == "") != (want == "") || !strings.Contains(got, want) {
		n.t.Errorf("the fallback of XDP is %q, %v; want %q", got, err, want)
	}
}

// bound gives a device of the node a limiting qdisc, and reports whether the kernel has it.
func (n *network) bound(device string) bool {
	n.t.Helper()
	return n.node.Try(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       1 << 27, Limit: 1 << 20, Buffer: 1 << 20,
		})
	}) == nil
}

// flagsOf returns the flags of a device of the node.
func (n *network) flagsOf(device string) uint32 {
	n.t.Helper()
	z, err := n.d.namespaces.Open(netnsHost)
	n.ok(err)
	l := z.Devices.ByName(device)
	if l == nil {
		return 0
	}
	var d kernel.Device
	if err := n.d.maps[kernel.MapLlDevice].Lookup(kernel.DeviceKey{Ifindex: uint32(l.Attrs().Index), Netns: netnsHost}, &d); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		n.t.Fatal(err)
	}
	return d.Flags
}

// TestXDPComesAndGoes: a connection continues while modes change, the daemon restarts and ends, and
// devices change their MAC; in the end no program or pin is left.
func TestXDPComesAndGoes(t *testing.T) {
	n := newXDPNetwork(t, datapath.XDPGeneric)
	n.serve()
	n.ok(n.d.Services().Update(context.Background(), "web", web(1)))
	c := n.dial("198.51.100.10:80")
	word := func(word string) { c.echo(t, word) }
	n.wantXDP("generic", true, word)
	n.wantMode("generic", "in0", "out0")
	native := true
	if z, err := n.d.namespaces.Open(netnsHost); err == nil {
		transmitters, err := device.XDPTransmitters(z.Netns)
		n.ok(err)
		native = transmitters != nil
	}
	n.update(datapath.XDPNative)
	n.wantXDP("native", native, word)
	n.wantMode("native", "in0", "out0")
	program := n.xdpOf("in0").Program()

	n.ok(n.d.Close())
	c.echo(t, "without a daemon")
	n.open()
	n.wantMode("native", "in0", "out0")
	if now := n.xdpOf("in0").Program(); now != program {
		t.Error("a start replaced the program by the same program")
	}
	c.echo(t, "after a start")
	n.wantXDP("after a start, before it is asked for", native, word)
	n.update(datapath.XDPNative)
	if now := n.xdpOf("in0").Program(); now != program {
		t.Error("the program was replaced by the same program")
	}
	n.wantXDP("after the first round", native, word)

	n.update(datapath.XDPOff)
	n.wantXDP("off", false, word)
	n.wantMode("", "in0", "out0")
	n.update(datapath.XDPGeneric)
	n.wantXDP("generic again", true, word)
	n.move("in0")
	testnet.Eventually(t, 5*time.Second, "the program does not fit any more", func() bool {
		fits, err := n.d.Ports().Verify(context.Background(), "in0")
		return err == nil && !fits
	})
	n.update(datapath.XDPGeneric)
	n.wantXDP("after a change of the address", true, word)

	n.ok(n.d.Close())
	n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.DiscardHandler)) })
	n.d = nil
	n.wantMode("", "in0", "out0")
	if _, err := os.Stat(n.config.PinDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pins are left: %v", err)
	}
}

// move changes the MAC of a device of the node, and makes its neighbour learn the new MAC.
func (n *network) move(device string) {
	n.t.Helper()
	n.node.Do(n.t, func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0x5e, 0x10, 9, 9})
	})
	n.client.Do(n.t, func() error { return flushNeighbours("eth0") })
}

// wantMode compares the XDP mode that the kernel reports for devices of the node.
func (n *network) wantMode(want string, devices ...string) {
	n.t.Helper()
	for _, device := range devices {
		n.node.Do(n.t, func() error {
			l, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			got := ""
			if x := l.Attrs().Xdp; x != nil && x.Attached {
				got = map[uint32]string{1: "native", 2: "generic"}[x.AttachMode]
			}
			if got != want {
				n.t.Errorf("%s has XDP %q, want %q", device, got, want)
			}
			return nil
		})
		if n.d == nil {
			continue
		}
		var hooks []string
		for _, h := range n.port(datapath.PortName(device)).Hooks {
			hooks = append(hooks, h.Name())
		}
		if got := slices.Contains(hooks, "xdp-"+want); got != (want != "") {
			n.t.Errorf("hooks of %s: %v, want %s", device, hooks, want)
		}
	}
}
