// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// odd returns a frame of a conversation with something unusual: its destination, its tags, or its
// contents.
func (b *bridge) odd(p packet, k *bridgedTalk) shot {
	rng := b.rng
	switch rng.IntN(8) {
	case 0:
		p.eth.Destination, p.what = b.strangeMAC()
	case 1:
		p.tags, p.what = b.strangeTags(p.tags)
	case 2:
		p.eth.Destination, p.what = bridgeMAC, "to the bridge"
		if rng.IntN(2) == 0 {
			p = p.echo()
		}
	case 3:
		if rng.IntN(4) == 0 {
			p.eth.Source, p.what = [6]byte{1, 2, 3, 4, 5, 6}, "from a group"
			break
		}
		// Not with a station's own addresses: if another station opened the connection, the bridge
		// sees only later what this station sends on the fast path.
		p = p.stranger(byte(rng.IntN(4)))
	case 4:
		p = p.shortLived(rng) // irrelevant to a bridge
	case 5:
		p = p.otherFlags(rng)
	case 6:
		p = p.options(rng)
	default:
		q := p.shot(k.talk)
		if len(p.tags) == 0 {
			q.frame, q.what = damage(rng, q.frame)
		}
		return q
	}
	return p.shot(k.talk)
}

// stranger returns the packet as sent by a different host.
func (p packet) stranger(i byte) packet {
	p.eth.Source, p.what = [6]byte{2, 0x77, 0x88, 0x99, 0xee, i}, "from another host"
	switch ip := p.ip.(type) {
	case testpkt.IPv4:
		ip.Source = netip.AddrFrom4([4]byte{192, 0, 2, 200 + i})
		p.ip = ip
	case testpkt.IPv6:
		ip.Source = netip.MustParseAddr(fmt.Sprintf("2001:db8::ee0%x", i))
		p.ip = ip
	}
	return p
}

// echo turns the packet into an echo request to the bridge itself.
func (p packet) echo() packet {
	switch ip := p.ip.(type) {
	case testpkt.IPv4:
		ip.Destination, ip.Protocol = own4, testpkt.ProtoICMP
		p.ip = ip
		p.rest = []testpkt.Layer{testpkt.ICMP{Type: testpkt.EchoRequest, ID: 7}, p.rest[len(p.rest)-1]}
	case testpkt.IPv6:
		ip.Destination, ip.Protocol = own6, testpkt.ProtoICMPv6
		p.ip = ip
		p.rest = []testpkt.Layer{testpkt.ICMP{V6: true, Type: testpkt.V6EchoRequest, ID: 7}, p.rest[len(p.rest)-1]}
	}
	p.what = "echo request to the bridge"
	return p
}

func (b *bridge) strangeMAC() ([6]byte, string) {
	switch b.rng.IntN(6) {
	case 0:
		return [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "broadcast"
	case 1:
		return [6]byte{1, 0, 0x5e, 1, 2, byte(b.rng.IntN(3))}, "IPv4 multicast"
	case 2:
		return [6]byte{0x33, 0x33, 0, 0, 0, byte(b.rng.IntN(3))}, "IPv6 multicast"
	case 3: // STP, LLDP and the like are for the bridge, not its hosts
		return [6]byte{1, 0x80, 0xc2, 0, 0, byte(b.rng.IntN(0x22))}, "link-local group"
	case 4:
		return nodeMAC(b.rng.IntN(portCount)), "to a port's own address"
	default:
		return [6]byte{2, 0x77, 0x88, 0x99, 0xdd, byte(b.rng.IntN(4))}, "unknown unicast"
	}
}

func (b *bridge) strangeTags(tags []testpkt.Layer) ([]testpkt.Layer, string) {
	id := []uint16{0, 1, 10, 20, 30, 4094, 4095}[b.rng.IntN(7)]
	priority := uint16(b.rng.IntN(16)) << 12
	tpid := []uint16{0x8100, 0x88a8}[b.rng.IntN(2)]
	if b.protocol == "802.1ad" && b.filtering && tpid == 0x8100 {
		// Known: such a bridge does not interpret this tag as a VLAN; the fast path does. -gaps
		// shows it.
		if !*gapsFlag {
			tpid = 0x88a8
		}
	}
	tag := testpkt.VLAN{ID: priority | id, TPID: tpid}
	if b.rng.IntN(2) == 0 {
		return append([]testpkt.Layer{tag}, tags...), fmt.Sprintf("one more tag %#x %d", tpid, id)
	}
	return []testpkt.Layer{tag}, fmt.Sprintf("tag %#x %d, priority %d", tpid, id, priority>>12)
}
