// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/mirror"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestMirrorOfUnattached: packets that arrive on a device without programs and leave through a
// mirrored port are copied to a peer.
func TestMirrorOfUnattached(t *testing.T) {
	for _, remote := range []string{"10.0.1.13", "2001:db8:2::13"} {
		t.Run(remote, func(t *testing.T) {
			n := newMirrorNetwork(t)
			n.attach()
			n.mirrorTunnel(datapath.TunnelVXLAN, remote)
			n.node.Run(t, "ip", "addr", "add", "10.5.0.1/24", "dev", "mon0")
			n.monitor.Run(t, "ip", "addr", "add", "10.5.0.2/24", "dev", "eth0")
			n.monitor.Route(t, "default", "10.5.0.1")
			n.mirror("m", datapath.Mirror{Port: "in0", Direction: datapath.MirrorOut, To: datapath.MirrorTarget{Peer: "collector", VNI: 9}})
			n.node.Run(t, "ping", "-c", "1", "-W", "2", remote)
			n.ok(n.ping(n.monitor, "192.0.2.10", 10))
			n.settle()
			at := n.mark()
			isRequest := func(f []byte) bool {
				p := testpkt.Parse(f)
				return p.Protocol() == testpkt.ProtoICMP && p.Source().Addr().String() == "10.5.0.2"
			}
			for range 3 {
				n.ok(n.ping(n.monitor, "192.0.2.10", 100))
			}
			n.settle()
			var got []string
			for _, f := range n.backends0.Frames()[at.backends:] {
				if o, copied, ok := unwrap(f, datapath.TunnelVXLAN); ok && o.header[6] == 9 && isRequest(copied) {
					got = append(got, string(copied))
				}
			}
			if want := selected(n.client0, at.client, isRequest); len(want) != 3 || !slices.Equal(want, got) {
				t.Errorf("%d copies of %d packets; drops %v", len(got), len(want), n.dropped())
			}
		})
	}
}

// TestMirrorWithoutSender: a copy for a peer never reaches the wire as it is, even if another program
// detaches the program that encapsulates it.
func TestMirrorWithoutSender(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		n.mirrorTunnel(datapath.TunnelVXLAN, "10.0.1.13")
		n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections, To: datapath.MirrorTarget{Peer: "collector", VNI: 9}})
		removed := 0
		n.ok(n.d.mirrors.Each(func(_ mirror.Key, h hook.Attachment) error {
			if h.Name() != "tcx-mirror_send" && h.Name() != "tc-mirror_send" {
				return nil
			}
			removed++
			return h.Detach()
		}))
		before, _ := n.d.Telemetry().MirrorState("m")
		at := n.mark()
		n.ok(n.ping(n.client, "192.0.2.1", 100))
		n.settle()
		after, _ := n.d.Telemetry().MirrorState("m")
		if raw := selected(n.backends0, at.backends, sentBy(n.client.MAC(t, "eth0"))); removed != 1 || len(raw) > 0 {
			t.Errorf("%d programs removed, then %d copies on the wire as they are", removed, len(raw))
		}
		if after.Packets != before.Packets || after.Drops == before.Drops || len(after.Ports) > 0 {
			t.Errorf("state %+v, was %+v", after, before)
		}
	})
}

// TestMirrorEndsWithForeignXDP: a mirror ends, and others begin, although a port cannot have its XDP
// program again.
func TestMirrorEndsWithForeignXDP(t *testing.T) {
	n := newMirrorNetwork(t)
	ctx := t.Context()
	for _, device := range []string{"in0", "out0"} {
		n.ok(n.d.Ports().Update(ctx, datapath.PortName(device), datapath.Port{Device: device, XDP: datapath.XDPGeneric}))
	}
	n.mirror("m", datapath.Mirror{Port: "out0", Direction: bothDirections})
	n.node.Do(t, func() error {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
		if err != nil {
			return err
		}
		defer program.Close()
		l, err := netlink.LinkByName("out0")
		if err != nil {
			return err
		}
		foreign, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: l.Attrs().Index, Flags: link.XDPGenericMode})
		if err == nil {
			t.Cleanup(func() { foreign.Close() })
		}
		return err
	})
	n.ok(n.d.Mirrors().Delete(ctx, "m"))
	at := n.mark()
	n.ok(n.ping(n.client, "10.0.1.11", 100))
	n.settle()
	if got := n.copied(at); len(got) > 0 {
		t.Errorf("%d copies after the deletion", len(got))
	}
	if ok, _ := n.d.Ports().Verify(ctx, "out0"); ok {
		t.Error("the port without its XDP program is as configured")
	}
	n.mirror("other", datapath.Mirror{Port: "in0", Direction: bothDirections})
}

// TestMirrorOtherHooks: a port that gets links instead of filters is copied by links: filters would not
// see the packets that its program redirects.
func TestMirrorOtherHooks(t *testing.T) {
	requireTCX(t)
	n := newMirrorNetwork(t)
	n.restart("tc")
	n.attach()
	m := datapath.Mirror{Port: "in0", Direction: bothDirections, To: datapath.MirrorTarget{Device: "mon0"}}
	n.mirror("m", m)
	n.restart("")
	ctx := t.Context()
	n.ok(n.d.Mirrors().Update(ctx, "m", m))
	n.ok(n.d.Ports().Delete(ctx, "in0"))
	n.attach()
	n.mirror("m", m)
	at := n.mark()
	n.talk()
	n.wantCopies("with links", at, n.client0, at.client, anyFrame)
}

