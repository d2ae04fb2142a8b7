// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// oracle is the model: its configuration, and the packets it has seen.
type oracle struct {
	config *config
	rules  int // counts how often they changed
	conns  map[tuple]*direction
	sticky map[string]netip.AddrPort  // choices that must be repeated
	maps   map[mapping]netip.AddrPort // outer address and port
	// strangers holds the inner addresses of mappings that are open to all, by the outer ones.
	strangers map[mapping]netip.AddrPort
	blocks    map[string]netip.Addr // blocks of ports, with their inner address
	// ghosts are connections whose translation is unknown: their packet's TTL expired.
	ghosts map[tuple]bool
	// dead are connections that a rule ended. Their packets may be dropped for a while.
	dead map[tuple]bool
}

// direction is one direction of a connection: packets that arrive with its key leave with out.
type direction struct {
	*conn
	out   tuple
	reply bool
	told  bool // TCP: it has acknowledged something; SCTP: its verification tag is known
}

// conn is a connection, with the decision about it.
type conn struct {
	service string
	nat     string // rule
	backend netip.AddrPort
	ended   bool // perhaps: a FIN or RST was seen
	config  *config
	rules   int   // version that allowed it
	began   tuple // of its first packet, as it came in
	in      int   // on this port
}

// verdict is the model's prediction for a packet.
type verdict struct {
	why string
	// accept returns an error if the packet may not leave through a port with a tuple; otherwise it
	// learns the tuple. nil: the packet may not leave at all.
	accept func(out int, got tuple) error
	silent bool // the packet may also be dropped
	// told is whether the node must notify the sender that the packet was not forwarded.
	told answer
	// about is a different packet that the report may be about; the zero value: none.
	about tuple
}

type answer int

const (
	perhapsTold answer = iota
	notTold
	surelyTold
	ratedTold // unless the rate limit is exceeded
)

func newOracle() *oracle {
	o := &oracle{config: &config{}}
	o.forget()
	return o
}

// forget applies a flush.
func (o *oracle) forget() {
	o.conns, o.sticky, o.maps = map[tuple]*direction{}, map[string]netip.AddrPort{}, map[mapping]netip.AddrPort{}
	o.dead, o.ghosts, o.strangers, o.blocks = map[tuple]bool{}, map[tuple]bool{}, map[mapping]netip.AddrPort{}, map[string]netip.Addr{}
}

// told sets a new configuration. Connections continue.
func (o *oracle) told(c *config) {
	if !reflect.DeepEqual(c.rules, o.config.rules) || !reflect.DeepEqual(c.groups, o.config.groups) {
		o.rules++
	}
	before := o.config
	o.config = c
	o.sticky = map[string]netip.AddrPort{}
	if reflect.DeepEqual(c.nats, before.nats) {
		return
	}
	o.maps, o.blocks = map[mapping]netip.AddrPort{}, map[string]netip.Addr{}
	for outer := range o.strangers {
		o.strangers[outer] = netip.AddrPort{} // the rule may have been deleted
	}
}

// judge predicts the result of a packet that arrives on a port.
func (o *oracle) judge(in int, p *pkt) verdict {
	v := o.way(in, p)
	if v.accept != nil && p.ttl <= 1 {
		told := ratedTold
		if v.silent {
			told = perhapsTold
		}
		d := o.conns[p.tuple]
		if d != nil && !o.mayChange(p, d) {
			o.note(p, d)
		} else {
			o.ghosts[p.tuple], o.ghosts[p.turned()] = true, true
		}
		if d != nil && o.mayChange(p, d) {
			o.ghosts[d.out.turned()] = true
			delete(o.conns, p.tuple)
			delete(o.conns, d.out.turned())
		}
		ends := verdict{why: v.why + "; but its TTL ends", told: told}
		if other := o.conns[p.turned()]; d == nil && other != nil {
			ends.about = other.out.turned() // as if it were an answer in that connection, translated
		}
		return ends
	}
	return v
}

// way predicts the result without the effect of the packet's TTL.
func (o *oracle) way(in int, p *pkt) verdict {
	if o.ghosts[p.tuple] {
		return verdict{why: "as decided for an earlier unobserved packet, or as a new connection", silent: true, accept: func(out int, got tuple) error {
			o.ghosts[got.turned()] = true
			if s := o.config.natRule(in, out, p, "snat", "masquerade"); s != nil && s.filtering && got.src != p.src {
				// It has a mapping that other hosts may use: this one, or by now a different one.
				o.strangers[mapping{proto: p.proto, inner: got.src}] = netip.AddrPort{}
			}
			return leaves(out, got)
		}}
	}
	d := o.conns[p.tuple]
	if d == nil {
		v := o.open(in, p)
		if o.dead[p.tuple] {
			v.why, v.silent, v.told = v.why+", or ended by a rule", true, perhapsTold
		}
		return v
	}
	if v, over := o.asked(in, p, d); over {
		return v
	}
	goesOn := verdict{why: "continues as " + d.out.String(), accept: func(out int, got tuple) error {
		if err := leaves(out, got); err != nil {
			return err
		}
		if got != d.out {
			return fmt.Errorf("of a connection that leaves as %s, this one left as %s", d.out, got)
		}
		o.note(p, d)
		return nil
	}}
	if !o.mayChange(p, d) {
		return goesOn
	}
	// A new connection in place of a connection that may have ended, or that lost its backend.
	anew := o.open(in, p)
	return verdict{
		why: "continues as " + d.out.String() + ", or anew: " + anew.why,
		// A packet that arrives while its connection is deleted is dropped.
		silent: anew.accept == nil || anew.silent || d.service != "" && !d.reopens(p),
		accept: func(out int, got tuple) error {
			if err := goesOn.accept(out, got); err == nil || anew.accept == nil {
				return err
			}
			if err := anew.accept(out, got); err != nil {
				return err
			}
			if o.conns[p.tuple] == d { // the packet opened no connection, and this one is gone
				delete(o.conns, p.tuple)
				delete(o.conns, d.out.turned())
			}
			return nil
		},
	}
}

