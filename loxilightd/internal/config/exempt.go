// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"

	"github.com/loxilight/loxilight/datapath"
)

// maxExempt limits the exemptions, and the number of values in each of their lists.
const maxExempt = 64

// exemptFields are the keys of an exemption. An exemption matches packets that no firewall rule can
// drop.
var exemptFields = map[string]func(m *datapath.Match, word string) error{
	"source":      func(m *datapath.Match, w string) error { return addPrefix(&m.Source, w) },
	"destination": func(m *datapath.Match, w string) error { return addPrefix(&m.Destination, w) },
	"protocol": func(m *datapath.Match, w string) error {
		p, ok := datapath.ParseProtocol(w)
		if !ok {
			return fmt.Errorf("%q is not a valid protocol: want tcp, udp, sctp, icmp or icmpv6", w)
		}
		return add(&m.Protocols, p, w)
	},
	"ports": func(m *datapath.Match, w string) error {
		r, err := parsePorts(w)
		if err != nil {
			return err
		}
		return add(&m.Ports, r, w)
	},
	"in": func(m *datapath.Match, w string) error {
		if w == "" || len(w) > 15 || strings.ContainsFunc(w, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '/' }) {
			return fmt.Errorf("%q is not a valid device name", w)
		}
		return add(&m.In, w, w)
	},
}

// add adds a value, and rejects a duplicate.
func add[T comparable](list *[]T, v T, word string) error {
	if slices.Contains(*list, v) {
		return fmt.Errorf("%q is listed twice", word)
	}
	*list = append(*list, v)
	return nil
}

func addPrefix(list *[]netip.Prefix, word string) error {
	p, err := netip.ParsePrefix(word)
	if a, aerr := netip.ParseAddr(word); aerr == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a valid address or prefix", word)
	case p.Addr().Is4In6():
		return fmt.Errorf("%q is an IPv4 address in IPv6: write it as IPv4", word)
	case p != p.Masked():
		return fmt.Errorf("%q has bits set beyond its prefix length; use %s", word, p.Masked())
	}
	return add(list, p, word)
}

func parsePorts(word string) (r datapath.PortRange, err error) {
	first, last, isRange := strings.Cut(word, "-")
	if !isRange {
		last = first
	}
	a, aerr := strconv.ParseUint(first, 10, 16)
	b, berr := strconv.ParseUint(last, 10, 16)
	if aerr != nil || berr != nil || a == 0 || a > b {
		return r, fmt.Errorf("%q is not a valid port: want 1 to 65535, or a range such as 8000-8010", word)
	}
	return datapath.PortRange{First: uint16(a), Last: uint16(b)}, nil
}

// exemptions reads firewall.exempt.
func (r *reader) exemptions(name string, n *yaml.Node) (all []datapath.Match) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxExempt {
		r.failf(n.Line, "%s: want a list of at most %d exemptions, such as [{source: 192.0.2.0/24, protocol: tcp, ports: 22}]", name, maxExempt)
		return nil
	}
	for i, item := range n.Content {
		if m, ok := r.exemption(fmt.Sprintf("%s[%d]", name, i), item); ok {
			all = append(all, m)
		}
	}
	return all
}

func (r *reader) exemption(name string, n *yaml.Node) (m datapath.Match, ok bool) {
	before := len(r.errs)
	if n.Kind != yaml.MappingNode {
		r.failf(n.Line, "%s: want keys and values: %s", name, exemptKeys())
		return m, false
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		parse, known := exemptFields[k.Value]
		switch {
		case !known:
			r.failf(k.Line, "unknown key %s.%s; known keys: %s", name, k.Value, exemptKeys())
		case seen[k.Value]:
			r.failf(k.Line, "%s.%s is set twice", name, k.Value)
		default:
			r.words(name+"."+k.Value, v, func(word string) error { return parse(&m, word) })
		}
		seen[k.Value] = true
	}
	if len(r.errs) == before {
		if err := checkExemption(&m); err != nil {
			r.failf(n.Line, "%s: %w", name, err)
		}
	}
	return m, len(r.errs) == before
}

// words calls the function each with a single value, or with every value in a list.
func (r *reader) words(name string, n *yaml.Node, each func(string) error) {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	if len(list) == 0 || len(list) > maxExempt {
		r.failf(n.Line, "%s: want 1 to %d values, or omit the key", name, maxExempt)
	}
	for _, item := range list {
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			r.failf(item.Line, "%s: want a value, or a list of them", name)
		} else if err := each(item.Value); err != nil {
			r.failf(item.Line, "%s: %w", name, err)
		}
	}
}

// checkExemption rejects exemptions that match no packet, or every packet.
func checkExemption(m *datapath.Match) error {
	if len(m.Source)+len(m.Destination)+len(m.Protocols)+len(m.In) == 0 {
		if len(m.Ports) > 0 {
			return errors.New("ports without a protocol: set protocol to tcp, udp or sctp")
		}
		return errors.New("is empty, so that no firewall rule would have any effect: set source, protocol, ports or in")
	}
	ported := func(p datapath.Protocol) bool { return p == datapath.TCP || p == datapath.UDP || p == datapath.SCTP }
	if len(m.Ports) > 0 && (len(m.Protocols) == 0 || !slices.ContainsFunc(m.Protocols, ported)) {
		return errors.New("the protocol has no ports: set protocol to tcp, udp or sctp")
	}
	if len(m.Source) == 0 || len(m.Destination) == 0 {
		return nil
	}
	for _, s := range m.Source {
		for _, d := range m.Destination {
			if s.Addr().Is4() == d.Addr().Is4() {
				return nil
			}
		}
	}
	return errors.New("source and destination have different address families: no packet matches both")
}

func exemptKeys() string {
	var keys []string
	for k := range exemptFields {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}