// TestMirrorOfDeletedSwitch: if the switch's namespace is deleted while the daemon does not run,
// nothing is left of its mirrors, and a new namespace with the same devices can be mirrored.
func TestMirrorOfDeletedSwitch(t *testing.T) {
	n := newMirrorNetwork(t)
	n.ok(n.d.Close())
	n.config.SwitchNamespace, n.config.HostDevice, n.config.SwitchDevice = testnet.UniqueName("switch"), "hlink", "slink"
	pod := testnet.New(t, "pod")
	ctx := t.Context()
	start := func(i string) {
		testnet.MakeNamed(t, n.config.SwitchNamespace)
		sw := testnet.Named(t, n.config.SwitchNamespace)
		testnet.Veth(t, testnet.Port{NS: sw, Name: "p0"}, testnet.Port{NS: pod, Name: "eth" + i})
		testnet.Veth(t, testnet.Port{NS: sw, Name: "m0"}, testnet.Port{NS: pod, Name: "mon" + i})
		n.open()
		n.ok(n.d.Endpoints().Update(ctx, "pod", datapath.Endpoint{Device: "p0", MAC: pod.MAC(t, "eth"+i), Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}}))
		n.mirror("m", datapath.Mirror{Port: datapath.EndpointName("pod").Port(), Direction: bothDirections, To: datapath.MirrorTarget{Device: "m0", Switch: true}})
		n.ok(n.d.Close())
		testnet.DeleteNamed(t, n.config.SwitchNamespace)
	}
	pins := n.d.dir + "/mirrors/1"
	start("0")
	if _, err := os.Stat(pins); err != nil {
		t.Error(err)
	}
	n.open()
	if left, err := os.ReadDir(pins); err == nil {
		t.Errorf("left: %v", left)
	}
	n.ok(n.d.Close())
	start("1")
	n.node.Do(t, func() error { return Detach(n.config, slog.New(slog.DiscardHandler)) })
	n.open()
}

// TestMirrorToEachOther: what a peer copies from its uplink is not copied back to it, since that would
// never end; packets of its tunnel are, and all packets are copied to other targets.
func TestMirrorToEachOther(t *testing.T) {
	for _, typ := range []datapath.TunnelType{datapath.TunnelVXLAN, datapath.TunnelGRE} {
		for _, ends := range [][2]string{{"10.0.1.13", "10.0.1.1"}, {"2001:db8:2::13", "2001:db8:2::1"}} {
			t.Run(typ.String()+" "+ends[0], func(t *testing.T) {
				n := newMirrorNetwork(t)
				n.attach()
				n.mirrorTunnel(typ, ends[0])
				n.mirror("m", datapath.Mirror{Port: "out0", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Peer: "collector", VNI: 9}})
				n.mirror("device", datapath.Mirror{Port: "out0", Direction: datapath.MirrorIn})
				n.node.Run(t, "ping", "-c", "1", "-W", "2", ends[0])
				sender := n.backends.Wire(t, "eth0")
				ours := testpkt.Ethernet{Source: n.backends.MAC(t, "eth0"), Destination: n.node.MAC(t, "out0"), Type: 0x0800}
				source, destination := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
				if source.Is6() {
					ours.Type = 0x86dd
				}
				outer := func(vni byte) []byte {
					inner := testpkt.Build(testpkt.Ethernet{Source: [6]byte{2, 1}, Destination: [6]byte{2, 2}, Type: 0x88b5}, testpkt.Raw("a copy of the peer"))
					ip := func(protocol uint8) testpkt.Layer {
						if source.Is4() {
							return testpkt.IPv4{Source: source, Destination: destination, Protocol: protocol}
						}
						return testpkt.IPv6{Source: source, Destination: destination, Protocol: protocol}
					}
					if typ == datapath.TunnelGRE {
						ethernet := []byte{0x20, 0, 0x65, 0x58, 0, 0, 0, vni}
						if vni == 7 { // packets of the tunnel are not Ethernet frames
							ethernet[2], ethernet[3] = 8, 0
						}
						return testpkt.Build(ours, ip(47), testpkt.Raw(append(ethernet, inner...)))
					}
					return testpkt.Build(ours, ip(testpkt.ProtoUDP), testpkt.UDP{Source: 0xc001, Destination: 4789}, testpkt.Raw(append([]byte{8, 0, 0, 0, 0, 0, vni, 0}, inner...)))
				}
				n.settle()
				at := n.mark()
				sent := []string{string(outer(9)), string(outer(7))}
				for _, f := range sent {
					sender.Send(t, []byte(f))
				}
				n.settle()
				var back []string
				for _, f := range n.backends0.Frames()[at.backends:] {
					if _, copied, ok := unwrap(f, typ); ok && slices.Contains(sent, string(copied)) {
						back = append(back, string(copied))
					}
				}
				if !slices.Equal(back, sent[1:]) {
					t.Errorf("%d frames are copied back, want the packet of the tunnel only", len(back))
				}
				copied := n.copied(at)
				for _, f := range sent {
					if !slices.Contains(copied, f) {
						t.Error("a frame is not copied to the device")
					}
				}
			})
		}
	}
}
