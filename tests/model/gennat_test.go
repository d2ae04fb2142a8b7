// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// pool is a prefix of addresses for source translation; no host has them.
func pool(i, bits int, v6 bool) netip.Prefix {
	a := netip.AddrFrom4([4]byte{203, 0, 113, byte(16 * i)})
	if v6 {
		a, bits = netip.MustParseAddr(fmt.Sprintf("2001:db8:cb00:7100::%x0", i)), bits+96
	}
	return netip.PrefixFrom(a, bits)
}

// netOf is the prefix of a port's network.
func netOf(port int, v6 bool) netip.Prefix {
	p, _ := host(port, 0, v6).Prefix(map[bool]int{false: 24, true: 64}[v6])
	return p
}

func randomNATs(rng *rand.Rand) (all []*nat) {
	for i := range 1 + rng.IntN(4) {
		n := &nat{name: fmt.Sprintf("n%d", i), priority: int32(rng.IntN(3) * 100)}
		v6 := rng.IntN(2) == 0
		switch rng.IntN(6) {
		case 0, 1:
			n.kind = "masquerade"
			n.match.src = []netip.Prefix{netOf(rng.IntN(portCount), v6)}
			n.outer(rng)
		case 2, 3:
			n.kind, n.addresses = "snat", []netip.Prefix{pool(i, pick(rng, 32, 31, 29), v6)}
			n.match.src = []netip.Prefix{netOf(rng.IntN(portCount), v6)}
			n.outer(rng)
		case 4:
			n.dnat(rng, v6)
		default:
			n.oneToOne = true
			if rng.IntN(2) == 0 {
				n.kind, n.addresses = "snat", []netip.Prefix{pool(i, 29, v6)}
				p, _ := host(rng.IntN(portCount), 0, v6).Prefix(map[bool]int{false: 29, true: 125}[v6])
				n.match.src = []netip.Prefix{p}
				break
			}
			n.kind = "dnat"
			bits := map[bool]int{false: 30, true: 126}[v6]
			p, _ := vip(0, v6).Prefix(bits)
			n.match.dst = []netip.Prefix{p}
			n.addresses = []netip.Prefix{netip.PrefixFrom(host(rng.IntN(portCount), 4, v6), bits)}
		}
		all = append(all, n)
	}
	return all
}

// outer adds optional fields to a rule that translates sources.
func (n *nat) outer(rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		n.match.out = []int{pick(rng, 3, 3, rng.IntN(portCount))}
	}
	if rng.IntN(3) == 0 {
		n.ports = []portRange{{2048, 2048 + 4095}}
	}
	if rng.IntN(3) == 0 {
		n.mapping = true
		n.filtering = rng.IntN(2) == 0
	} else if rng.IntN(4) == 0 {
		n.block = 64
	}
}

// dnat completes a rule that translates destinations: port forwarding, or an address with all of
// its ports.
func (n *nat) dnat(rng *rand.Rand, v6 bool) {
	n.kind = "dnat"
	bits := map[bool]int{false: 32, true: 128}[v6]
	n.match.dst = []netip.Prefix{netip.PrefixFrom(vip(rng.IntN(3), v6), bits)}
	for range 1 + rng.IntN(2) {
		n.addresses = append(n.addresses, netip.PrefixFrom(host(rng.IntN(portCount), hostFirst+rng.IntN(hostCount), v6), bits))
	}
	if len(n.addresses) == 2 && n.addresses[0] == n.addresses[1] {
		n.addresses = n.addresses[:1]
	}
	switch rng.IntN(3) {
	case 0:
		n.match.protos = []uint8{pick[uint8](rng, testpkt.ProtoTCP, testpkt.ProtoUDP)}
		n.match.ports = []portRange{{80, 83}}
		n.ports = []portRange{{9000, 9003}}
	case 1:
		n.match.protos = []uint8{pick[uint8](rng, testpkt.ProtoTCP, testpkt.ProtoUDP, testpkt.ProtoSCTP)}
		n.ports = []portRange{{9100, 9100}}
	}
}
