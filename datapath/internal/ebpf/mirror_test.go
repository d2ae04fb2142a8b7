// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// mirrorNetwork is a network whose node has a third device, to which copies are sent:
//
//	client eth0 ── in0 [node] out0 ── eth0 backends
//	                    mon0 ── eth0 monitor
type mirrorNetwork struct {
	*network
	monitor            *testnet.NS
	client0, backends0 *testnet.Wire // all frames of both ends of the node
	monitor0           *testnet.Wire
	sender             *testnet.Wire // a Wire does not capture what it sends
	served             bool
	macs               [][6]byte // of mon0 and its other end, which send frames of their own
}

func newMirrorNetwork(t *testing.T) *mirrorNetwork {
	t.Helper()
	n := &mirrorNetwork{network: newNetwork(t), monitor: testnet.New(t, "monitor")}
	testnet.Veth(t, testnet.Port{NS: n.node, Name: "mon0", MTU: 9000}, testnet.Port{NS: n.monitor, Name: "eth0", MTU: 9000})
	for _, ns := range []*testnet.NS{n.client, n.backends} { // copies have complete checksums
		ns.Offload(t, "eth0", false, testnet.TSO, testnet.GSO, testnet.TxChecksum)
	}
	for _, device := range []string{"in0", "out0", "mon0"} {
		n.node.Offload(t, device, false, testnet.TSO, testnet.GSO, testnet.GRO, testnet.TxChecksum)
	}
	n.macs = [][6]byte{n.node.MAC(t, "mon0"), n.monitor.MAC(t, "eth0")}
	n.client0, n.backends0, n.monitor0 = n.client.Wire(t, "eth0"), n.backends.Wire(t, "eth0"), n.monitor.Wire(t, "eth0")
	n.sender = n.client.Wire(t, "eth0")
	return n
}

func (n *mirrorNetwork) mirror(name datapath.MirrorName, m datapath.Mirror) {
	n.t.Helper()
	if m.To == (datapath.MirrorTarget{}) {
		m.To.Device = "mon0"
	}
	n.ok(n.d.Mirrors().Update(n.t.Context(), name, m))
	if ok, err := n.d.Mirrors().Verify(n.t.Context(), name); !ok || err != nil {
		n.t.Errorf("mirror %s is not as it was written: %v, %v", name, ok, err)
	}
}

const bothDirections = datapath.MirrorIn | datapath.MirrorOut

// marks returns the positions in the captures at which a comparison begins.
type mirrorMarks struct{ client, backends, monitor int }

func (n *mirrorNetwork) mark() mirrorMarks {
	return mirrorMarks{len(n.client0.Frames()), len(n.backends0.Frames()), len(n.monitor0.Frames())}
}

// copied returns the copies that have arrived since a mark.
func (n *mirrorNetwork) copied(from mirrorMarks) (frames []string) {
	for _, f := range n.monitor0.Frames()[from.monitor:] {
		if !slices.Contains(n.macs, [6]byte(f[6:12])) {
			frames = append(frames, string(f))
		}
	}
	return frames
}

// wantCopies compares the copies since a mark with the frames on a wire that want selects.
func (n *mirrorNetwork) wantCopies(what string, from mirrorMarks, wire *testnet.Wire, at int, want func(frame []byte) bool) {
	n.t.Helper()
	n.wantFrames(what, from, func() []string { return selected(wire, at, want) })
}

// selected returns the frames that a wire has captured since at, and that want selects.
func selected(wire *testnet.Wire, at int, want func(frame []byte) bool) (frames []string) {
	for _, f := range wire.Frames()[at:] {
		if want(f) {
			frames = append(frames, string(f))
		}
	}
	return frames
}

// wantFrames compares the copies since a mark with the expected ones.
func (n *mirrorNetwork) wantFrames(what string, from mirrorMarks, want func() []string) {
	n.t.Helper()
	n.settle()
	var expected, got []string
	equal := func() bool {
		expected, got = want(), n.copied(from)
		slices.Sort(expected)
		slices.Sort(got)
		return len(got) > 0 && slices.Equal(expected, got)
	}
	for deadline := time.Now().Add(3 * time.Second); !equal() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	if equal() {
		return
	}
	n.t.Errorf("%s: %d copies, want %d of the wire", what, len(got), len(expected))
	show := func(title string, list, other []string) {
		for _, f := range list {
			if !slices.Contains(other, f) {
				n.t.Logf("%s:\n%s", title, testpkt.Parse([]byte(f)))
			}
		}
	}
	show("missing", expected, got)
	show("unexpected", got, expected)
}

