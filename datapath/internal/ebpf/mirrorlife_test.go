// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestMirrorTakenOver: a start with other programs, or with other maps, keeps the copies, and
// replaces the programs of mirrors.
func TestMirrorTakenOver(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections})
		ids := func() (all []uint32) { // without ll_mirror_send, which uses no table of connections
			for _, h := range n.d.mirrorHooks() {
				if h.Program != "ll_mirror_send" {
					all = append(all, h.ID)
				}
			}
			slices.Sort(all)
			return all
		}
		before := ids()
		n.restart(n.config.Attach)
		if after := ids(); len(after) != 2 || !slices.Equal(before, after) {
			t.Errorf("programs %v became %v though they are the same", before, after)
		}
		n.config.Tables.Connections *= 2
		n.restart(n.config.Attach)
		for _, id := range ids() {
			if slices.Contains(before, id) {
				t.Errorf("program %d uses the maps of the earlier run", id)
			}
		}
		at := n.mark()
		n.talk()
		n.wantCopies("with other maps", at, n.client0, at.client, anyFrame)
		if names := slices.Collect(func(yield func(string) bool) {
			for name, err := range n.d.Mirrors().Keys(t.Context()) {
				n.ok(err)
				if !yield(string(name)) {
					return
				}
			}
		}); !slices.Equal(names, []string{"m"}) {
			t.Errorf("mirrors of the earlier run: %v", names)
		}
		n.ok(n.d.Mirrors().Delete(t.Context(), "m")) // not configured in this run
		if left := n.hooked("mon0"); len(left) > 0 {
			t.Errorf("left on mon0: %v", left)
		}
	})
}

// TestMirrorKept: a signal follows if another program detaches a program of a mirror, and deleted pins
// are restored.
func TestMirrorKept(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections})
		told := func(patience time.Duration) bool {
			select {
			case <-n.d.Telemetry().Changed():
				return true
			case <-time.After(patience):
				return false
			}
		}
		for told(time.Second) {
		}
		pins := func() (names []string) {
			names, err := filepath.Glob(n.d.dir + "/mirrors/0/*/*mirror*")
			n.ok(err)
			return names
		}
		before := pins()
		n.ok(os.Remove(before[0]))
		testnet.Eventually(t, 3*time.Second, "the pin is restored", func() bool { return slices.Equal(pins(), before) })
		n.ok(os.RemoveAll(n.d.dir + "/mirrors"))
		testnet.Eventually(t, 3*time.Second, "the folders are restored", func() bool { return slices.Equal(pins(), before) })
		for told(time.Second) {
		}
		n.ok(n.strip("mon0"))
		if !told(2 * time.Second) {
			t.Error("the removal of a program is not reported")
		}
	})
}

// TestMirrorDetach: Detach removes all that mirrors have created, also while the daemon does not run.
func TestMirrorDetach(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections})
		n.ok(n.d.Close())
		n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.NewTextHandler(t.Output(), nil))) })
		for _, device := range []string{"in0", "out0", "mon0"} {
			if left := n.hooked(device); len(left) != 0 {
				t.Errorf("left on %s: %s", device, left)
			}
		}
		if _, err := os.Stat(n.config.PinDir); err == nil {
			t.Errorf("%s is left", n.config.PinDir)
		}
	})
}