// mayChange reports whether the packet may be judged as the first of a connection although its
// connection is known.
func (o *oracle) mayChange(p *pkt, d *direction) bool {
	if d.reopens(p) {
		return true
	}
	if d.service == "" {
		return d.config != o.config // by now there may be a service or a rule for it
	}
	for _, s := range o.config.services {
		if s.name != d.service {
			continue
		}
		for _, b := range s.backends {
			if b.addr == d.backend {
				return b.state == "down"
			}
		}
	}
	return true
}

// reopens reports whether the packet reopens a connection that may have ended.
func (d *direction) reopens(p *pkt) bool {
	return d.ended && !d.reply && (p.proto == testpkt.ProtoTCP && p.flags&testpkt.SYN != 0 || p.proto == testpkt.ProtoSCTP && p.chunk == 1)
}

// leaves checks that a packet leaves through the port of its route.
func leaves(out int, got tuple) error {
	if port, _, local := route(got.dst.Addr()); local || port != out {
		return fmt.Errorf("%s left by %s, and the route says %s", got, device(out), device(port))
	}
	return nil
}

// note updates the connection from the packet.
func (o *oracle) note(p *pkt, d *direction) {
	over := p.proto == testpkt.ProtoTCP && p.flags&(testpkt.FIN|testpkt.RST) != 0 ||
		p.proto == testpkt.ProtoSCTP && slices.Contains([]uint8{6, 7, 8, 14}, p.chunk)
	known := d.told
	if twin := o.conns[d.out.turned()]; p.proto == testpkt.ProtoTCP {
		known = twin != nil && twin.told
	}
	if over && (p.blind == 0 || !known) {
		d.ended = true
	}
	if p.proto == testpkt.ProtoSCTP && p.chunk != 1 && p.blind == 0 || p.flags&(testpkt.ACK|testpkt.RST) == testpkt.ACK && p.blind == 0 {
		d.told = true
	}
}

// enter records a connection whose first packet left with the tuple got.
func (o *oracle) enter(in int, p *pkt, got tuple, c *conn) {
	if old := o.conns[p.tuple]; old != nil {
		delete(o.conns, old.out.turned())
	}
	c.config, c.rules, c.began, c.in = o.config, o.rules, p.tuple, in
	o.conns[p.tuple] = &direction{conn: c, out: got}
	o.conns[got.turned()] = &direction{conn: c, out: p.turned(), reply: true}
	o.note(p, o.conns[p.tuple])
}

// open judges the first packet of a connection.
func (o *oracle) open(in int, p *pkt) verdict {
	v, untracked, over := o.filtered(in, p)
	switch s := o.serviceOf(p); {
	case over:
		return v
	case s != nil: // tracked even with a stateless rule
		return o.balance(in, p, s)
	}
	return o.translate(in, p, untracked)
}

// untracked judges a packet that a stateless rule allowed: it is routed, and opens no connection.
func (o *oracle) untracked(p *pkt) verdict {
	v := o.plain(-1, p)
	v.why += ", by a stateless rule"
	return v
}

// plain judges a packet that is routed without translation. in is -1 if it opens no connection.
func (o *oracle) plain(in int, p *pkt) verdict {
	if _, _, local := route(p.dst.Addr()); local {
		return verdict{why: "for the node itself"}
	}
	return verdict{why: "routed", accept: func(out int, got tuple) error {
		if err := leaves(out, got); err != nil {
			return err
		}
		// If its answers have the tuple of another connection, only a port distinguishes the two.
		other := o.conns[p.turned()]
		apart := hasPorts(p.proto) && other != nil &&
			got.dst == p.dst && got.src.Addr() == p.src.Addr()
		if got != p.tuple && !apart {
			return fmt.Errorf("nothing translates %s, and it left as %s", p.tuple, got)
		}
		switch {
		case in < 0 || !opens(p):
		case other != nil && got == p.tuple:
			// Its answers have the tuple of another connection: this one is not tracked, unless the
			// other is gone by now.
			o.ghosts[p.tuple] = true
			if other.ended || o.mayChange(p, other) {
				o.ghosts[p.turned()] = true
			}
		default:
			o.enter(in, p, got, &conn{})
		}
		return nil
	}}
}

// opens reports whether a packet that nothing translates opens a connection.
func opens(p *pkt) bool {
	switch {
	case p.proto == testpkt.ProtoTCP:
		return p.flags&(testpkt.FIN|testpkt.RST) == 0
	case isICMP(p.proto):
		return !p.reply
	}
	return hasPorts(p.proto) && (p.proto != testpkt.ProtoSCTP || !slices.Contains([]uint8{6, 7, 14}, p.chunk))
}