func anyFrame([]byte) bool { return true }

// from reports whether a frame was sent by a device of a namespace.
func sentBy(mac [6]byte) func([]byte) bool {
	return func(frame []byte) bool { return [6]byte(frame[6:12]) == mac }
}

// talk exchanges packets of all kinds between client and backends, with both families.
func (n *mirrorNetwork) talk() {
	n.t.Helper()
	for _, pair := range [][3]string{{"192.0.2.10", "10.0.1.11", "192.0.2.1"}, {"2001:db8:1::10", "2001:db8:2::11", "2001:db8:1::1"}} {
		n.ok(n.ping(n.client, pair[1], 100))
		source, destination := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
		eth := testpkt.Ethernet{Source: n.client.MAC(n.t, "eth0"), Destination: n.node.MAC(n.t, "in0")}
		ip := func(protocol uint8) testpkt.Layer {
			if source.Is4() {
				return testpkt.IPv4{Source: source, Destination: destination, Protocol: protocol}
			}
			return testpkt.IPv6{Source: source, Destination: destination, Protocol: protocol}
		}
		for _, l := range [][]testpkt.Layer{
			{ip(0), testpkt.UDP{Source: 4000, Destination: 4001}, testpkt.Payload("datagram")},
			{ip(0), testpkt.SCTP{Source: 5000, Destination: 5001, Tag: 7}, testpkt.Payload("chunk of SCTP...")},
			{ip(0), testpkt.TCP{Source: 6000, Destination: 6001, Flags: 2}, testpkt.Payload("")},
			{ip(47), testpkt.Raw("a protocol without ports")},
		} {
			n.sender.Send(n.t, testpkt.Build(append([]testpkt.Layer{eth}, l...)...))
		}
	}
	n.serveOnce()
	c := n.dial("10.0.1.11:8080")
	for i := range 5 {
		c.echo(n.t, fmt.Sprint("word ", i))
	}
	c.Close()
	n.settle()
}

// settle waits until no more frames are captured.
func (n *mirrorNetwork) settle() {
	for last := (mirrorMarks{-1, -1, -1}); n.mark() != last; time.Sleep(100 * time.Millisecond) {
		last = n.mark()
	}
}

func (n *mirrorNetwork) serveOnce() {
	if !n.served {
		n.served = true
		n.serve()
	}
}

func eachHook(t *testing.T, f func(t *testing.T, n *mirrorNetwork)) {
	for name, how := range bothHooks {
		t.Run(name, func(t *testing.T) {
			if name == "tcx" {
				requireTCX(t)
			}
			n := newMirrorNetwork(t)
			n.restart(how.attach)
			n.attach()
			f(t, n)
		})
	}
}

// TestMirrorOfPort: the monitor receives exactly the frames of the wire in the chosen directions,
// byte for byte, once each, before and after a restart and without a daemon.
func TestMirrorOfPort(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		client := n.client.MAC(t, "eth0")
		node := n.node.MAC(t, "in0")
		for _, c := range []struct {
			name      string
			direction datapath.MirrorDirection
			want      func([]byte) bool
		}{
			{"in", datapath.MirrorIn, sentBy(client)},
			{"out", datapath.MirrorOut, sentBy(node)},
			{"both", bothDirections, anyFrame},
		} {
			n.mirror("m", datapath.Mirror{Port: "in0", Direction: c.direction})
			at := n.mark()
			n.talk()
			n.wantCopies(c.name, at, n.client0, at.client, c.want)
		}
		s, ok := n.d.Telemetry().MirrorState("m")
		if !ok || !slices.Equal(s.Ports, []string{"in0"}) || s.Packets < 30 || s.Bytes < 30*42 || s.Drops != 0 {
			t.Errorf("state %+v, %v", s, ok)
		}
		n.ok(n.d.Close())
		at := n.mark()
		n.talk()
		n.wantCopies("without a daemon", at, n.client0, at.client, anyFrame)
		n.restart(n.config.Attach)
		at = n.mark()
		n.talk()
		n.wantCopies("after a restart", at, n.client0, at.client, anyFrame)
		n.attach()
		n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections})
		if after, _ := n.d.Telemetry().MirrorState("m"); after.Packets <= s.Packets {
			t.Errorf("%d copies counted, %d before the restart", after.Packets, s.Packets)
		}
		n.ok(n.d.Mirrors().Delete(t.Context(), "m"))
		at = n.mark()
		n.talk()
		time.Sleep(100 * time.Millisecond)
		if got := n.copied(at); len(got) > 0 {
			t.Errorf("%d copies after the deletion", len(got))
		}
		if left := n.hooked("mon0"); len(left) > 0 {
			t.Errorf("left on mon0: %v", left)
		}
		if got, want := n.hooked("in0"), map[string][]string{"tc": {"clsact"}, "": {"tcx egress", "tcx ingress"}}[n.config.Attach]; !slices.Equal(got, want) {
			t.Errorf("hooks of in0: %v, want %v", got, want)
		}
		if entries, err := os.ReadDir(n.d.dir + "/mirrors/0"); err != nil || len(entries) > 0 {
			t.Errorf("folders of pins are left: %v (%v)", entries, err)
		}
	})
}

