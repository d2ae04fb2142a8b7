// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// icmpError is an ICMP error about the last forwarded packet of a flow. Errors about a path MTU
// are left out, because later packets depend on them.
type icmpError struct {
	kind testpkt.ICMP
	from int // a different host on the same network; 0: the host that was reached
	// elsewhere is a host that gets the error instead of the sender of the quoted packet; nil: the
	// sender.
	elsewhere func(v6 bool) netip.Addr
	bytes     int // of the packet, after its IP header
}

func randomError(rng *rand.Rand) *icmpError {
	e := &icmpError{from: rng.IntN(hostCount), bytes: pick(rng, 8, 8, 40, 1200)}
	if rng.IntN(3) == 0 {
		port, i := rng.IntN(portCount), hostFirst+rng.IntN(hostCount)
		e.elsewhere = func(v6 bool) netip.Addr { return host(port, i, v6) }
	}
	e.kind.Type, e.kind.Code = testpkt.DestinationUnreachable, pick[uint8](rng, 0, 1, 3, 13)
	if rng.IntN(4) == 0 {
		e.kind.Type, e.kind.Code = 11, 0 // time exceeded
	}
	return e
}

// of returns e in the family of the packet that it is about.
func (e *icmpError) of(v6 bool) testpkt.ICMP {
	k := e.kind
	if k.V6 = v6; v6 {
		k.Code = map[uint8]uint8{0: 0, 1: 3, 3: 4, 13: 1}[k.Code]
		k.Type = map[uint8]uint8{testpkt.DestinationUnreachable: 1, 11: 3}[k.Type]
	}
	return k
}

// quote returns the IP packet of a frame in the form that an error quotes.
func quote(frame []byte, n int) []byte {
	header := 20
	if frame[14]>>4 == 6 {
		header = 40
	}
	return frame[14:min(14+header+n, len(frame))]
}

// expectedError is the model's prediction for an error: it must leave through a port in this form,
// or be dropped.
type expectedError struct {
	why      string
	port     int // -1: nowhere
	src, dst netip.Addr
	quoted   tuple
	perhaps  netip.Addr // its source may be this as well
}

// judgeError predicts the result of an error from src to dst about a packet that left with the
// tuple in quoted. false: the model does not know.
func (o *oracle) judgeError(in int, src, dst netip.Addr, quoted tuple) (e expectedError, ok bool) {
	e = expectedError{port: -1, src: src, dst: dst, quoted: quoted}
	if dst == quoted.src.Addr() {
		d := o.conns[quoted.turned()]
		if d == nil || d.ended || d.rules != o.rules || d.config != o.config || o.ghosts[quoted.turned()] || o.dead[quoted.turned()] {
			return e, false
		}
		e.why = "about a connection, and translated as its packets are"
		e.dst, e.quoted = d.out.dst.Addr(), d.out.turned()
		hidden := !d.reply && d.out.src.Addr() != quoted.dst.Addr() // RFC 5508, REQ-5
		switch {
		case src == quoted.dst.Addr() || hidden && o.config.translatesSource(d.nat):
			e.src = d.out.src.Addr()
		case hidden: // the service or a NAT rule may have translated it
			e.perhaps = d.out.src.Addr()
		}
		e.port, _, _ = route(e.dst)
		return e, true
	}
	p := &pkt{tuple: tuple{testpkt.ProtoICMP, netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)}, reply: true, ttl: 64}
	if src.Is6() {
		p.proto = testpkt.ProtoICMPv6
	}
	v := o.judge(in, p)
	e.why = "not to the sender of what it quotes, so it is a packet as any other: " + v.why
	out, _, _ := route(dst)
	switch {
	case v.accept == nil:
		return e, true
	case v.silent || v.accept(out, p.tuple) != nil:
		return e, false
	}
	e.port = out
	return e, true
}

// translatesSource reports whether a rule with this name translates sources.
func (c *config) translatesSource(name string) bool {
	return slices.ContainsFunc(c.nats, func(n *nat) bool { return n.name == name && n.kind != "dnat" })
}