// TestMirrorQdisc: the clsact qdisc is removed with our last filter, whether this is one of a port or
// of a mirror.
func TestMirrorQdisc(t *testing.T) {
	n := newMirrorNetwork(t)
	n.restart("tc")
	n.attach()
	ctx := t.Context()
	n.ok(n.d.Ports().Update(ctx, "mon0", datapath.Port{Device: "mon0"}))
	n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections})
	n.ok(n.d.Ports().Delete(ctx, "mon0"))
	if got := n.hooked("mon0"); !slices.Equal(got, []string{"clsact"}) {
		t.Errorf("on mon0, with a mirror: %v", got)
	}
	n.ok(n.d.Mirrors().Delete(ctx, "m"))
	if got := n.hooked("mon0"); len(got) > 0 {
		t.Errorf("left on mon0: %v", got)
	}
	n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections})
	n.ok(n.d.Ports().Update(ctx, "mon0", datapath.Port{Device: "mon0"}))
	n.ok(n.d.Mirrors().Delete(ctx, "m"))
	n.ok(n.d.Ports().Delete(ctx, "mon0"))
	if got := n.hooked("mon0"); len(got) > 0 {
		t.Errorf("left on mon0: %v", got)
	}
}

// TestMirrorXDP: a port leaves XDP while it is mirrored, and XDP of other ports does not send through
// it; afterwards both return.
func TestMirrorXDP(t *testing.T) {
	for _, mode := range []datapath.XDPMode{datapath.XDPGeneric, datapath.XDPNative} {
		t.Run(mode.String(), func(t *testing.T) {
			n := newMirrorNetwork(t)
			for _, ns := range []*testnet.NS{n.client, n.backends} {
				ns.Offload(t, "eth0", true, testnet.GRO)
			}
			ctx := t.Context()
			for _, device := range []string{"in0", "out0"} {
				n.ok(n.d.Ports().Update(ctx, datapath.PortName(device), datapath.Port{Device: device, XDP: mode}))
			}
			n.serveOnce()
			n.ok(n.d.Services().Update(ctx, "web", web(1)))
			c := n.dial("198.51.100.10:80")
			n.wantShortCut("before", c)
			hooks := func(port datapath.PortName) string {
				s, _ := n.d.Telemetry().PortState(port)
				return strings.Join(s.Hooks, " ")
			}
			n.mirror("m", datapath.Mirror{Port: "out0", Direction: bothDirections})
			if in, out := hooks("in0"), hooks("out0"); !strings.Contains(in, "xdp") || strings.Contains(out, "xdp") {
				t.Errorf("hooks of the other port %q, of the mirrored port %q", in, out)
			}
			if f, err := n.d.Telemetry().Features(ctx); err != nil || !strings.Contains(f.Fallbacks["xdp out0"], "Mirror") {
				t.Errorf("fallbacks %v, %v", f.Fallbacks, err)
			}
			if ok, err := n.d.Ports().Verify(ctx, "out0"); !ok || err != nil {
				t.Errorf("the mirrored port is not as configured: %v, %v", ok, err)
			}
			at := n.mark()
			c.echo(t, "the first")
			for range 5 {
				c.echo(t, "words")
			}
			n.wantCopies("with XDP on the other port", at, n.backends0, at.backends, anyFrame)
			n.ok(n.d.Mirrors().Delete(ctx, "m"))
			if out := hooks("out0"); !strings.Contains(out, "xdp") {
				t.Errorf("hooks after the deletion: %q", out)
			}
			c.echo(t, "after the deletion")
		})
	}
}