// TestMirrorFastPath: packets of established connections stay on the fast path while they are
// copied, in both directions, and each is copied.
func TestMirrorFastPath(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		n.mirror("m", datapath.Mirror{Port: "out0", Direction: bothDirections})
		n.serveOnce()
		n.ok(n.d.Services().Update(t.Context(), "web", web(1)))
		at := n.mark()
		c := n.dial("198.51.100.10:80")
		n.wantShortCut("with a mirror", c)
		n.wantCopies("frames of the fast path", at, n.backends0, at.backends, anyFrame)
	})
}

// TestMirrorBegins: next hops that are in use when a mirror begins do not bypass it: the first packet
// after Update is copied.
func TestMirrorBegins(t *testing.T) {
	n := newMirrorNetwork(t)
	n.attach()
	n.serveOnce()
	n.ok(n.d.Services().Update(t.Context(), "web", web(1)))
	c := n.dial("198.51.100.10:80")
	n.wantShortCut("before", c)
	n.mirror("m", datapath.Mirror{Port: "out0", Direction: datapath.MirrorOut})
	at := n.mark()
	c.echo(t, "the first")
	n.wantCopies("after the begin", at, n.backends0, at.backends, sentBy(n.node.MAC(t, "out0")))
}

// TestMirrorMatch: only packets that match are copied.
func TestMirrorMatch(t *testing.T) {
	n := newMirrorNetwork(t)
	n.attach()
	prefix := netip.MustParsePrefix
	for name, c := range map[string]struct {
		match datapath.Match
		want  func(p *testpkt.Packet) bool
	}{
		"protocol": {datapath.Match{Protocols: []datapath.Protocol{datapath.UDP, datapath.SCTP}}, func(p *testpkt.Packet) bool {
			return p.Protocol() == testpkt.ProtoUDP || p.Protocol() == testpkt.ProtoSCTP
		}},
		"all IPv4": {datapath.Match{Source: []netip.Prefix{prefix("0.0.0.0/0")}}, func(p *testpkt.Packet) bool { return p.Source().Addr().Is4() }},
		"all IPv6": {datapath.Match{Source: []netip.Prefix{prefix("::/0")}}, func(p *testpkt.Packet) bool { return p.Source().Addr().Is6() }},
		"prefixes": {datapath.Match{Source: []netip.Prefix{prefix("10.9.0.0/16"), prefix("192.0.2.8/29"), prefix("2001:db8:1::10/128")}, Destination: []netip.Prefix{prefix("10.0.1.0/24"), prefix("2001:db8:2::/64")}},
			func(p *testpkt.Packet) bool {
				s := p.Source().Addr().String()
				d := p.Destination().Addr()
				return (s == "192.0.2.10" || s == "2001:db8:1::10") && (prefix("10.0.1.0/24").Contains(d) || prefix("2001:db8:2::/64").Contains(d))
			}},
		"ports": {datapath.Match{Ports: []datapath.PortRange{{First: 4001, Last: 5001}, {First: 8080, Last: 8080}}}, func(p *testpkt.Packet) bool {
			port := p.Destination().Port()
			return port >= 4001 && port <= 5001 || port == 8080 // where hosts have SCTP, 5000 too
		}},
		"source ports": {datapath.Match{SourcePorts: []datapath.PortRange{{First: 6000, Last: 6000}, {First: 8080, Last: 8080}}}, func(p *testpkt.Packet) bool {
			return p.Source().Port() == 6000 || p.Source().Port() == 8080
		}},
	} {
		n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections, Match: c.match})
		at := n.mark()
		n.talk()
		n.wantCopies(name, at, n.client0, at.client, func(frame []byte) bool {
			p := testpkt.Parse(frame)
			return (p.IPv4 != nil || p.IPv6 != nil) && c.want(p)
		})
	}
}

