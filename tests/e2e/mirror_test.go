// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testdaemon"
	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// monitor is the far end of a device that receives copies.
type monitor struct {
	t     *testing.T
	heard *testnet.Wire
	near  *testnet.Wire // the device itself
	marks int
	names map[netip.Addr]string // hosts by their addresses
}

// newMonitor connects a new machine to a device of a namespace.
func newMonitor(t *testing.T, ns *testnet.NS, device string, names map[string]string) *monitor {
	t.Helper()
	m := &monitor{t: t, names: map[netip.Addr]string{}}
	far := testnet.New(t, "monitor")
	testnet.Veth(t, testnet.Port{NS: ns, Name: device}, testnet.Port{NS: far, Name: "eth0"})
	m.heard, m.near = far.Wire(t, "eth0"), ns.Wire(t, device)
	for addr, name := range names {
		m.names[netip.MustParseAddr(addr)] = name
	}
	return m
}

// copiesOf waits until copies that were sent before have arrived, and returns the copies with a
// mark, each as SOURCE>DESTINATION in order of these.
func (m *monitor) copiesOf(mark string) (list []string, frames [][]byte) {
	m.t.Helper()
	m.marks++
	last := []byte(fmt.Sprintf("last %d.", m.marks))
	m.near.Send(m.t, testpkt.Build(testpkt.Ethernet{Source: [6]byte{2, 1}, Destination: [6]byte{2, 2}, Type: 0x88b5}, testpkt.Raw(last), testpkt.Raw(make([]byte, 64))))
	m.heard.Await(m.t, patience, "the last frame", func(f []byte) bool { return bytes.Contains(f, last) })
	for _, f := range m.heard.Frames() {
		if !bytes.Contains(f, []byte(mark)) {
			continue
		}
		p := testpkt.Parse(f)
		list, frames = append(list, m.name(p.Source().Addr())+">"+m.name(p.Destination().Addr())), append(frames, f)
	}
	slices.Sort(list)
	return list, frames
}

func (m *monitor) name(a netip.Addr) string {
	if name, ok := m.names[a]; ok {
		return name
	}
	return a.String()
}

// wants exchanges datagrams on a connection, which is new at first and then established, and checks
// the copies of each of them.
func (m *monitor) wants(when string, c net.Conn, want ...string) {
	m.t.Helper()
	slices.Sort(want)
	for i := range 4 {
		m.marks++
		mark := fmt.Sprintf("<mark %d>", m.marks)
		if _, err := testtraffic.ExchangeUDP(c, []byte(mark+strings.Repeat("x", 400))); err != nil {
			m.t.Fatalf("%s: datagram %d: %v", when, i, err)
		}
		got, frames := m.copiesOf(mark)
		if !slices.Equal(got, want) {
			m.t.Errorf("%s: datagram %d: copies %q, want %q", when, i, got, want)
		}
		for _, f := range frames {
			if err := testpkt.Check(f); err != nil {
				m.t.Errorf("%s: datagram %d: a copy is broken: %v", when, i, err)
			}
		}
	}
}

func dialUDP(t *testing.T, ns *testnet.NS, target string) net.Conn {
	t.Helper()
	c, err := ns.Dial("udp", "", target, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// mirrorSite is a site with a Service on backend b1, a rule that allows its connections, and a
// monitor at the device mon0.
type mirrorSite struct {
	*site
	*monitor
	vip string
}

func newMirrorSite(t *testing.T, family, vip string) *mirrorSite {
	s := newSite(t)
	b1, client := backendAddr(family, 0, 8080), map[string]string{"IPv4": "192.0.2.17", "IPv6": "2001:db8:0:2::17"}[family]
	m := newMonitor(t, s.node, "mon0", map[string]string{
		client: "client", strings.Trim(vip, "[]"): "vip", netip.MustParseAddrPort(b1).Addr().String(): "b1",
	})
	for ns, devices := range map[*testnet.NS][]string{s.client: {"eth0"}, s.backends[0]: {"eth0"}, s.node: {"in0", "p1"}} {
		for _, device := range devices {
			ns.Offload(t, device, false, testnet.TxChecksum)
		}
	}
	s.start()
	s.serve(s.backends[0], b1, "b1")
	s.Apply(serviceYAML("web", []string{vip + ":9000/udp", vip + ":9000/tcp"}, []string{b1}) + `
---
kind: FirewallRule
name: nine
spec: {action: allow, match: {protocol: udp, ports: 9000}}
`)
	return &mirrorSite{s, m, vip}
}

// told waits until llcli reports all words about a Mirror.
func mirrorTold(t *testing.T, d *testdaemon.Daemon, name string, words ...string) {
	t.Helper()
	var out string
	testnet.Eventually(t, 2*patience, fmt.Sprintf("Mirror %s reports %q", name, words), func() bool {
		out = d.LLCLI("get", "mirror", name, "-o", "yaml")
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(out, word) })
	})
	if t.Failed() {
		t.Log(out)
	}
}

