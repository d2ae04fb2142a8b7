// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// vip is an address that no host has.
func vip(i int, v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:c633:6400::%x", i+1))
	}
	return netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})
}

// generate creates a scenario from a random configuration and random packets. The mirrors have a
// random generator of their own, so that the rest of a scenario does not depend on them.
func generate(seed uint64, carries map[string]bool) *scenario {
	rng, mirrors := rand.New(rand.NewPCG(seed, 2)), rand.New(rand.NewPCG(seed, 3))
	sc := &scenario{}
	c := randomConfig(rng, carries)
	if carries[api.KindMirror] && mirrors.IntN(2) == 0 {
		c.mirrors = randomMirrors(mirrors, c)
	}
	sc.ops = append(sc.ops, op{config: c})
	for range 12 + rng.IntN(30) {
		sc.flows = append(sc.flows, randomFlow(rng, c))
	}
	progress := make([]int, len(sc.flows))
	packets := 150 + rng.IntN(250)
	change := rng.IntN(2 * packets) // perhaps never
	for i := range packets {
		if i == change {
			if c = changed(rng, c); len(c.mirrors) > 0 {
				c.mirrors = randomMirrors(mirrors, c)
			}
			sc.ops = append(sc.ops, op{config: c})
		}
		f := rng.IntN(len(sc.flows))
		if progress[f] > 1 && rng.IntN(16) == 0 {
			sc.ops = append(sc.ops, op{flow: f, about: randomError(rng)})
			continue
		}
		next := nextOp(rng, sc.flows[f], f, progress[f])
		if sc.ops = append(sc.ops, next); next.blind { // an ended connection may be opened again
			sc.ops = append(sc.ops, op{flow: f, ttl: 64, tos: next.tos, size: 20, flags: testpkt.SYN, chunk: 1})
		}
		progress[f]++
	}
	return sc
}

func randomConfig(rng *rand.Rand, carries map[string]bool) *config {
	c := &config{}
	taken := map[frontend]bool{}
	for i := range rng.IntN(5) {
		c.services = append(c.services, randomService(rng, i, taken))
	}
	if carries[api.KindFirewallRule] && rng.IntN(4) != 0 {
		c.groups, c.rules = randomRules(rng, c)
	}
	if carries[api.KindNAT] && rng.IntN(3) != 0 {
		c.nats = randomNATs(rng)
	}
	return c
}

func pick[V any](rng *rand.Rand, all ...V) V { return all[rng.IntN(len(all))] }

func randomService(rng *rand.Rand, i int, taken map[frontend]bool) *service {
	s := &service{
		name:      fmt.Sprintf("s%d", i),
		algorithm: pick(rng, api.Algorithms...),
		source:    pick(rng, "keep", "snat", "auto"),
		affinity:  rng.IntN(4) == 0,
	}
	for len(s.frontends) == 0 || rng.IntN(2) == 0 && len(s.frontends) < 4 {
		f := frontend{
			netip.AddrPortFrom(vip(rng.IntN(3), rng.IntN(2) == 0), uint16(80+rng.IntN(3))),
			pick[uint8](rng, testpkt.ProtoTCP, testpkt.ProtoUDP, testpkt.ProtoSCTP),
		}
		if !taken[f] {
			taken[f] = true
			s.frontends = append(s.frontends, f)
		} else if len(taken) > 40 {
			break
		}
	}
	seen := map[netip.AddrPort]bool{}
	for range rng.IntN(6) {
		b := backend{
			addr:   netip.AddrPortFrom(host(rng.IntN(portCount), hostFirst+rng.IntN(hostCount), rng.IntN(2) == 0), uint16(8080+rng.IntN(2))),
			weight: pick(rng, 1, 1, 1, 2, 10, 0),
			state:  pick(rng, "active", "active", "active", "active", "draining", "down"),
		}
		if !seen[b.addr] {
			seen[b.addr] = true
			s.backends = append(s.backends, b)
		}
	}
	if rng.IntN(4) == 0 {
		for range 1 + rng.IntN(2) {
			a := host(rng.IntN(portCount), hostFirst, rng.IntN(2) == 0)
			prefix, _ := a.Prefix(map[bool]int{false: 24, true: 64}[a.Is6()])
			if !slices.Contains(s.ranges, prefix) {
				s.ranges = append(s.ranges, prefix)
			}
		}
	}
	return s
}