// TestMirrorIsCut: copies have at most the configured length, the headers included, and nothing else
// changes.
func TestMirrorIsCut(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		n.mirror("m", datapath.Mirror{Port: "in0", Direction: bothDirections, Length: 90})
		at := n.mark()
		n.ok(n.ping(n.client, "10.0.1.11", 1000))
		n.ok(n.ping(n.client, "2001:db8:2::11", 1000))
		n.ok(n.ping(n.client, "10.0.1.11", 10))
		n.settle()
		var want []string
		testnet.Eventually(t, 3*time.Second, "cut copies of three requests and replies", func() bool {
			want = nil
			for _, f := range n.client0.Frames()[at.client:] {
				want = append(want, string(f[:min(len(f), 90)]))
			}
			got := n.copied(at)
			slices.Sort(want)
			slices.Sort(got)
			return len(want) >= 6 && slices.Equal(want, got)
		})
		s, _ := n.d.Telemetry().MirrorState("m")
		var bytes uint64
		for _, f := range want {
			bytes += uint64(len(f))
		}
		if s.Packets != uint64(len(want)) || s.Bytes != bytes || s.Drops != 0 {
			t.Errorf("state %+v, want %d copies of %d bytes", s, len(want), bytes)
		}
	})
}

// TestMirrorOfMirror: copies are never copied, whatever mirrors exist on their way, and circles are
// refused.
func TestMirrorOfMirror(t *testing.T) {
	n := newMirrorNetwork(t)
	n.attach()
	ctx := t.Context()
	n.ok(n.d.Ports().Update(ctx, "mon0", datapath.Port{Device: "mon0"}))
	n.mirror("a", datapath.Mirror{Port: "in0", Direction: bothDirections})
	testnet.Veth(t, testnet.Port{NS: n.node, Name: "mon1"}, testnet.Port{NS: n.monitor, Name: "eth1"})
	second := n.monitor.Wire(t, "eth1")
	n.mirror("b", datapath.Mirror{Port: "mon0", Direction: bothDirections, To: datapath.MirrorTarget{Device: "mon1"}})
	at := n.mark()
	n.talk()
	n.wantCopies("with a mirror of the target", at, n.client0, at.client, anyFrame)
	for _, f := range second.Frames() {
		if p := testpkt.Parse(f); p.Source().Addr().IsValid() && strings.HasPrefix(p.Source().Addr().String(), "192.0.2.") {
			t.Errorf("copy of a copy:\n%s", p)
			break
		}
	}
	for what, m := range map[string]datapath.Mirror{
		"source and target": {Port: "in0", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "in0"}},
		"circle":            {Port: "mon0", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "in0"}},
	} {
		if err := n.d.Mirrors().Update(ctx, "c", m); !errors.Is(err, datapath.ErrUnsupported) || !strings.Contains(err.Error(), "would return to device") {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The other end of a target is a mirrored port of the same namespace.
	testnet.Veth(t, testnet.Port{NS: n.node, Name: "loop0"}, testnet.Port{NS: n.node, Name: "loop1"})
	n.ok(n.d.Ports().Update(ctx, "loop1", datapath.Port{Device: "loop1"}))
	err := n.d.Mirrors().Update(ctx, "c", datapath.Mirror{Port: "loop1", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "loop0"}})
	if !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("target whose other end is the port: %v", err)
	}
}

