// SPDX-License-Identifier: Apache-2.0

package classify

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// deviceNameMax is the maximum length of a device name (IFNAMSIZ without the terminating zero).
const deviceNameMax = 15

// compiler holds, for each trie, which rules match which keys.
type compiler struct {
	rules   []placed
	ends    []int // of regions, in words
	groups  map[datapath.GroupName]datapath.AddressGroup
	vectors *vectors
	runs    [rootCount][]run
}

func newCompiler(rules []Rule, groups map[datapath.GroupName]datapath.AddressGroup) *compiler {
	c := &compiler{groups: groups}
	c.rules, c.ends = place(rules)
	c.vectors = newVectors(len(c.rules))
	return c
}

func (c *compiler) errorf(rule int, field, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &datapath.RuleError{Rule: c.rules[rule].Name, Err: fmt.Errorf("%s: %w", field, err)}
}

// where returns the rules r for which is(r) is true.
func (c *compiler) where(is func(r placed) bool) *changing {
	v := c.vectors.changing()
	for i := range c.rules {
		if is(c.rules[i]) {
			v.set(i, true)
		}
	}
	return v
}

// leaf returns the runs of a trie in which every key has the value v.
func leaf(v *changing) []run { return []run{{value: v.vector()}} }

func (c *compiler) hooks() error {
	base := c.where(func(r placed) bool { return r.Hooks == datapath.HookAll })
	var spans []span
	for i := range c.rules {
		for _, h := range []datapath.FirewallHook{datapath.HookForward, datapath.HookInput, datapath.HookOutput} {
			if r := c.rules[i]; r.Hooks != datapath.HookAll && r.Hooks&h != 0 {
				spans = append(spans, span{uint64(h), uint64(h), i})
			}
		}
	}
	c.runs[rootHook] = spanRuns(base, spans, key{}, 0, 8)
	return nil
}

func (c *compiler) dscp() error {
	base := c.where(func(r placed) bool { return len(r.Match.DSCP) == 0 })
	var spans []span
	for i := range c.rules {
		for _, d := range c.rules[i].Match.DSCP {
			if d > 63 {
				return c.errorf(i, "dscp", "%d is not between 0 and 63", d)
			}
			spans = append(spans, span{uint64(d), uint64(d), i})
		}
	}
	c.runs[rootDSCP] = spanRuns(base, spans, key{}, 0, 8)
	return nil
}

func (c *compiler) tcpFlags() error {
	wild := c.where(func(r placed) bool { return r.Match.TCPFlags.Mask == 0 })
	c.runs[rootNoTCPFlags] = leaf(wild)
	if slices.IndexFunc(c.rules, func(r placed) bool { return r.Match.TCPFlags.Mask != 0 }) < 0 {
		c.runs[rootTCPFlags] = leaf(wild)
		return nil
	}
	var runs []run
	for flags := range 256 {
		v := c.where(func(r placed) bool { return uint8(flags)&r.Match.TCPFlags.Mask == r.Match.TCPFlags.Flags })
		runs = append(runs, run{number(uint64(flags), 8), v.vector()})
	}
	c.runs[rootTCPFlags] = compact(runs)
	return nil
}

func (c *compiler) vlans() error {
	base := c.where(func(r placed) bool { return len(r.Match.VLANs) == 0 })
	var spans []span
	for i := range c.rules {
		for _, v := range c.rules[i].Match.VLANs {
			if v.First < 1 || v.First > v.Last || v.Last > 4094 {
				return c.errorf(i, "vlans", "%d-%d is not a valid range (1 to 4094)", v.First, v.Last)
			}
			spans = append(spans, span{uint64(v.First), uint64(v.Last), i})
		}
	}
	c.runs[rootVLAN] = spanRuns(base, spans, key{}, 0, 16)
	return nil
}

func (c *compiler) devices() error {
	for _, d := range []struct {
		root  int
		field string
		of    func(*datapath.Match) []string
	}{
		{rootIn, "in", func(m *datapath.Match) []string { return m.In }},
		{rootOut, "out", func(m *datapath.Match) []string { return m.Out }},
	} {
		base := c.where(func(r placed) bool { return len(d.of(r.Match)) == 0 })
		var names []owned
		for i := range c.rules {
			for _, name := range d.of(c.rules[i].Match) {
				if name == "" || len(name) > deviceNameMax {
					return c.errorf(i, d.field, "%q is not a valid device name", name)
				}
				names = append(names, owned{start: keyOfDevice(name), bits: 128, rule: i})
			}
		}
		if len(names) > MaxDevices {
			return fmt.Errorf("the rules name %d devices, at most %d: %w", len(names), MaxDevices, datapath.ErrCapacity)
		}
		c.runs[d.root] = prefixRuns(c.vectors, base.vector(), names)
	}
	return nil
}

func keyOfDevice(name string) key {
	var b [16]byte
	copy(b[:], name)
	return keyOfBytes(b)
}

func (c *compiler) sourcePorts() error {
	base := c.where(func(r placed) bool { return len(r.Match.SourcePorts) == 0 })
	var spans []span
	for i := range c.rules {
		for _, p := range c.rules[i].Match.SourcePorts {
			if p.First > p.Last {
				return c.errorf(i, "sourcePorts", "%d-%d is not a valid range", p.First, p.Last)
			}
			spans = append(spans, span{uint64(p.First), uint64(p.Last), i})
		}
	}
	c.runs[rootNoSourcePort] = leaf(base)
	c.runs[rootSourcePort] = spanRuns(base, spans, key{}, 0, 16)
	return nil
}