// TestMirrorFromSwitch: copies from the switch's namespace reach a peer through the host, and the
// uplink's mirror does not copy them.
func TestMirrorFromSwitch(t *testing.T) {
	n := newMirrorNetwork(t)
	n.ok(n.d.Close())
	n.config.SwitchNamespace, n.config.HostDevice, n.config.SwitchDevice = testnet.UniqueName("switch"), "hlink", "slink"
	testnet.MakeNamed(t, n.config.SwitchNamespace)
	t.Cleanup(func() { testnet.DeleteNamed(t, n.config.SwitchNamespace) })
	sw := testnet.Named(t, n.config.SwitchNamespace)
	pod := testnet.New(t, "pod")
	testnet.Veth(t, testnet.Port{NS: n.node, Name: "hlink", MTU: 1600}, testnet.Port{NS: sw, Name: "slink", MTU: 1600})
	testnet.Veth(t, testnet.Port{NS: sw, Name: "tun0"}, testnet.Port{NS: sw, Name: "tun0-e"})
	testnet.Veth(t, testnet.Port{NS: sw, Name: "p0", Addrs: []string{"10.9.0.1/24"}}, testnet.Port{NS: pod, Name: "eth0", Addrs: []string{"10.9.0.2/24"}})
	n.node.Run(t, "ip", "link", "set", "out0", "mtu", "1600")
	n.backends.Run(t, "ip", "link", "set", "eth0", "mtu", "1600")
	for _, how := range []string{"", "tc"} {
		n.config.Attach = how
		n.open()
		n.attach()
		ctx := t.Context()
		n.ok(n.d.Endpoints().Update(ctx, "pod", datapath.Endpoint{Device: "p0", MAC: pod.MAC(t, "eth0"), Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}}))
		n.ok(n.d.Tunnels().Update(ctx, "overlay", datapath.Tunnel{Device: "tun0", Type: datapath.TunnelVXLAN, VNI: 7, Port: 4789}))
		n.ok(n.d.Peers().Update(ctx, "collector", datapath.Peer{Tunnel: "overlay", Underlay: []netip.Addr{netip.MustParseAddr("10.0.1.13")}}))
		n.mirror("m", datapath.Mirror{Port: datapath.EndpointName("pod").Port(), Direction: bothDirections, To: datapath.MirrorTarget{Peer: "collector", VNI: 9}})
		n.mirror("uplink", datapath.Mirror{Port: "out0", Direction: bothDirections})
		n.node.Run(t, "ping", "-c", "1", "-W", "2", "10.0.1.13")
		wire, sender := pod.Wire(t, "eth0"), pod.Wire(t, "eth0")
		at := n.mark()
		n.ok(n.ping(pod, "10.9.0.1", 100))
		n.ok(n.ping(pod, "10.9.0.1", 1400))
		// As the inner destination of packets of tunnels: a pod can send it, too.
		ours := testpkt.Ethernet{Source: pod.MAC(t, "eth0"), Destination: [6]byte{2, 0x4c, 0x4c, 0, 0, 1}, Type: 0x0800}
		forged := testpkt.Build(ours, testpkt.IPv4{Source: netip.MustParseAddr("10.9.0.2"), Destination: netip.MustParseAddr("10.9.0.7"), Protocol: testpkt.ProtoUDP}, testpkt.UDP{Source: 1, Destination: 2}, testpkt.Raw("a copy?"))
		sender.Send(t, forged)
		n.settle()
		var want, got []string
		testnet.Eventually(t, 3*time.Second, "copies at the collector", func() bool {
			want, got = selected(wire, 0, anyFrame), nil
			for _, f := range n.backends0.Frames()[at.backends:] {
				if o, inner, ok := unwrap(f, datapath.TunnelVXLAN); ok && o.header[6] == 9 {
					got = append(got, string(inner))
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			return len(want) > 3 && slices.Equal(want, got)
		})
		for _, f := range n.copied(at) {
			if _, _, ok := unwrap([]byte(f), datapath.TunnelVXLAN); ok {
				t.Errorf("attach %q: copy of a copy:\n%s", how, testpkt.Parse([]byte(f)))
				break
			}
		}
		for what, m := range map[string]datapath.Mirror{
			"link":   {Port: "hlink", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "mon0"}},
			"target": {Port: datapath.EndpointName("pod").Port(), Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "mon0"}},
		} {
			if what == "link" {
				n.ok(n.d.Ports().Update(ctx, "hlink", datapath.Port{Device: "hlink"}))
			}
			if err := n.d.Mirrors().Update(ctx, "bad", m); err == nil {
				t.Errorf("%s is accepted", what)
			} else {
				t.Log(err)
			}
		}
		n.ok(n.d.Close())
		n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.DiscardHandler)) })
	}
	n.open()
}
