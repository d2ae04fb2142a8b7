// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// flow is a conversation: its first tuple, and the port on which it arrives.
type flow struct {
	tuple
	port int
	tos  uint8
}

// op is one thing that happens: a new configuration, or a packet of a flow.
type op struct {
	config *config // nil: a packet
	flow   int
	about  *icmpError // instead of a packet, about the last forwarded packet
	// back is a packet from the host that the flow's last packet reached, to that packet's source.
	back         bool
	stranger     bool // with back: from a different host on the same network
	flags, chunk uint8
	blind        bool // with a guessed sequence number or verification tag
	ttl, tos     uint8
	size         int
}

// scenario is the content of one seed.
type scenario struct {
	flows []flow
	ops   []op
}

// reached is the port through which the last packet of a flow left, and its tuple there.
type reached struct {
	seen bool
	port int
	as   tuple
	mac  [6]byte
	// frame is the packet as it left.
	frame []byte
}

// play executes a scenario and compares the result with the model. It returns how many packets were
// judged, and the story if something differs.
func (s *site) play(sc *scenario) (judged int, story string, err error) {
	o := newOracle()
	last := make([]reached, len(sc.flows))
	var b strings.Builder
	if err := s.flush(); err != nil {
		return 0, "", fmt.Errorf("flush: %w", err)
	}
	if len(sc.ops) > 0 && sc.ops[0].config == nil {
		if err := s.configure(nil); err != nil {
			return 0, "", fmt.Errorf("configure nothing: %w", err)
		}
	}
	for i, op := range sc.ops {
		if op.config != nil {
			fmt.Fprintf(&b, "%4d. configuration:\n%s", i, op.config)
			if err := s.configure(op.config.objects()); err != nil {
				var refused *api.Error
				if errors.As(err, &refused) && refused.Reason() == api.ReasonInvalid {
					s.refused++
					return judged, "", nil
				}
				return judged, "", fmt.Errorf("%s\nconfigure: %w", b.String(), err)
			}
			o.told(op.config)
			if op.config.asksPackets() {
				// After a change, connections are evaluated again by their next packet, as if it
				// were the SYN that opened them.
				time.Sleep(200 * time.Millisecond)
			}
			continue
		}
		if op.about != nil {
			told, ok, err := s.playError(o, op.about, &last[op.flow])
			if !ok {
				continue
			}
			judged++
			fmt.Fprintf(&b, "%4d. %s", i, told)
			if err != nil {
				return judged, fmt.Sprintf("%s        BUT: %v\n", b.String(), err), nil
			}
			continue
		}
		p, port, mac, ok := s.packet(sc, op, last)
		if !ok {
			continue
		}
		before := o.conns[p.tuple]
		if before != nil {
			copied := *before
			copied.conn = &conn{service: before.service, ended: before.ended} // judging changes it
			before = &copied
		}
		v := o.judge(port, p)
		if v.told == ratedTold {
			v.told = s.rated()
		}
		judged++
		fmt.Fprintf(&b, "%4d. into %s: %s\n        model: %s\n", i, device(port), p, v.why)
		frame := p.frame(mac, nodeMAC(port))
		out, told := s.send(port, frame, p, v)
		for range told {
			s.refusals = append(s.refusals, time.Now())
		}
		fmt.Fprintf(&b, "        came out: %s\n", describe(out, told))
		if err := s.compare(o, p, port, v, out, told, op, &last[op.flow]); err != nil {
			return judged, fmt.Sprintf("%s        BUT: %v\n", b.String(), err), nil
		}
		a := &arrival{port, frame, slices.Concat(out, told), before, v}
		if err := s.checkCopies(o.config, a); err != nil {
			return judged, fmt.Sprintf("%s        BUT: %v\n", b.String(), err), nil
		}
	}
	return judged, "", nil
}

// packet builds the packet of an op. false: there is no packet, because nothing has been reached
// yet.
func (s *site) packet(sc *scenario, op op, last []reached) (p *pkt, port int, mac [6]byte, ok bool) {
	s.marks++
	f := sc.flows[op.flow]
	payload := fmt.Sprintf("<packet %d>", s.marks)
	p = &pkt{
		tuple: f.tuple, flags: op.flags, chunk: op.chunk, seq: 1000, ack: 5000, ttl: op.ttl, tos: op.tos, id: uint16(s.marks),
		payload: payload + strings.Repeat("x", max(0, op.size-len(payload))),
	}
	if op.blind {
		p.blind = blindBy
	}
	if !op.back {
		return p, f.port, macOf(f.src.Addr()), true
	}
	to := last[op.flow]
	p.tuple, p.reply, p.seq, p.ack = to.as.turned(), isICMP(f.proto), 5000, 1000
	if op.stranger && to.seen {
		other := host(to.port, hostFirst+(op.size+op.flow)%hostCount, p.src.Addr().Is6())
		p.src, to.mac, p.reply = netip.AddrPortFrom(other, p.src.Port()), macOf(other), false
	}
	return p, to.port, to.mac, to.seen
}

func macOf(a netip.Addr) [6]byte {
	_, mac, _ := route(a)
	return mac
}

// output is a frame that came out.
type output struct {
	port  int
	frame []byte
}

