// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/loxilight/loxilight/internal/testpkt"
)

func randomRules(rng *rand.Rand, c *config) (groups []*group, rules []*rule) {
	for i := range rng.IntN(3) {
		g := &group{name: fmt.Sprintf("g%d", i)}
		seen := map[netip.Prefix]bool{}
		for range 1 + rng.IntN(4) {
			if p := randomPrefix(rng, rng.IntN(2) == 0); !seen[p] {
				seen[p] = true
				g.members = append(g.members, p)
			}
		}
		groups = append(groups, g)
	}
	for i := range 1 + rng.IntN(8) {
		r := &rule{
			name: fmt.Sprintf("r%d", i), priority: int32(rng.IntN(4) * 100), hooks: []string{"forward"},
			action: pick(rng, "allow", "allow", "deny", "deny", "reject"), stateless: rng.IntN(6) == 0,
		}
		if rng.IntN(3) == 0 {
			r.hooks = append(r.hooks, "input")
		}
		r.match = randomMatch(rng, groups, true)
		if len(r.hooks) == 1 && len(c.services) == 0 && rng.IntN(6) == 0 {
			r.match.out = []int{rng.IntN(portCount)}
		}
		rules = append(rules, r)
	}
	return groups, rules
}

func randomPrefix(rng *rand.Rand, v6 bool) netip.Prefix {
	a := host(rng.IntN(portCount), hostFirst+rng.IntN(hostCount), v6)
	if rng.IntN(4) == 0 {
		a = vip(rng.IntN(3), v6)
	}
	bits := pick(rng, 32, 31, 30, 24, 22, 8, 0)
	if v6 {
		bits = pick(rng, 128, 127, 126, 64, 47, 32, 0)
	}
	p, err := a.Prefix(bits)
	if err != nil {
		panic(err)
	}
	return p
}

// randomMatch returns a match with few fields, so that it matches occasionally.
func randomMatch(rng *rand.Rand, groups []*group, in bool) (m match) {
	v6 := rng.IntN(2) == 0
	for range 1 + rng.IntN(2) {
		switch rng.IntN(8) {
		case 0, 1:
			m.src = addPrefix(rng, m.src, v6)
		case 2, 3:
			m.dst = addPrefix(rng, m.dst, v6)
		case 4:
			if len(groups) > 0 && len(m.dst) == 0 {
				m.srcGroups = []string{groups[rng.IntN(len(groups))].name}
			}
		case 5:
			m.protos = []uint8{pick[uint8](rng, testpkt.ProtoTCP, testpkt.ProtoUDP, testpkt.ProtoSCTP)}
			if rng.IntN(2) == 0 {
				first := uint16(pick(rng, 80, 81, 7000, 7001, 1, 8080))
				m.ports = []portRange{{first, first + uint16(rng.IntN(3))}}
			} else if rng.IntN(3) == 0 {
				m.sourcePorts = []portRange{{20000, uint16(20000 + rng.IntN(12000))}}
			}
			if m.protos[0] == testpkt.ProtoTCP && rng.IntN(3) == 0 {
				m.flagMask, m.flagSet = testpkt.SYN|testpkt.ACK, testpkt.SYN
			}
		case 6:
			m.dscp = []uint8{pick[uint8](rng, 0, 10, 46)}
		case 7:
			if in {
				m.in = []int{rng.IntN(portCount)}
			}
		}
	}
	return m
}

// addPrefix adds a random prefix of a family, unless the list already contains it.
func addPrefix(rng *rand.Rand, all []netip.Prefix, v6 bool) []netip.Prefix {
	p := randomPrefix(rng, v6)
	for _, q := range all {
		if p == q {
			return all
		}
	}
	return append(all, p)
}
