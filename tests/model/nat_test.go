// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// mapping is an inner address and port that a rule maps to the same outer address and port,
// whatever the destination.
type mapping struct {
	rule  string
	proto uint8
	inner netip.AddrPort
	outer netip.Addr
}

// natRule returns the rule of the given kinds that applies to the first packet of a connection;
// nil: no rule does.
func (c *config) natRule(in, out int, p *pkt, kinds ...string) *nat {
	var best *nat
	for _, n := range c.nats {
		if !slices.Contains(kinds, n.kind) || !c.matches(&n.match, in, out, p) {
			continue
		}
		if best == nil || n.priority < best.priority || n.priority == best.priority && n.name < best.name {
			best = n
		}
	}
	return best
}

// translate judges the first packet of a connection that belongs to no service. A translated
// connection is tracked, even if the firewall's rule is stateless.
func (o *oracle) translate(in int, p *pkt, untracked bool) verdict {
	plain := func() verdict {
		if untracked {
			return o.untracked(p)
		}
		return o.plain(in, p)
	}
	if opens(p) {
		if d := o.config.natRule(in, -1, p, "dnat"); d != nil && d.hasFamily(p) {
			return o.redirect(in, p, d)
		}
		if inner, known := o.strangers[mapping{proto: p.proto, inner: p.dst}]; known {
			if isICMP(p.proto) { // other hosts may or may not ping through a mapping
				o.ghosts[p.tuple], o.ghosts[p.turned()] = true, true
				return verdict{why: "perhaps by a mapping", silent: true, accept: func(int, tuple) error { return nil }}
			}
			if !inner.IsValid() {
				return o.perhapsByMapping(in, p, o.translateSource(in, p, plain))
			}
			return o.byMapping(in, p, inner)
		}
	}
	return o.translateSource(in, p, plain)
}

// translateSource judges a packet whose destination is not translated.
func (o *oracle) translateSource(in int, p *pkt, plain func() verdict) verdict {
	out, _, local := route(p.dst.Addr())
	if local {
		return plain()
	}
	if o.config.alone(p.dst.Addr()) {
		return verdict{why: "for an address that only translations use", told: notTold}
	}
	s := o.config.natRule(in, out, p, "snat", "masquerade")
	switch {
	case s == nil || !s.hasFamily(p):
		return plain()
	case !opens(p):
		return o.noneOf(p, s)
	}
	return verdict{why: "rule " + s.name + " translates its source", accept: func(out int, got tuple) error {
		if err := leaves(out, got); err != nil {
			return err
		}
		// For ICMP echo, both ports are the identifier, which is translated.
		if got.dst.Addr() != p.dst.Addr() || got.dst != p.dst && !isICMP(p.proto) {
			return fmt.Errorf("its destination became %s", got.dst)
		}
		if err := o.outer(out, p, s, got); err != nil {
			return err
		}
		o.enter(in, p, got, &conn{nat: s.name})
		return nil
	}}
}