// TestMirrorAbsent: errors name what is missing, and a mirror follows its port and target.
func TestMirrorAbsent(t *testing.T) {
	n := newMirrorNetwork(t)
	n.attach()
	ctx := t.Context()
	m := datapath.Mirror{Port: "in0", Direction: bothDirections, To: datapath.MirrorTarget{Device: "mon0"}}
	for what, c := range map[string]struct {
		change func(m *datapath.Mirror)
		name   string
	}{
		"port":   {func(m *datapath.Mirror) { m.Port = "eth9" }, `"eth9"`},
		"target": {func(m *datapath.Mirror) { m.To.Device = "mon9" }, `"mon9"`},
		"peer":   {func(m *datapath.Mirror) { m.To = datapath.MirrorTarget{Peer: "far", VNI: 5} }, `"far"`},
	} {
		bad := m
		c.change(&bad)
		if err := n.d.Mirrors().Update(ctx, "m", bad); !errors.Is(err, datapath.ErrAbsent) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s: %v, want an error about %s that wraps ErrAbsent", what, err, c.name)
		}
	}
	n.mirror("m", m)
	n.node.Run(t, "ip", "link", "set", "mon0", "down")
	if err := n.d.Mirrors().Update(ctx, "m", m); !errors.Is(err, datapath.ErrAbsent) || !strings.Contains(err.Error(), "ip link set mon0 up") {
		t.Errorf("target that is down: %v", err)
	}
	if s, _ := n.d.Telemetry().MirrorState("m"); len(s.Ports) > 0 {
		t.Errorf("a mirror without a target takes copies: %+v", s)
	}
	n.node.Run(t, "ip", "link", "del", "mon0")
	testnet.Veth(t, testnet.Port{NS: n.node, Name: "mon0"}, testnet.Port{NS: n.monitor, Name: "eth0"})
	n.macs = [][6]byte{n.node.MAC(t, "mon0"), n.monitor.MAC(t, "eth0")}
	n.monitor0 = n.monitor.Wire(t, "eth0")
	n.mirror("m", m)
	at := n.mark()
	n.talk()
	n.wantCopies("with a new target", at, n.client0, at.client, anyFrame)
}

// TestMirrorRepaired: Verify notices external changes, and Update repairs them.
func TestMirrorRepaired(t *testing.T) {
	eachHook(t, func(t *testing.T, n *mirrorNetwork) {
		m := datapath.Mirror{Port: "in0", Direction: bothDirections, To: datapath.MirrorTarget{Device: "mon0"}}
		n.mirror("m", m)
		tables := n.d.tables
		for what, change := range map[string]func() error{
			"definition": func() error { return tables.Mirror.Delete(0) },
			"port": func() error {
				index := uint32(n.port("in0").Ifindex)
				return tables.MirrorPort.Delete(mirrorKey(index))
			},
			"programs of the target": func() error { return n.strip("mon0") },
			"programs of the port":   func() error { return n.strip("in0") },
			"order": func() error { // the programs of the port are attached behind those of the mirror
				if err := n.d.Ports().Delete(t.Context(), "in0"); err != nil {
					return err
				}
				return n.d.Ports().Update(t.Context(), "in0", datapath.Port{Device: "in0"})
			},
		} {
			n.ok(change())
			// The order is restored when the programs of the port are attached.
			if ok, err := n.d.Mirrors().Verify(t.Context(), "m"); ok != (what == "order") {
				t.Errorf("%s: an external change is not noticed (%v)", what, err)
			}
			n.attach()
			n.mirror("m", m)
			at := n.mark()
			n.talk()
			n.wantCopies("after a repair: "+what, at, n.client0, at.client, anyFrame)
		}
	})
}

func mirrorKey(index uint32) kernel.DeviceKey { return kernel.DeviceKey{Ifindex: index} }

// strip detaches all programs on the tc hooks of a device of the node, as another program would.
func (n *mirrorNetwork) strip(device string) error {
	return n.node.Try(func() error {
		dev, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		_ = netlink.QdiscDel(clsact(dev.Attrs().Index)) // exists only with cls_bpf
		for _, side := range hook.Sides() {
			programs, err := link.QueryPrograms(link.QueryOptions{Target: dev.Attrs().Index, Attach: side.AttachType})
			if errors.Is(err, unix.EINVAL) {
				continue // tcx is from Linux 6.6 on
			}
			if err != nil {
				return err
			}
			for _, p := range programs.Programs {
				id, ok := p.LinkID()
				if !ok {
					continue
				}
				l, err := link.NewFromID(id)
				if err != nil {
					return err
				}
				if err := errors.Join(l.Detach(), l.Close()); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
