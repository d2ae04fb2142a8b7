// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/internal/testnet"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestBridge compares a bridge with four ports with the kernel's. VLAN filtering, PVIDs, trunks and
// isolated ports are random.
//
//	p1 ─┐
//	p2 ─┤ br0 ── 192.0.2.1/24, 2001:db8::1/64
//	p3 ─┤
//	p4 ─┘
func TestBridge(t *testing.T) {
	rounds(t, 3, func(t *testing.T, rng *rand.Rand) {
		b := newBridge(t, rng)
		b.traffic(*framesFlag)
		b.report(t)
	})
}

// TestBridgeChanges moves stations, and changes ports, links and netfilter under traffic.
func TestBridgeChanges(t *testing.T) {
	rounds(t, 1, func(t *testing.T, rng *rand.Rand) {
		b := newBridge(t, rng)
		b.traffic(1000)
		b.moves()
		b.changes(b.bridgeChanges(), *stepsFlag, b.traffic)
		b.moves()
		b.report(t)
	})
}

// moves moves two stations.
func (b *bridge) moves() {
	b.t.Helper()
	for range 2 {
		s := b.stations[b.rng.IntN(len(b.stations))]
		b.settle(fmt.Sprintf("station %s moves", text(s.mac)), func() { b.place(s) }, b.traffic)
		b.traffic(400)
	}
}

var vlans = []uint16{10, 20, 30}

// vlanPort is the configuration of a bridge port.
type vlanPort struct {
	pvid     uint16 // 0: none
	member   []uint16
	untagged []uint16
	isolated bool
}

// station is a host on a port. Stations move.
type station struct {
	mac  [6]byte
	addr [2]netip.Addr // IPv4, IPv6
	port int
	vlan uint16 // of its frames
	tag  bool   // whether it tags them
}

type bridge struct {
	*rig
	filtering bool
	jumbo     int // number of ports that accept jumbo frames
	protocol  string
	ports     [portCount]vlanPort
	stations  []*station
	talks     []*bridgedTalk
	next      int // number of the next frame
}

// bridgedTalk is a conversation between two stations.
type bridgedTalk struct {
	*talk
	from, to *station
}

var bridgeMAC = [6]byte{2, 0x11, 0x22, 0x33, 0xbb, 0x01}

var own4, own6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")

func newBridge(t *testing.T, rng *rand.Rand) *bridge {
	b := &bridge{rig: newRig(t, rng), filtering: rng.IntN(4) != 0, protocol: "802.1Q"}
	if rng.IntN(5) == 0 {
		b.protocol = "802.1ad"
	}
	if b.filtering && !filteringKnown(t) {
		t.Log("this kernel's bridges know no VLANs: make test-kernels has some that do")
		b.filtering = false
	}
	for i := range b.ports {
		b.ports[i] = randomPort(rng)
	}
	var setup strings.Builder
	fmt.Fprintf(&setup, "ip link add br0 address %s type bridge", text(bridgeMAC))
	if b.filtering {
		fmt.Fprintf(&setup, " vlan_filtering 1 vlan_protocol %s", b.protocol)
	}
	for i, p := range b.ports {
		fmt.Fprintf(&setup, "\nip link set %s master br0\n%s", port(i), p.commands(port(i), b.filtering))
	}
	setup.WriteString("ip link set br0 up\nip address add 192.0.2.1/24 dev br0\nip address add 2001:db8::1/64 dev br0 nodad\n")
	if b.filtering {
		setup.WriteString("bridge vlan add dev br0 vid 10 pvid untagged self\n")
	}
	if rng.IntN(3) == 0 { // jumbo frames, and perhaps a port that accepts none
		b.jumbo = portCount - rng.IntN(2)
		for i := range b.jumbo {
			fmt.Fprintf(&setup, "ip link set %s mtu 9000\n", port(i))
		}
	}
	if rng.IntN(2) == 0 {
		setup.WriteString("for f in /proc/sys/net/bridge/bridge-nf-call-ip*; do [ ! -e $f ] || echo 0 >$f; done\n")
	}
	b.run(setup.String())
	t.Logf("%s, filtering %t, ports %+v", b.protocol, b.filtering, b.ports)
	own := map[netip.Addr]bool{
		own4: true, own6: true, linkLocal(bridgeMAC): true,
	}
	for i := range portCount {
		own[linkLocal(nodeMAC(i))] = true
	}
	b.normalise = func(frame []byte) []byte {
		// A bridge forwards bytes after an IP packet, unless netfilter has seen the packet.
		return ownWords(frame[:len(frame)-testpkt.Parse(frame).Padding], own)
	}
	b.start()
	for i := range 14 {
		b.stations = append(b.stations, b.newStation(i))
	}
	for range 40 {
		b.talks = append(b.talks, b.newTalk())
	}
	return b
}