// alone reports whether an address is used only by translations.
func (c *config) alone(a netip.Addr) bool {
	return slices.ContainsFunc(c.nats, func(n *nat) bool {
		return n.kind == "snat" && slices.ContainsFunc(n.addresses, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// noneOf judges a packet that belongs to no connection and opens none, but that a rule would
// translate: with its inner source it must not leave to a network from which answers could return.
func (o *oracle) noneOf(p *pkt, s *nat) verdict {
	v := verdict{why: "rule " + s.name + " would translate its source, and it begins no connection"}
	if p.proto != testpkt.ProtoTCP {
		v.silent = true
		v.accept = func(out int, got tuple) error {
			if got != p.tuple {
				return fmt.Errorf("it left as %s", got)
			}
			return leaves(out, got)
		}
	}
	return v
}

// redirect judges the first packet of a connection whose destination a rule translates.
func (o *oracle) redirect(in int, p *pkt, d *nat) verdict {
	return verdict{why: "rule " + d.name + " translates its destination", accept: func(out int, got tuple) error {
		if err := leaves(out, got); err != nil {
			return err
		}
		if err := d.target(p, got.dst); err != nil {
			return err
		}
		if err := o.turnedSource(in, out, p, got); err != nil {
			return err
		}
		o.enter(in, p, got, &conn{nat: d.name})
		return nil
	}}
}

// turnedSource checks the source of a connection whose destination was translated.
func (o *oracle) turnedSource(in, out int, p *pkt, got tuple) error {
	if in != out {
		if s := o.config.natRule(in, out, p, "snat", "masquerade"); s != nil && s.hasFamily(p) {
			return o.outer(out, p, s, got)
		}
	}
	return o.source(in, out, p, &service{source: "auto"}, got)
}

// hasFamily reports whether a rule can translate addresses of p's family.
func (n *nat) hasFamily(p *pkt) bool {
	if len(n.addresses) == 0 || n.oneToOne {
		return true
	}
	return slices.ContainsFunc(n.addresses, func(a netip.Prefix) bool { return a.Addr().Is6() == p.src.Addr().Is6() })
}

// target checks the translated destination.
func (n *nat) target(p *pkt, got netip.AddrPort) error {
	want := p.dst.Port()
	if len(n.ports) > 0 && hasPorts(p.proto) {
		want = n.ports[0].first
		if n.ports[0].first != n.ports[0].last {
			want += p.dst.Port() - n.match.ports[0].first
		}
	}
	if got.Port() != want && !isICMP(p.proto) {
		return fmt.Errorf("its destination's port became %d, want %d", got.Port(), want)
	}
	switch {
	case n.oneToOne:
		if want := n.counterpart(n.match.dst, p.dst.Addr()); got.Addr() != want {
			return fmt.Errorf("its destination became %s, and its counterpart is %s", got, want)
		}
	case len(n.addresses) > 0:
		if !slices.ContainsFunc(n.addresses, func(a netip.Prefix) bool { return a.Contains(got.Addr()) }) {
			return fmt.Errorf("its destination became %s, which is none of %s", got, n.addresses)
		}
	case got.Addr() != p.dst.Addr():
		return fmt.Errorf("its destination became %s", got)
	}
	return nil
}

// counterpart returns the address to which the address a is translated one-to-one.
func (n *nat) counterpart(from []netip.Prefix, a netip.Addr) netip.Addr {
	for i, p := range from {
		if !p.Contains(a) {
			continue
		}
		to, b := n.addresses[i].Addr().AsSlice(), a.AsSlice()
		for bit := p.Bits(); bit < len(b)*8; bit++ {
			mask := byte(0x80) >> (bit % 8)
			to[bit/8] = to[bit/8]&^mask | b[bit/8]&mask
		}
		r, _ := netip.AddrFromSlice(to)
		return r
	}
	return netip.Addr{}
}

// outer checks the source that a rule gave to a connection.
func (o *oracle) outer(out int, p *pkt, s *nat, got tuple) error {
	if taken := o.conns[got.turned()]; taken != nil && taken.out != p.turned() {
		return fmt.Errorf("%s is that of another connection, whose answers go out as %s", got, taken.out)
	}
	a := got.src.Addr()
	if s.oneToOne {
		if want := s.counterpart(s.match.src, p.src.Addr()); a != want || got.src.Port() != p.src.Port() {
			return fmt.Errorf("its source became %s, and its counterpart is %s", got.src, want)
		}
		return nil
	}
	if s.kind == "masquerade" && a != portAddr(out, a.Is6()) {
		return fmt.Errorf("its source became %s, and the device has %s", got.src, portAddr(out, a.Is6()))
	}
	if s.kind == "snat" && !slices.ContainsFunc(s.addresses, func(q netip.Prefix) bool { return q.Contains(a) }) {
		return fmt.Errorf("its source became %s, which is none of %s", got.src, s.addresses)
	}
	ports := s.ports
	if len(ports) == 0 {
		ports = []portRange{{1024, 65535}}
	}
	if !slices.ContainsFunc(ports, func(r portRange) bool { return r.has(got.src.Port()) }) {
		return fmt.Errorf("its source became %s, with a port that is none of %s", got.src, ports)
	}
	if s.kind == "masquerade" {
		if err := ownPort(got.src.Port()); err != nil {
			return err
		}
	}
	if err := o.ownBlock(p, s, got.src, ports); err != nil {
		return err
	}
	if !s.mapping {
		return nil
	}
	m := mapping{s.name, p.proto, p.src, a}
	if before, known := o.maps[m]; known && before != got.src {
		return fmt.Errorf("its source became %s, and is mapped to %s", got.src, before)
	}
	o.maps[m] = got.src
	if s.filtering {
		o.strangers[mapping{proto: p.proto, inner: got.src}] = p.src
	}
	return nil
}

// ownBlock checks that a port is in a block that belongs only to the inner address.
func (o *oracle) ownBlock(p *pkt, s *nat, outer netip.AddrPort, ports []portRange) error {
	if s.block == 0 {
		return nil
	}
	at := int(outer.Port()) - int(ports[0].first)
	if len(s.ports) == 0 && outer.Port() > 60999 {
		at -= 60999 - 32767 // the node's own port range is excluded
	}
	block := fmt.Sprintf("%s %s %d", s.name, outer.Addr(), at/s.block)
	if owner, known := o.blocks[block]; known && owner != p.src.Addr() {
		return fmt.Errorf("its source became %s, in a block of %s", outer, owner)
	}
	o.blocks[block] = p.src.Addr()
	return nil
}

// perhapsByMapping judges the first packet from another host to a mapping whose rule may no longer
// exist or admit other hosts; the verdict in otherwise is possible as well.
func (o *oracle) perhapsByMapping(in int, p *pkt, otherwise verdict) verdict {
	mapped := o.byMapping(in, p, netip.AddrPort{})
	return verdict{why: "perhaps by a mapping, otherwise " + otherwise.why, silent: true, accept: func(out int, got tuple) error {
		if otherwise.accept == nil {
			return mapped.accept(out, got)
		}
		err := otherwise.accept(out, got)
		if err == nil || mapped.accept(out, got) == nil {
			return nil
		}
		return err
	}}
}

// byMapping judges the first packet from another host to a mapping that is open to all.
func (o *oracle) byMapping(in int, p *pkt, inner netip.AddrPort) verdict {
	return verdict{why: "by the mapping of " + inner.String(), silent: !inner.IsValid(), accept: func(out int, got tuple) error {
		if err := leaves(out, got); err != nil {
			return err
		}
		if inner.IsValid() && (got.dst != inner && !isICMP(p.proto) || got.dst.Addr() != inner.Addr()) {
			return fmt.Errorf("its destination became %s", got.dst)
		}
		// The model leaves open whether rules translate the other host's source, too.
		if err := o.source(in, out, p, &service{source: "auto"}, got); err != nil {
			if s := o.config.natRule(in, out, p, "snat", "masquerade"); s == nil || o.outer(out, p, s, got) != nil {
				return err
			}
		}
		o.enter(in, p, got, &conn{nat: "mapping"})
		return nil
	}}
}