// TestMirror: copies of the packets of each kind of source, in each direction, of the first packets
// of a connection and on the fast path.
func TestMirror(t *testing.T) {
	testnet.RequireRoot(t)
	eachFamily(t, func(t *testing.T, family, vip string) {
		s := newMirrorSite(t, family, vip)
		target := vip + ":9000"
		wide := map[string]string{"IPv4": "192.0.0.0/16,10.0.0.0/8", "IPv6": "2001:db8::/48"}[family]
		other := map[string]string{"IPv4": "203.0.113.0/24", "IPv6": "fd99::/64"}[family]
		for _, c := range []struct {
			flags string
			want  []string
		}{
			{"--interface in0", []string{"client>vip", "vip>client"}},
			{"--interface in0 --direction in", []string{"client>vip"}},
			{"--interface in0 --direction out", []string{"vip>client"}},
			{"--interface p1", []string{"client>b1", "b1>client"}},
			{"--interface p1 --direction in", []string{"b1>client"}},
			{"--interface p2", nil},
			{"--interface in0 --protocol udp --port 9000", []string{"client>vip"}},
			{"--interface in0 --protocol udp,tcp --source-port 8999-9000", []string{"vip>client"}},
			{"--interface in0 --protocol tcp --port 9000", nil},
			{"--interface in0 --source " + wide, []string{"client>vip"}},
			{"--interface in0 --destination " + other, nil},
			{"--service web", []string{"client>vip", "b1>client"}},
			{"--service web --direction in", []string{"client>vip"}},
			{"--service web --direction out", []string{"b1>client"}},
			{"--rule nine", []string{"client>vip", "b1>client"}},
			{"--rule nine --direction in", []string{"client>vip"}},
		} {
			c1 := dialUDP(t, s.client, target)
			s.LLCLI(append(strings.Fields("mirror add watch --to-device mon0 --wait 20s"), strings.Fields(c.flags)...)...)
			s.wants(c.flags, c1, c.want...)
			s.wants(c.flags+", established before", c1, c.want...)
			s.LLCLI("mirror", "delete", "watch", "--wait", "20s")
			s.wants(c.flags+", deleted", c1)
		}
	})
}

// TestMirrorsTogether: two Mirrors of one packet, copies that are cut, and copies that are not
// copied again.
func TestMirrorsTogether(t *testing.T) {
	testnet.RequireRoot(t)
	s := newMirrorSite(t, "IPv4", vip4)
	other := newMonitor(t, s.node, "mon1", nil)
	s.Apply("kind: Interface\nname: mon0\nspec: {device: mon0, role: port}\n")
	s.LLCLI("mirror", "add", "whole", "--interface", "in0", "--to-device", "mon0", "--wait", "20s")
	s.LLCLI("mirror", "add", "cut", "--service", "web", "--snaplen", "100", "--to-device", "mon1", "--wait", "20s")
	s.LLCLI("mirror", "add", "again", "--interface", "mon0", "--protocol", "udp", "--to-device", "mon1", "--wait", "20s")
	c := dialUDP(t, s.client, vip4+":9000")
	mark := "<cut>"
	if _, err := testtraffic.ExchangeUDP(c, []byte(mark+strings.Repeat("x", 400))); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.copiesOf(mark); !slices.Equal(got, []string{"client>vip", "vip>client"}) {
		t.Errorf("copies of the Interface's packets: %q", got)
	}
	got, frames := other.copiesOf(mark)
	if len(got) != 2 || len(frames[0]) != 100 || len(frames[1]) != 100 {
		t.Errorf("copies of the Service's packets: %q, want two of 100 bytes", got)
	}
	mirrorTold(t, s.Daemon, "cut", "state: Ready", "packets: 2", "bytes: 200", "drops: 0")
	mirrorTold(t, s.Daemon, "again", "state: Ready", "packets: 0")
	if out := s.LLCLI("counters", "mirrors"); !strings.Contains(out, "whole") {
		t.Errorf("counters:\n%s", out)
	}
}

