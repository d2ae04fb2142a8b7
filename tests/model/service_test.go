// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"
)

// serviceOf returns the service that a packet is for.
func (o *oracle) serviceOf(p *pkt) *service {
	for _, s := range o.config.services {
		for _, f := range s.frontends {
			if f.addr == p.dst && f.proto == p.proto {
				return s
			}
		}
	}
	return nil
}

// eligible returns the backends that a new connection may get.
func (s *service) eligible(v6 bool) (all []netip.AddrPort) {
	for _, pass := range []func(b backend) bool{
		func(b backend) bool { return b.state == "active" && b.weight > 0 },
		func(b backend) bool { return b.state != "down" },
	} {
		for _, b := range s.backends {
			if b.addr.Addr().Is6() == v6 && pass(b) {
				all = append(all, b.addr)
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}

// balance judges the first packet to a service.
func (o *oracle) balance(in int, p *pkt, s *service) verdict {
	client := p.src.Addr()
	if len(s.ranges) > 0 && !slices.ContainsFunc(s.ranges, func(r netip.Prefix) bool { return r.Contains(client) }) {
		return verdict{why: "service " + s.name + ": not in its source ranges", told: notTold}
	}
	eligible := s.eligible(client.Is6())
	if len(eligible) == 0 {
		return verdict{why: "service " + s.name + ": no backend", told: refusal(p)}
	}
	return verdict{why: fmt.Sprintf("service %s: one of %s", s.name, eligible), accept: func(out int, got tuple) error {
		if err := leaves(out, got); err != nil {
			return err
		}
		if !slices.Contains(eligible, got.dst) {
			return fmt.Errorf("service %s sent it to %s, which is none of %s", s.name, got.dst, eligible)
		}
		if err := o.sameAgain(p, s, got.dst, eligible); err != nil {
			return err
		}
		if err := o.sourceOrRule(in, out, p, s, got); err != nil {
			return err
		}
		o.enter(in, p, got, &conn{service: s.name, backend: got.dst})
		return nil
	}}
}

// sameAgain checks that a service repeats its earlier choice, if it must choose the same.
func (o *oracle) sameAgain(p *pkt, s *service, got netip.AddrPort, eligible []netip.AddrPort) error {
	what := ""
	// A backend that gets connections only because there is no better one is not kept.
	better := slices.ContainsFunc(s.backends, func(b backend) bool { return b.addr == got && b.state == "active" && b.weight > 0 })
	switch {
	case s.affinity && !better:
		return nil
	case s.affinity:
		what = fmt.Sprintf("affinity of %s", p.src.Addr())
	case s.algorithm == "source-hash":
		what = fmt.Sprintf("source hash of %s", p.src.Addr())
	case s.algorithm == "maglev":
		what = fmt.Sprintf("hash of %s", p.tuple)
	default:
		return nil
	}
	key := s.name + ": " + what
	if s.affinity {
		// A client keeps its backend on all frontends, but not across families.
		key += fmt.Sprint(p.src.Addr().Is6())
	}
	if before, known := o.sticky[key]; known && before != got && slices.Contains(eligible, before) {
		return fmt.Errorf("%s gave %s before, and now %s", key, before, got)
	}
	o.sticky[key] = got
	return nil
}

// sourceOrRule checks the source as source does, but accepts that NAT rules translate it, if the
// service leaves the source open.
func (o *oracle) sourceOrRule(in, out int, p *pkt, s *service, got tuple) error {
	if s.source == "auto" && in != out {
		toBackend := *p
		toBackend.dst = got.dst
		if r := o.config.natRule(in, out, &toBackend, "snat", "masquerade"); r != nil && r.hasFamily(p) {
			return o.outer(out, p, r, got)
		}
	}
	return o.source(in, out, p, s, got)
}

// source checks the source that a backend sees.
func (o *oracle) source(in, out int, p *pkt, s *service, got tuple) error {
	taken := o.conns[got.turned()]
	if taken != nil && taken.out != p.turned() {
		return fmt.Errorf("%s is that of another connection, whose answers go out as %s", got, taken.out)
	}
	want := p.src.Addr()
	if s.source == "snat" || s.source == "auto" && in == out {
		want = portAddr(out, p.src.Addr().Is6())
	} else if got.src == p.src {
		return nil
	} else if clash := o.conns[tuple{p.proto, got.dst, p.src}]; clash == nil || clash.out == p.turned() {
		return fmt.Errorf("source %s: the client was %s, and nothing else uses that", got.src, p.src)
	}
	if got.src.Addr() != want {
		return fmt.Errorf("source %s, want %s", got.src, want)
	}
	return ownPort(got.src.Port())
}

// ownPort checks that a port is not one that the node's own connections may use.
func ownPort(port uint16) error {
	if port < 1024 || port >= 32768 && port <= 60999 { // net.ipv4.ip_local_port_range
		return fmt.Errorf("source port %d is one that the node's own connections use", port)
	}
	return nil
}