// send sends a frame and returns the result: the packet itself, and the node's answers to its
// sender.
func (s *site) send(port int, frame []byte, p *pkt, v verdict) (out, told []output) {
	mark := markOf(frame)
	if err := s.taps[port].Send(frame); err != nil {
		s.t.Fatalf("%s into %s: %v", p, device(port), err)
	}
	deadline := time.Now().Add(time.Second)
	for {
		for i, tap := range s.taps {
			err := tap.Receive(func(frame []byte) {
				switch {
				case isRedirect(frame):
				case !bytes.Contains(frame, []byte(mark)):
					if isReset(frame, p) {
						told = append(told, output{i, frame})
					} else if late := markOf(frame); late != "" && s.late[late] {
						s.t.Errorf("came out after all, of %s: %s", late, testpkt.Parse(frame))
					}
				case isError(frame), isEcho(frame, p):
					told = append(told, output{i, frame})
				default:
					out = append(out, output{i, frame})
				}
			})
			if err != nil {
				s.t.Fatalf("%s: %v", device(i), err)
			}
		}
		missing := v.accept != nil && !v.silent && len(out) == 0 || v.told == surelyTold && len(told) == 0
		if !missing || time.Now().After(deadline) {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	if len(out) == 0 {
		s.late[mark] = true
	}
	return out, told
}

// compare returns how the output differs from the model, which learns from it.
func (s *site) compare(o *oracle, p *pkt, port int, v verdict, out, told []output, op op, last *reached) error {
	switch {
	case len(out) > 1:
		return fmt.Errorf("%d packets came of one", len(out))
	case len(out) == 1 && v.accept == nil:
		return fmt.Errorf("nothing was to come out")
	case len(out) == 0 && v.accept != nil && !v.silent:
		return fmt.Errorf("nothing came out")
	case len(told) == 0 && v.told == surelyTold:
		return fmt.Errorf("its sender was not notified")
	case len(told) > 0 && v.told == notTold:
		return fmt.Errorf("its sender was notified")
	}
	for _, t := range told {
		if err := s.checkReply(p, port, t, v.about); err != nil {
			return err
		}
	}
	if len(out) == 0 {
		return nil
	}
	got, _ := tupleOf(out[0].frame)
	if err := v.accept(out[0].port, got); err != nil {
		return err
	}
	_, mac, _ := route(got.dst.Addr())
	want := *p
	want.tuple, want.ttl = got, p.ttl-1
	if diff := testpkt.Diff(want.frame(nodeMAC(out[0].port), mac), out[0].frame); diff != "" {
		return fmt.Errorf("the packet is not as it should be (-):\n%s", diff)
	}
	if !op.back {
		*last = reached{seen: true, port: out[0].port, as: got, mac: mac, frame: bytes.Clone(out[0].frame)}
	}
	return nil
}

// checkReply checks the node's own reply to p: an ICMP error, a reset or an echo reply.
func (s *site) checkReply(p *pkt, port int, reply output, about tuple) error {
	q := testpkt.Parse(reply.frame)
	if reply.port != port || q.Destination().Addr() != p.src.Addr() {
		return fmt.Errorf("the reply is to %s by %s, and the sender is %s behind %s", q.Destination(), device(reply.port), p.src, device(port))
	}
	if err := q.CheckOuter(); err != nil {
		return fmt.Errorf("the reply to its sender is broken: %w", err)
	}
	isOf := func(t tuple) bool { return q.Embedded.Source() == t.src && q.Embedded.Destination() == t.dst }
	if q.Embedded != nil && !isOf(p.tuple) && !isOf(about) {
		return fmt.Errorf("the reply to its sender is about %s > %s", q.Embedded.Source(), q.Embedded.Destination())
	}
	return nil
}

func describe(out, told []output) string {
	var parts []string
	for _, o := range out {
		k, _ := tupleOf(o.frame)
		parts = append(parts, fmt.Sprintf("%s by %s", k, device(o.port)))
	}
	for _, o := range told {
		k, _ := tupleOf(o.frame)
		parts = append(parts, fmt.Sprintf("(told: %s by %s)", k, device(o.port)))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func markOf(frame []byte) string {
	_, rest, found := bytes.Cut(frame, []byte("<packet "))
	number, _, closed := bytes.Cut(rest, []byte(">"))
	if !found || !closed {
		return ""
	}
	return "<packet " + string(number) + ">"
}

func isError(frame []byte) bool {
	p := testpkt.Parse(frame)
	return p.Embedded != nil
}

// isRedirect reports whether a frame is an ICMPv6 redirect, which the kernel sends at will.
func isRedirect(frame []byte) bool {
	p := testpkt.Parse(frame)
	return p.ICMP != nil && p.ICMP.V6 && p.ICMP.Type == 137
}

// isEcho reports whether a frame is the answer from p's destination.
func isEcho(frame []byte, p *pkt) bool {
	q := testpkt.Parse(frame)
	return isICMP(p.proto) && !p.reply && q.ICMP != nil && (q.ICMP.Type == testpkt.EchoReply || q.ICMP.Type == testpkt.V6EchoReply) &&
		q.Source() == p.dst && q.Destination() == p.src
}

// isReset reports whether a frame answers p by ending its connection.
func isReset(frame []byte, p *pkt) bool {
	q := testpkt.Parse(frame)
	if q.Destination() != p.src || q.Source() != p.dst {
		return false
	}
	return q.TCP != nil && q.TCP.Flags&testpkt.RST != 0 ||
		q.SCTP != nil && len(q.SCTP.Chunks) > 0 && (q.SCTP.Chunks[0].Type == 6 || q.SCTP.Chunks[0].Type == 14)
}

// rated returns whether the sender of a rejected packet must be notified: each processor has a rate
// limit, an equal share of a thousand ICMP errors a second.
func (s *site) rated() answer {
	now := time.Now()
	for len(s.refusals) > 0 && now.Sub(s.refusals[0]) > 300*time.Millisecond {
		s.refusals = s.refusals[1:]
	}
	if len(s.refusals) > 100 {
		return perhapsTold
	}
	return surelyTold
}