// hasPorts reports whether packets of a protocol have ports.
func hasPorts(p datapath.Protocol) bool {
	return p == datapath.TCP || p == datapath.UDP || p == datapath.SCTP
}

func hasTypes(p datapath.Protocol) bool { return p == datapath.ICMP || p == datapath.ICMPv6 }

// layer4 builds the tries for protocol and port, or type and code.
func (c *compiler) layer4() error {
	special := [256]bool{datapath.TCP: true, datapath.UDP: true, datapath.SCTP: true, datapath.ICMP: true, datapath.ICMPv6: true}
	for i := range c.rules {
		for _, p := range c.rules[i].Match.Protocols {
			special[p] = true
		}
		for _, p := range c.rules[i].Match.Ports {
			if p.First > p.Last {
				return c.errorf(i, "ports", "%d-%d is not a valid range", p.First, p.Last)
			}
		}
	}
	other := c.where(func(r placed) bool {
		return len(r.Match.Protocols) == 0 && len(r.Match.Ports) == 0 && len(r.Match.ICMP) == 0
	}).vector()
	var with, without []run
	for n := range 256 {
		first := run{number(uint64(n), 8), other}
		if !special[n] {
			with, without = append(with, first), append(without, first)
			continue
		}
		base, spans := c.ofProtocol(datapath.Protocol(n))
		first.value = base.vector()
		without = append(without, first)
		with = append(with, spanRuns(base, spans, first.start, 8, 16)...)
	}
	c.runs[rootLayer4], c.runs[rootNoLayer4] = compact(with), compact(without)
	return nil
}

// ofProtocol returns the rules that match all packets of a protocol, and the ports, or types and
// codes, that other rules match.
func (c *compiler) ofProtocol(p datapath.Protocol) (*changing, []span) {
	base := c.vectors.changing()
	var spans []span
	for i := range c.rules {
		m := c.rules[i].Match
		switch {
		case len(m.Protocols) > 0 && !slices.Contains(m.Protocols, p):
		case len(m.Ports) == 0 && len(m.ICMP) == 0:
			base.set(i, true)
		case len(m.ICMP) == 0 && hasPorts(p):
			for _, r := range m.Ports {
				spans = append(spans, span{uint64(r.First), uint64(r.Last), i})
			}
		case len(m.Ports) == 0 && hasTypes(p):
			for _, t := range m.ICMP {
				first := uint64(t.Type)<<8 | uint64(t.Code)
				last := first
				if t.AnyCode {
					first, last = uint64(t.Type)<<8, uint64(t.Type)<<8|0xff
				}
				spans = append(spans, span{first, last, i})
			}
		}
	}
	return base, spans
}

// side is the source or destination of packets.
type side struct {
	field    string
	root     int // for IPv4; the next one is for IPv6
	prefixes func(*datapath.Match) []netip.Prefix
	groups   func(*datapath.Match) []datapath.GroupName
}

var sides = []side{
	{
		"source", rootSource4,
		func(m *datapath.Match) []netip.Prefix { return m.Source },
		func(m *datapath.Match) []datapath.GroupName { return m.SourceGroups },
	},
	{
		"destination", rootDestination4,
		func(m *datapath.Match) []netip.Prefix { return m.Destination },
		func(m *datapath.Match) []datapath.GroupName { return m.DestinationGroups },
	},
}

func (c *compiler) addresses() error {
	for _, s := range sides {
		base := c.where(func(r placed) bool { return len(s.prefixes(r.Match)) == 0 && len(s.groups(r.Match)) == 0 }).vector()
		all, err := c.prefixes(&s)
		if err != nil {
			return err
		}
		for family := range all {
			c.runs[s.root+family] = prefixRuns(c.vectors, base, all[family])
		}
	}
	return nil
}

// families are the IPv4 and IPv6 prefixes.
type families [2][]owned

func (f *families) add(p netip.Prefix, o owned) error {
	if !p.IsValid() {
		return fmt.Errorf("%v is not a valid prefix", p)
	}
	family := 0
	if p.Addr().Is6() {
		family = 1
	}
	if len(f[0])+len(f[1]) == MaxPrefixes {
		return fmt.Errorf("the rules and their groups have more than %d prefixes: %w", MaxPrefixes, datapath.ErrCapacity)
	}
	o.start, o.bits = keyOfAddr(p.Masked().Addr()), p.Bits()
	f[family] = append(f[family], o)
	return nil
}

// prefixes returns the prefixes in the rules and in the groups to which they refer, the prefixes of
// each group only once.
func (c *compiler) prefixes(s *side) (all families, err error) {
	members := make(map[datapath.GroupName]*changing)
	for i := range c.rules {
		for _, p := range s.prefixes(c.rules[i].Match) {
			if err := all.add(p, owned{rule: i}); err != nil {
				return all, c.errorf(i, s.field, "%w", err)
			}
		}
		for _, g := range s.groups(c.rules[i].Match) {
			if _, ok := c.groups[g]; !ok {
				return all, c.errorf(i, s.field+"Groups", "group %s: %w", g, datapath.ErrAbsent)
			}
			if members[g] == nil {
				members[g] = c.vectors.changing()
			}
			members[g].set(i, true)
		}
	}
	for _, g := range slices.Sorted(maps.Keys(members)) {
		value := members[g].vector()
		for _, p := range c.groups[g].Prefixes {
			if err := all.add(p, owned{rule: -1, value: value}); err != nil {
				return all, &datapath.RuleError{Group: g, Err: err}
			}
		}
	}
	return all, nil
}