// changed returns a configuration that differs from c in some respect.
func changed(rng *rand.Rand, c *config) *config {
	d := *c
	d.services = nil
	for _, s := range c.services {
		t := *s
		switch rng.IntN(4) {
		case 0:
			if len(t.backends) > 0 {
				t.backends = cut(t.backends, rng.IntN(len(t.backends)))
			}
		case 1:
			t.backends = append([]backend(nil), t.backends...)
			for i := range t.backends {
				t.backends[i].state = pick(rng, "active", "draining", "down")
			}
		case 2:
			if rng.IntN(3) == 0 {
				continue
			}
		}
		d.services = append(d.services, &t)
	}
	switch {
	case len(c.rules) > 0 && rng.IntN(2) == 0:
		d.rules = cut(c.rules, rng.IntN(len(c.rules)))
	case len(c.rules) > 0:
		d.groups, d.rules = randomRules(rng, &d)
	}
	switch {
	case len(c.nats) > 0 && rng.IntN(2) == 0:
		d.nats = cut(c.nats, rng.IntN(len(c.nats)))
	case len(c.nats) > 0 && rng.IntN(2) == 0:
		d.nats = randomNATs(rng)
	}
	return &d
}

// randomFlow is a conversation with something that is configured, or a plain one.
func randomFlow(rng *rand.Rand, c *config) flow {
	port := rng.IntN(portCount)
	proto := pick[uint8](rng, testpkt.ProtoTCP, testpkt.ProtoTCP, testpkt.ProtoUDP, testpkt.ProtoSCTP, testpkt.ProtoICMP)
	v6 := rng.IntN(2) == 0
	dst := netip.AddrPortFrom(host(rng.IntN(portCount), hostFirst+rng.IntN(hostCount), v6), uint16(7000+rng.IntN(3)))
	if len(c.services) > 0 && rng.IntN(3) != 0 {
		s := c.services[rng.IntN(len(c.services))]
		if len(s.frontends) > 0 {
			f := s.frontends[rng.IntN(len(s.frontends))]
			dst, proto, v6 = f.addr, f.proto, f.addr.Addr().Is6()
		}
	} else if rng.IntN(8) == 0 || len(c.nats) > 0 && rng.IntN(2) == 0 {
		dst = netip.AddrPortFrom(vip(rng.IntN(3), v6), uint16(80+rng.IntN(4)))
	}
	src := netip.AddrPortFrom(host(port, hostFirst+rng.IntN(hostCount), v6), uint16(20000+rng.IntN(12000)))
	for src.Addr() == dst.Addr() {
		src = netip.AddrPortFrom(host(port, hostFirst+rng.IntN(hostCount), v6), src.Port())
	}
	if proto == testpkt.ProtoICMP {
		if v6 {
			proto = testpkt.ProtoICMPv6
		}
		dst = netip.AddrPortFrom(dst.Addr(), src.Port())
	}
	if rng.IntN(30) == 0 && len(c.nats) == 0 {
		proto, src, dst = protoGRE, netip.AddrPortFrom(src.Addr(), 0), netip.AddrPortFrom(dst.Addr(), 0)
	}
	tos := uint8(0)
	if rng.IntN(4) == 0 {
		tos = uint8(pick(rng, 10, 46, 12)) << 2
	}
	return flow{tuple{proto, src, dst}, port, tos}
}

// nextOp returns the next packet of a flow, usually a valid one.
func nextOp(rng *rand.Rand, f flow, index, step int) op {
	o := op{flow: index, ttl: 64, tos: f.tos, size: pick(rng, 20, 30, 100, 1200)}
	o.back = rng.IntN(2) == 0
	o.stranger = o.back && step > 4 && rng.IntN(12) == 0
	if step < 4 {
		o.back = step%2 == 1
	}
	if rng.IntN(20) == 0 {
		o.ttl = pick[uint8](rng, 1, 2, 255)
	}
	o.flags = testpkt.ACK | testpkt.PSH
	switch {
	case step == 0:
		o.flags, o.chunk = testpkt.SYN, 1
	case step == 1:
		o.flags, o.chunk = testpkt.SYN|testpkt.ACK, 2
	case step == 2:
		o.chunk = 10
	case step == 3:
		o.chunk = 11
	case rng.IntN(12) == 0:
		o.flags, o.chunk = testpkt.FIN|testpkt.ACK, 7
		o.blind = rng.IntN(2) == 0
	case rng.IntN(20) == 0:
		o.flags, o.chunk = testpkt.RST, 6
		o.blind = rng.IntN(2) == 0
	case rng.IntN(20) == 0:
		o.flags, o.chunk = testpkt.SYN, 1
		o.back = false
	}
	return o
}
