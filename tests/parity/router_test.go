// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestRouter compares a router with four networks with the kernel's.
//
//	p1 192.0.2.1/26   2001:db8:0:1::1/64     hosts .2 to .7, ::2 to ::7
//	p2 192.0.2.65/26  2001:db8:0:2::1/64     behind .2 of each: 198.18.N.0/24, 2001:db8:N00::/48
//	p3, p4 likewise; p4 has an MTU of 1300
func TestRouter(t *testing.T) {
	rounds(t, 2, func(t *testing.T, rng *rand.Rand) {
		r := newRouter(t, rng)
		r.traffic(*framesFlag)
		r.report(t)
	})
}

// TestRouterChanges changes routes, neighbours, links, addresses, rules and netfilter
// under traffic.
func TestRouterChanges(t *testing.T) {
	rounds(t, 1, func(t *testing.T, rng *rand.Rand) {
		r := newRouter(t, rng)
		r.traffic(1000)
		r.changes(r.routerChanges(), *stepsFlag, r.traffic)
		r.report(t)
	})
}

type router struct {
	*rig
	talks []*talk
	own   map[netip.Addr]bool // the node's addresses
	next  int                 // number of the next frame
}

const narrow = 1300 // MTU of p4

// host is the address of a host of network n (0 to 3).
func host(n, i int, v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:0:%d::%x", n+1, i))
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(64*n + i)})
}

// far is the address of a host behind host 2 of network n.
func far(n, i int, v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:%d00::%x", n+1, i))
	}
	return netip.AddrFrom4([4]byte{198, 18, byte(n + 1), byte(i)})
}

func hostMAC(n, i int) [6]byte { return [6]byte{2, 0x44, 0x55, 0x66, byte(n + 1), byte(i)} }

const hostCount = 6 // in each network, starting at .2

func newRouter(t *testing.T, rng *rand.Rand) *router {
	r := &router{rig: newRig(t, rng)}
	for n := range portCount {
		r.run(networkUp(n))
	}
	r.run(fmt.Sprintf("ip link set %s mtu %d\n", port(3), narrow) +
		"ip route add blackhole 198.18.99.0/24\nip route add unreachable 198.18.98.0/24\nip route add prohibit 2001:db8:9900::/48\n")
	own := map[netip.Addr]bool{}
	for n := range portCount {
		own[host(n, 1, false)], own[host(n, 1, true)] = true, true
		own[linkLocal(nodeMAC(n))] = true
		own[host(n, 4, false)] = true // after one of the changes
	}
	rpFilter := fmt.Sprint(rng.IntN(3)) // off, strict, loose
	r.each(func(s *side) {
		s.node.Forward(t)
		s.node.Sysctl(t, "net.ipv4.conf.all.rp_filter", rpFilter)
	})
	r.own = own
	r.normalise = func(frame []byte) []byte { return ownWords(frame, own) }
	r.start()
	for range 40 {
		r.talks = append(r.talks, r.newTalk())
	}
	return r
}

// linkLocal is the address that the kernel derives from a MAC address (RFC 4291, appendix A).
func linkLocal(mac [6]byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

// newTalk returns a conversation between two networks, or sometimes within one or with the node.
func (r *router) newTalk() *talk {
	v6 := r.rng.IntN(2) == 0
	return newTalk(r.rng, r.someone(v6), r.someone(v6))
}

func (r *router) someone(v6 bool) netip.Addr {
	n := r.rng.IntN(portCount)
	switch r.rng.IntN(20) {
	case 0:
		return host(n, 1, v6) // the node
	case 1, 2, 3, 4, 5:
		return far(n, 1+r.rng.IntN(200), v6)
	default:
		return host(n, 2+r.rng.IntN(hostCount), v6)
	}
}

// network returns the network of a host; -1: none.
func network(a netip.Addr) (n int, mac [6]byte) {
	b := a.As16()
	if a.Is4() {
		switch {
		case b[12] == 192:
			n = int(b[15] / 64)
			return n, hostMAC(n, int(b[15]%64))
		default:
			n = int(b[14]) - 1
			return n, hostMAC(n, 2)
		}
	}
	if n = int(b[4]) - 1; n >= 0 {
		return n, hostMAC(n, 2)
	}
	n = int(b[7]) - 1
	return n, hostMAC(n, int(b[15]))
}

// traffic sends the given number of frames: conversations, and occasionally an odd frame of one of
// them.
func (r *router) traffic(frames int) {
	r.t.Helper()
	for end := r.sent + frames; r.sent < end; {
		var batch []shot
		for range 16 {
			batch = append(batch, r.shots()...)
		}
		r.fire(batch)
		if r.rng.IntN(50) == 0 {
			r.talks[r.rng.IntN(len(r.talks))] = r.newTalk()
		}
	}
}

// shots returns the next packet of some conversation, in one frame or in fragments.
func (r *router) shots() []shot {
	k := r.talks[r.rng.IntN(len(r.talks))]
	r.next++
	size := 20 + r.rng.IntN(80)
	if r.rng.IntN(10) == 0 {
		size = 1200 + r.rng.IntN(260) // around the narrow MTU, and the usual one
	}
	forth, layers := k.next(r.rng, marked(r.next, size))
	src := k.to.Addr()
	if forth {
		src = k.from.Addr()
	}
	n, mac := network(src)
	p := packet{eth: testpkt.Ethernet{Source: mac, Destination: nodeMAC(n)}, ip: k.ip(r.rng, forth), rest: layers, port: n, what: "plain"}
	shots := []shot{p.shot(k)}
	if r.rng.IntN(6) == 0 {
		shots = p.odd(r, k)
	}
	return slices.DeleteFunc(shots, func(s shot) bool { return !*gapsFlag && r.fromNode(s.frame) })
}

// fromNode reports whether a frame has an IPv6 address of the node as source. Known: the kernel
// rejects packets from outside that have one of its own addresses only for IPv4; an uplink rejects
// them for both families (uplink_source).
func (r *router) fromNode(frame []byte) bool {
	p := testpkt.Parse(frame)
	return p.IPv6 != nil && r.own[p.IPv6.Source]
}
