// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// natParser parses the spec of a NAT.
type natParser struct {
	spec     *api.NATSpec
	nat      datapath.NAT
	families families // address families of the connections that match
	budget   *decode.Budget
}

func parseNAT(s *api.NATSpec, b *decode.Budget) (state.Value, *api.Error) {
	p := natParser{spec: s, budget: b}
	for _, step := range []func() *api.Error{p.kind, p.matched, p.addresses, p.oneToOne, p.ports, p.behaviour, p.portBlock} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &state.NAT{NAT: p.nat}, nil
}

func (p *natParser) kind() *api.Error {
	if p.spec.Type == "" {
		return invalid("spec.type", "is missing: want one of %s", strings.Join(api.NATTypes, ", "))
	}
	t, err := choose("spec.type", p.spec.Type, api.NATTypes...)
	if err != nil {
		return err
	}
	p.nat.Type = datapath.NATType(t)
	p.nat.Priority, p.nat.Log, p.nat.OneToOne = priorityOf(p.spec.Priority), p.spec.Log, p.spec.OneToOne
	return nil
}

func (p *natParser) matched() (err *api.Error) {
	if p.nat.Match, p.families, err = parseMatch(p.spec.Match, p.budget); err != nil {
		return err
	}
	m, dnat := &p.nat.Match, p.nat.Type == datapath.DNAT
	switch {
	case dnat && len(m.Out) > 0:
		return invalid("spec.match.out", "does not apply to dnat, which translates before routing: set spec.match.in to the incoming device")
	case !dnat && len(m.In) > 0:
		return invalid("spec.match.in", "applies to dnat only: set spec.match.out to the outgoing device")
	case dnat && len(m.Destination)+len(m.DestinationGroups)+len(m.In) == 0:
		return invalid("spec.match.destination", "is missing: set it to the address that clients connect to, or set spec.match.in to the incoming device")
	}
	return nil
}

func (p *natParser) to() api.NATTarget {
	if p.spec.To == nil {
		return api.NATTarget{}
	}
	return *p.spec.To
}

func (p *natParser) addresses() *api.Error {
	spec := p.to().Addresses
	const field = "spec.to.addresses"
	switch {
	case p.nat.Type == datapath.Masquerade && len(spec) > 0:
		return invalid(field, "masquerade uses the address of the output device: omit this field, or set spec.type to snat")
	case p.nat.Type != datapath.Masquerade && len(spec) == 0:
		return invalid(field, "is missing: set it to the address to translate to, such as 192.0.2.10")
	}
	seen := families(0)
	for i, w := range spec {
		field := fmt.Sprintf("%s[%d]", field, i)
		list, err := parsePrefixes(string(w))
		if err == nil {
			err = checkTarget(list)
		}
		if err != nil {
			return invalid(field, "%q %v", decode.Shorten(string(w)), err)
		}
		f := familyOf(list[0].Addr())
		if p.families&f == 0 {
			return invalid(field, "%s is %s, but the rule matches only %s: addresses are not translated from one family to the other", decode.Shorten(string(w)), f, p.families)
		}
		if seen |= f; p.nat.OneToOne && len(list) > 1 {
			return invalid(field, "%q is not a prefix, which oneToOne requires", decode.Shorten(string(w)))
		}
		if err := p.budget.TakePrefixes(list, field); err != nil {
			return err
		}
		p.nat.Addresses = append(p.nat.Addresses, list...)
	}
	return nil
}

// checkTarget rejects addresses that cannot be the source or destination of a forwarded packet.
func checkTarget(list []netip.Prefix) error {
	for _, p := range list {
		if err := checkHost(p.Addr()); err != nil {
			return err
		}
		if p.Addr().IsLoopback() {
			return fmt.Errorf("contains the loopback address %s", p.Addr())
		}
	}
	return nil
}