// TestMirrorLives: copies continue without a daemon and after a restart, follow the devices that
// they need, and the Mirror says what is missing.
func TestMirrorLives(t *testing.T) {
	testnet.RequireRoot(t)
	s := newMirrorSite(t, "IPv4", vip4)
	c := dialUDP(t, s.client, vip4+":9000")
	both := []string{"client>vip", "vip>client"}
	out, code, _ := s.TryLLCLI("mirror", "add", "watch", "--interface", "in0", "--to-device", "mon7", "--wait", "1s")
	if code != 4 {
		t.Errorf("to a device that does not exist: exit code %d\n%s", code, out)
	}
	mirrorTold(t, s.Daemon, "watch", "state: Pending", "mon7")
	s.wants("without a target", c)
	s.LLCLI("mirror", "set", "watch", "--to-device", "mon0", "--wait", "20s")
	s.wants("at first", c, both...)
	s.LLCLI("interface", "set", "in0", "--xdp", "generic", "--wait", "20s")
	s.wants("with XDP", c, both...)
	s.Kill()
	s.wants("without a daemon", c, both...)
	s.Start()
	mirrorTold(t, s.Daemon, "watch", "state: Ready")
	s.wants("after a restart", c, both...)

	s.node.Run(t, "ip", "link", "set", "mon0", "down")
	mirrorTold(t, s.Daemon, "watch", "state: Pending", "run ip link set mon0 up")
	s.node.Run(t, "ip", "link", "set", "mon0", "up")
	mirrorTold(t, s.Daemon, "watch", "state: Ready")
	s.wants("after its target was down", c, both...)

	if out := s.LLCLI("interface", "delete", "in0", "--force"); !strings.Contains(out, "deleted") {
		t.Errorf("delete: %s", out)
	}
	mirrorTold(t, s.Daemon, "watch", "state: Pending", "Interface/in0 does not exist: create it")
	s.LLCLI("interface", "add", "in0", "--wait", "20s")
	mirrorTold(t, s.Daemon, "watch", "state: Ready")
	s.wants("after its source was deleted", c, both...)
	if _, code, _ := s.TryLLCLI("mirror", "set", "watch", "--to-device", "in0"); code != 1 {
		t.Errorf("to the source itself: exit code %d", code)
	}
	s.LLCLI("mirror", "set", "watch", "--to-device", "mon0", "--direction", "in", "--confirm", "1s")
	testnet.Eventually(t, 2*patience, "the change is rolled back", func() bool {
		return !strings.Contains(s.LLCLI("get", "mirror", "watch", "-o", "yaml"), "direction: in")
	})
	s.wants("after a rollback", c, both...)
	backup := s.LLCLI("export")
	s.LLCLI("mirror", "delete", "watch", "--wait", "20s")
	s.wants("deleted", c)
	s.LLCLI("replace", "-f", s.File(backup), "--wait", "20s")
	s.wants("restored from a backup", c, both...)
}

// TestMirrorOfPod: copies of the packets of an Endpoint, which the switch bridges.
func TestMirrorOfPod(t *testing.T) {
	testnet.RequireRoot(t)
	s := newEndpoints(t)
	var m *monitor
	a, b := s.pods["a"], s.pods["b"]
	t.Run("with a monitor in the switch", func(t *testing.T) { // closes the namespace at the end
		m = newMonitor(t, testnet.Named(t, s.name), "mon1", map[string]string{
			a.addr.String(): "a", b.addr.String(): "b", a.addr6.String(): "a", b.addr6.String(): "b",
		})
		for _, p := range []*endpointPod{a, b} {
			p.ns.Offload(t, "eth0", false, testnet.TxChecksum)
		}
		for _, target := range []string{b.addr.String() + ":4660", "[" + b.addr6.String() + "]:4660"} {
			c := dialUDP(t, a.ns, target)
			s.LLCLI("mirror", "add", "pod", "--endpoint", "shop/a", "--to-device", "mon1", "--wait", "20s")
			m.wants("of a, to "+target, c, "a>b", "b>a")
			s.LLCLI("mirror", "set", "pod", "--endpoint", "shop/b", "--direction", "in", "--wait", "20s")
			m.wants("of b, to "+target, c, "b>a")
			s.LLCLI("mirror", "delete", "pod", "--wait", "20s")
			m.wants("deleted", c)
		}
	})
}