// playError sends an error and compares the result with the model. false: there was nothing to
// judge.
func (s *site) playError(o *oracle, e *icmpError, last *reached) (told string, ok bool, err error) {
	if !last.seen {
		return "", false, nil
	}
	v6 := last.as.src.Addr().Is6()
	src, dst := last.as.dst.Addr(), last.as.src.Addr()
	if e.from != 0 {
		src = host(last.port, hostFirst+e.from, v6)
	}
	if e.elsewhere != nil {
		dst = e.elsewhere(v6)
	}
	if src == dst {
		return "", false, nil
	}
	want, ok := o.judgeError(last.port, src, dst, last.as)
	if !ok {
		return "", false, nil
	}
	kind := e.of(v6)
	var ip testpkt.Layer = testpkt.IPv6{Source: src, Destination: dst, HopLimit: 64}
	if !v6 {
		ip = testpkt.IPv4{Source: src, Destination: dst, TTL: 64, DontFragment: true}
	}
	frame := testpkt.Build(testpkt.Ethernet{Source: macOf(src), Destination: nodeMAC(last.port)}, ip, kind,
		testpkt.Raw(quote(last.frame, e.bytes)))
	out, err := s.sendError(last.port, frame, want.port >= 0)
	if err != nil {
		return "", true, err
	}
	told = fmt.Sprintf("into %s: ICMP type %d code %d of %s to %s about %s\n        model: %s\n        came out: %s\n",
		device(last.port), kind.Type, kind.Code, src, dst, last.as, want.why, describeErrors(out))
	return told, true, want.differs(kind, out)
}

// sendError sends a frame and returns the ICMP errors that came out.
func (s *site) sendError(port int, frame []byte, expected bool) (out []output, err error) {
	if err := s.taps[port].Send(frame); err != nil {
		return nil, err
	}
	begin := time.Now()
	for {
		for i, tap := range s.taps {
			err := tap.Receive(func(frame []byte) {
				if isError(frame) && !isRedirect(frame) {
					out = append(out, output{i, bytes.Clone(frame)})
				}
			})
			if err != nil {
				return nil, err
			}
		}
		patience := time.Millisecond
		if expected && len(out) == 0 {
			patience = time.Second
		}
		if time.Since(begin) > patience {
			return out, nil
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// differs returns how the output differs from the expected one.
func (e *expectedError) differs(kind testpkt.ICMP, out []output) error {
	switch {
	case e.port < 0 && len(out) == 0:
		return nil
	case e.port < 0:
		return fmt.Errorf("nothing was to come out")
	case len(out) != 1:
		return fmt.Errorf("%d errors came out, want one by %s", len(out), device(e.port))
	}
	p := testpkt.Parse(out[0].frame)
	got := tuple{e.quoted.proto, p.Embedded.Source(), p.Embedded.Destination()}
	if err := p.CheckOuter(); err != nil {
		return err
	}
	if p.Source().Addr() == e.perhaps {
		e.src = e.perhaps
	}
	_, mac, _ := route(e.dst)
	want := []any{e.port, e.src, e.dst, e.quoted, kind.Type, kind.Code, mac, uint8(63)}
	have := []any{out[0].port, p.Source().Addr(), p.Destination().Addr(), got, p.ICMP.Type, p.ICMP.Code, p.Ethernet.Destination, p.TTL()}
	if !slices.Equal(want, have) {
		return fmt.Errorf("came out as %v, want %v", have, want)
	}
	return nil
}

func describeErrors(out []output) string {
	if len(out) == 0 {
		return "nothing"
	}
	text := ""
	for _, o := range out {
		p := testpkt.Parse(o.frame)
		text += fmt.Sprintf("%s > %s about %s > %s by %s; ", p.Source().Addr(), p.Destination().Addr(), p.Embedded.Source(), p.Embedded.Destination(), device(o.port))
	}
	return text
}
