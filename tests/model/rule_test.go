// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// ask returns the rule that decides about a packet with p's fields that arrives on a port; nil: no
// rule does, so the packet is allowed.
func (c *config) ask(in int, p *pkt) *rule {
	hook := "forward"
	out, _, local := route(p.dst.Addr())
	if local {
		hook, out = "input", -1
	}
	var best *rule
	for _, r := range c.rules {
		if !slices.Contains(r.hooks, hook) || !c.matches(&r.match, in, out, p) {
			continue
		}
		if best == nil || r.priority < best.priority || r.priority == best.priority && r.name < best.name {
			best = r
		}
	}
	return best
}

func (c *config) matches(m *match, in, out int, p *pkt) bool {
	return c.holds(m.src, m.srcGroups, p.src.Addr()) && c.holds(m.dst, m.dstGroups, p.dst.Addr()) &&
		oneOf(m.protos, p.proto) && oneOf(m.in, in) && oneOf(m.out, out) && oneOf(m.dscp, p.tos>>2) &&
		inRanges(m.ports, p.proto, p.dst.Port()) && inRanges(m.sourcePorts, p.proto, p.src.Port()) &&
		(m.flagMask == 0 || p.proto == testpkt.ProtoTCP && p.flags&m.flagMask == m.flagSet)
}

func (c *config) holds(prefixes []netip.Prefix, groups []string, a netip.Addr) bool {
	if len(prefixes)+len(groups) == 0 {
		return true
	}
	contains := func(p netip.Prefix) bool { return p.Contains(a) }
	if slices.ContainsFunc(prefixes, contains) {
		return true
	}
	for _, g := range c.groups {
		if slices.Contains(groups, g.name) && slices.ContainsFunc(g.members, contains) {
			return true
		}
	}
	return false
}

func oneOf[V comparable](all []V, v V) bool { return len(all) == 0 || slices.Contains(all, v) }

func inRanges(all []portRange, proto uint8, port uint16) bool {
	return len(all) == 0 || hasPorts(proto) && slices.ContainsFunc(all, func(r portRange) bool { return r.has(port) })
}

// filtered applies the firewall to a packet that belongs to no connection. over is false if the
// packet is allowed; untracked is set if a stateless rule allows it, so it opens no connection.
func (o *oracle) filtered(in int, p *pkt) (v verdict, untracked, over bool) {
	r := o.config.ask(in, p)
	switch {
	case r == nil:
		return verdict{}, false, false
	case r.action == "allow":
		return verdict{}, r.stateless, false
	case r.action == "reject":
		return verdict{why: "rule " + r.name + " rejects it", told: refusal(p)}, false, true
	}
	return verdict{why: "rule " + r.name + " denies it", told: notTold}, false, true
}

// refusal returns whether the sender of a rejected packet is notified.
func refusal(p *pkt) answer {
	switch {
	case p.proto == testpkt.ProtoTCP && p.flags&testpkt.RST != 0:
		return notTold
	case p.proto == testpkt.ProtoSCTP && (p.chunk == 6 || p.chunk == 11 || p.chunk == 14):
		return notTold // RFC 9260, section 8.4
	}
	return ratedTold
}

// asked evaluates the rules again for a known connection, if they have changed since. An answer
// does not contain the DSCP of the first packet: if a rule depends on it, nothing changes until a
// packet from the initiator arrives.
func (o *oracle) asked(in int, p *pkt, d *direction) (v verdict, over bool) {
	if d.rules == o.rules || len(o.config.rules) == 0 {
		return verdict{}, false
	}
	if d.reply && slices.ContainsFunc(o.config.rules, func(r *rule) bool { return len(r.match.dscp) > 0 }) {
		return verdict{}, false
	}
	first := *p
	first.tuple, first.flags, first.reply = d.began, testpkt.SYN, false
	v, _, over = o.filtered(d.in, &first)
	if !over {
		d.rules = o.rules
		return verdict{}, false
	}
	delete(o.conns, p.tuple)
	delete(o.conns, d.out.turned())
	if o.mayChange(p, d) {
		// The connection may have ended before, so that to the node this packet does not belong to
		// it.
		o.ghosts[p.tuple], o.ghosts[p.turned()], o.ghosts[d.out.turned()] = true, true, true
		return verdict{why: "asked again or anew: " + v.why, silent: true, accept: func(_ int, got tuple) error {
			o.ghosts[got.turned()] = true
			return nil
		}}, true
	}
	o.dead[p.tuple], o.dead[d.out.turned()] = true, true
	v.why = "asked again: " + v.why
	if v.told == surelyTold || v.told == ratedTold {
		v.told = refusal(p)
	}
	return v, true
}