func randomPort(rng *rand.Rand) vlanPort {
	p := vlanPort{isolated: rng.IntN(6) == 0}
	for _, v := range vlans {
		if rng.IntN(4) != 0 {
			p.member = append(p.member, v)
			if rng.IntN(4) == 0 {
				p.untagged = append(p.untagged, v)
			}
		}
	}
	if len(p.member) > 0 && rng.IntN(5) != 0 {
		p.pvid = p.member[rng.IntN(len(p.member))]
		if rng.IntN(4) != 0 && !slices.Contains(p.untagged, p.pvid) {
			p.untagged = append(p.untagged, p.pvid)
		}
	}
	return p
}

// filteringKnown reports whether the kernel's bridges can filter by VLAN.
func filteringKnown(t *testing.T) bool {
	_, err := testnet.New(t, "probe").TryRun("sh", "-ec", script("ip link add br0 type bridge vlan_filtering 1"))
	return err == nil
}

// commands returns the commands that configure a port, from any state.
func (p vlanPort) commands(device string, filtering bool) string {
	var b strings.Builder
	if filtering {
		fmt.Fprintf(&b, "bridge vlan del dev %s vid 1-4094\n", device)
	}
	for _, v := range p.member {
		if !filtering {
			break
		}
		fmt.Fprintf(&b, "bridge vlan add dev %s vid %d", device, v)
		if v == p.pvid {
			b.WriteString(" pvid")
		}
		if slices.Contains(p.untagged, v) {
			b.WriteString(" untagged")
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "bridge link set dev %s isolated %s\n", device, map[bool]string{true: "on", false: "off"}[p.isolated])
	return b.String()
}

func (b *bridge) newStation(i int) *station {
	s := &station{
		mac: [6]byte{2, 0x77, 0x88, 0x99, 0xaa, byte(i + 1)},
		addr: [2]netip.Addr{
			netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", 0x10+i)),
		},
	}
	b.place(s)
	return s
}

// place attaches a host to a port, usually one in its VLAN.
func (b *bridge) place(s *station) {
	s.port = b.rng.IntN(portCount)
	p := b.ports[s.port]
	s.vlan, s.tag = vlans[b.rng.IntN(len(vlans))], true
	if len(p.member) > 0 && b.rng.IntN(8) != 0 {
		s.vlan = p.member[b.rng.IntN(len(p.member))]
	}
	if s.vlan == p.pvid && b.rng.IntN(4) != 0 || !b.filtering && b.rng.IntN(2) == 0 {
		s.tag = false
	}
}

func (b *bridge) newTalk() *bridgedTalk {
	from := b.stations[b.rng.IntN(len(b.stations))]
	to := b.stations[b.rng.IntN(len(b.stations))]
	for range 20 { // usually within a VLAN
		if to != from && to.vlan == from.vlan {
			break
		}
		to = b.stations[b.rng.IntN(len(b.stations))]
	}
	family := b.rng.IntN(2)
	return &bridgedTalk{talk: newTalk(b.rng, from.addr[family], to.addr[family]), from: from, to: to}
}

// traffic sends the given number of frames: conversations and odd frames.
func (b *bridge) traffic(frames int) {
	b.t.Helper()
	for end := b.sent + frames; b.sent < end; {
		var batch []shot
		for range 16 {
			batch = append(batch, b.shot())
		}
		b.fire(batch)
		if b.rng.IntN(30) == 0 {
			b.talks[b.rng.IntN(len(b.talks))] = b.newTalk()
		}
	}
}

// shot returns the next frame of some conversation, or an odd one.
func (b *bridge) shot() shot {
	k := b.talks[b.rng.IntN(len(b.talks))]
	b.next++
	size := 20 + b.rng.IntN(80)
	if b.rng.IntN(10) == 0 {
		size = 1300 + b.rng.IntN(200)
		if b.jumbo > 0 {
			size = 1400 + b.rng.IntN(7500)
		}
	}
	forth, layers := k.next(b.rng, marked(b.next, size))
	from, to := k.from, k.to
	if !forth {
		from, to = to, from
	}
	p := packet{eth: testpkt.Ethernet{Source: from.mac, Destination: to.mac}, ip: k.ip(b.rng, forth), rest: layers, port: from.port, what: "plain"}
	if from.tag {
		p.tags = []testpkt.Layer{testpkt.VLAN{ID: from.vlan, TPID: b.tpid()}}
	}
	if b.rng.IntN(6) == 0 {
		return b.odd(p, k)
	}
	return p.shot(k.talk)
}

func (b *bridge) mtu(port int) int {
	if port < b.jumbo {
		return 9000
	}
	return 1500
}

func (b *bridge) tpid() uint16 {
	if b.protocol == "802.1ad" {
		return 0x88a8
	}
	return 0x8100
}