// receiver receives the copies that are sent to a Peer. frame returns the copy in a frame of the wire;
// false: the frame contains none.
type receiver struct {
	wire  *testnet.Wire
	frame func(outer []byte) (copied []byte, ok bool)
}

const mirrorVNI = 4242

// copiesOnWire receives the encapsulated copies that leave a node.
func (m *mesh) copiesOnWire(n *meshNode) []receiver {
	outer := 14 + 20 // before the header of the tunnel
	if m.over6 {
		outer += 20
	}
	header, vni := 8, []byte{0, 0, mirrorVNI >> 8, mirrorVNI & 255} // GRE: the key
	if m.tunnel != "gre" {
		outer, vni = outer+8, append(vni[1:], 0)
	}
	return []receiver{{m.lan.Wire(m.t, fmt.Sprintf("n%d", n.id)), func(f []byte) ([]byte, bool) {
		if len(f) < outer+header || !bytes.Equal(f[outer+4:outer+8], vni) {
			return nil, false
		}
		return f[outer+header:], true
	}}}
}

// kernelReceives makes a vxlan device of the kernel on a node that receives the copies.
func (m *mesh) kernelReceives(n *meshNode) receiver {
	m.t.Helper()
	device := "vxlan id 4242 dstport 4789 local 192.0.2.2 remote 192.0.2.1"
	if m.over6 {
		device = "vxlan id 4242 dstport 4789 local 2001:db8:74::2 remote 2001:db8:74::1 udp6zerocsumrx"
	}
	n.ns.Run(m.t, "ip", append([]string{"link", "add", "mon0", "type"}, strings.Fields(device)...)...)
	n.ns.Run(m.t, "ip", "link", "set", "mon0", "up")
	m.t.Cleanup(func() { n.ns.DeleteLink(m.t, "mon0") })
	return receiver{n.ns.Wire(m.t, "mon0"), func(f []byte) ([]byte, bool) { return f, true }}
}

// TestMirrorToPeer: copies of a pod's packets on node 1 reach node 2 through the tunnel, with a VNI
// of their own, and a vxlan device of the kernel receives them.
func TestMirrorToPeer(t *testing.T) {
	testnet.RequireRoot(t)
	eachMesh(t, []meshKind{
		{tunnel: "gre"}, {tunnel: "gre", over6: true}, {tunnel: "vxlan"}, {tunnel: "geneve"}, {tunnel: "vxlan", over6: true}, {tunnel: "vxlan", split: true},
	}, func(t *testing.T, m *mesh) {
		one, two := m.nodes[0], m.nodes[1]
		if _, code, _ := one.TryLLCLI("mirror", "add", "copies", "--interface", "p1", "--to-peer", "node2", "--vni", "4660"); code != 1 {
			t.Errorf("with the VNI of the Tunnel: exit code %d", code)
		}
		one.LLCLI("mirror", "add", "copies", "--interface", "p1", "--to-peer", "node2", "--vni", "4242", "--wait", "20s")
		heard := m.copiesOnWire(one)
		if m.tunnel == "vxlan" { // a Linux host receives them as well
			heard = append(heard, m.kernelReceives(two))
		}
		for i, target := range []string{two.pod4() + ":4660", "[" + two.pod6() + "]:4660"} {
			c := dialUDP(t, one.pod, target)
			for n := range 3 {
				mark := fmt.Sprintf("<mark %d %d>", i, n)
				if _, err := testtraffic.ExchangeUDP(c, []byte(mark+strings.Repeat("x", 100))); err != nil {
					t.Fatal(err)
				}
				port := netip.MustParseAddrPort(target)
				for what, is := range map[string]func(*testpkt.Packet) bool{
					"request": func(p *testpkt.Packet) bool { return p.Destination() == port },
					"reply":   func(p *testpkt.Packet) bool { return p.Source() == port },
				} {
					for k, inner := range heard {
						inner.wire.Await(t, patience, fmt.Sprintf("receiver %d: the copy of %s %d to %s", k, what, n, target), func(f []byte) bool {
							f, ok := inner.frame(f)
							return ok && bytes.Contains(f, []byte(mark)) && is(testpkt.Parse(f))
						})
					}
				}
			}
		}
		mirrorTold(t, one.Daemon, "copies", "state: Ready", "drops: 0")
		if _, code, _ := one.TryLLCLI("tunnel", "add", "other", "--vni", "4242"); code != 1 {
			t.Errorf("a Tunnel with the VNI of the copies: exit code %d", code)
		}
	})
}