func (p *natParser) oneToOne() *api.Error {
	if !p.nat.OneToOne {
		return nil
	}
	const field = "spec.oneToOne"
	from, groups, name := p.nat.Match.Source, p.nat.Match.SourceGroups, "spec.match.source"
	switch p.nat.Type {
	case datapath.Masquerade:
		return invalid(field, "masquerade has one address for all: set spec.type to snat")
	case datapath.DNAT:
		from, groups, name = p.nat.Match.Destination, p.nat.Match.DestinationGroups, "spec.match.destination"
	}
	switch {
	case len(groups) > 0:
		return invalid(name, "oneToOne requires ordered prefixes and groups have no order: list the prefixes")
	case len(p.to().Ports) > 0:
		return invalid("spec.to.ports", "oneToOne keeps the ports: omit this field")
	case len(from) != len(p.nat.Addresses):
		return invalid("spec.to.addresses", "oneToOne needs as many prefixes as %s has: %d, not %d", name, len(from), len(p.nat.Addresses))
	}
	for i, to := range p.nat.Addresses {
		if from[i].Bits() != to.Bits() || from[i].Addr().Is4() != to.Addr().Is4() {
			return invalid(fmt.Sprintf("spec.to.addresses[%d]", i), "%s and %s must have the same length and family, because oneToOne maps one to the other", to, from[i])
		}
	}
	return nil
}

func (p *natParser) ports() *api.Error {
	spec := p.to().Ports
	for i, w := range spec {
		r, err := parseRange(string(w), 1, 65535)
		if err != nil {
			return invalid(fmt.Sprintf("spec.to.ports[%d]", i), "%v, such as 8080 or 8000-8100", err)
		}
		p.nat.Ports = append(p.nat.Ports, datapath.PortRange{First: r[0], Last: r[1]})
	}
	if p.nat.Type != datapath.DNAT || len(spec) == 0 {
		return nil
	}
	const field = "spec.to.ports"
	length := func(r datapath.PortRange) int { return int(r.Last) - int(r.First) + 1 }
	m := &p.nat.Match
	switch {
	case len(spec) > 1:
		return invalid(field, "dnat translates to one port, or to one range of the same length as spec.match.ports")
	case !protocolsHavePorts(m.Protocols):
		return invalid(field, "only tcp, udp and sctp have ports: set spec.match.protocol to one or more of these, and to nothing else")
	case length(p.nat.Ports[0]) == 1:
		return nil
	case len(m.Ports) != 1 || length(m.Ports[0]) != length(p.nat.Ports[0]):
		return invalid(field, "%s has %d ports: spec.match.ports must be one range of the same length, port by port", spec[0], length(p.nat.Ports[0]))
	}
	return nil
}

func (p *natParser) behaviour() *api.Error {
	for _, b := range []struct {
		name, spec string
		into       *datapath.NATBehaviour
	}{{"mapping", p.spec.Mapping, &p.nat.Mapping}, {"filtering", p.spec.Filtering, &p.nat.Filtering}} {
		n, err := choose("spec."+b.name, b.spec, api.NATBehaviours...)
		if err != nil {
			return err
		}
		if b.spec != "" && (p.nat.Type == datapath.DNAT || p.nat.OneToOne) {
			return invalid("spec."+b.name, "applies to snat and masquerade with port allocation only, not to dnat or oneToOne")
		}
		*b.into = datapath.NATBehaviour(n)
	}
	if p.nat.Filtering == datapath.EndpointIndependent && p.nat.Mapping != datapath.EndpointIndependent {
		return invalid("spec.filtering", "endpoint-independent filtering requires endpoint-independent mapping: set spec.mapping to endpoint-independent")
	}
	return nil
}

func (p *natParser) portBlock() *api.Error {
	n := p.spec.PortBlock
	switch {
	case n == 0:
		return nil
	case n < 64 || n > 4096 || bits.OnesCount(uint(n)) != 1:
		return invalid("spec.portBlock", "%d is not a power of two from 64 to 4096", n)
	case p.nat.Type == datapath.DNAT || p.nat.OneToOne:
		return invalid("spec.portBlock", "applies to snat and masquerade with port allocation only, not to dnat or oneToOne")
	}
	p.nat.BlockSize = uint16(n)
	return nil
}
