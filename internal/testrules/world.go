// SPDX-License-Identifier: Apache-2.0

// Package testrules draws rules and packets for tests, and determines by linear search which rule
// decides: it is the oracle for datapath/classify.
package testrules

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/classify"
)

// Linear returns the expected result of a lookup, found rule by rule and field by field.
func Linear(rules []classify.Rule, groups map[datapath.GroupName]datapath.AddressGroup, p *classify.Packet) int {
	for i := range rules {
		if linearRule(&rules[i], groups, p) {
			return i
		}
	}
	return -1
}

func linearRule(r *classify.Rule, groups map[datapath.GroupName]datapath.AddressGroup, p *classify.Packet) bool {
	m := r.Match
	ports := p.HasPorts && slices.Contains([]uint8{6, 17, 132}, p.Protocol)
	types := p.HasPorts && slices.Contains([]uint8{1, 58}, p.Protocol)
	in := func(ranges []datapath.PortRange, port uint16) bool {
		return len(ranges) == 0 || ports && slices.ContainsFunc(ranges, func(x datapath.PortRange) bool { return x.First <= port && port <= x.Last })
	}
	return r.Hooks&p.Hook != 0 &&
		linearAddr(m.Source, m.SourceGroups, groups, p.Source) &&
		linearAddr(m.Destination, m.DestinationGroups, groups, p.Destination) &&
		(len(m.Protocols) == 0 || slices.Contains(m.Protocols, datapath.Protocol(p.Protocol))) &&
		in(m.SourcePorts, p.SourcePort) && in(m.Ports, p.DestinationPort) &&
		(len(m.ICMP) == 0 || types && slices.ContainsFunc(m.ICMP, func(x datapath.ICMPMatch) bool {
			return x.Type == uint8(p.DestinationPort>>8) && (x.AnyCode || x.Code == uint8(p.DestinationPort))
		})) &&
		(m.TCPFlags.Mask == 0 || p.HasTCPFlags && p.TCPFlags&m.TCPFlags.Mask == m.TCPFlags.Flags) &&
		(len(m.In) == 0 || slices.Contains(m.In, p.In)) && (len(m.Out) == 0 || slices.Contains(m.Out, p.Out)) &&
		(len(m.VLANs) == 0 || slices.ContainsFunc(m.VLANs, func(x datapath.VLANRange) bool { return x.First <= p.VLAN && p.VLAN <= x.Last })) &&
		(len(m.DSCP) == 0 || slices.Contains(m.DSCP, p.DSCP))
}

func linearAddr(prefixes []netip.Prefix, names []datapath.GroupName, groups map[datapath.GroupName]datapath.AddressGroup, a netip.Addr) bool {
	if len(prefixes) == 0 && len(names) == 0 {
		return true
	}
	contains := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(prefixes, contains) || slices.ContainsFunc(names, func(g datapath.GroupName) bool {
		return slices.ContainsFunc(groups[g].Prefixes, contains)
	})
}

// World draws rules, and packets at the boundaries of their matches.
type World struct {
	*rand.Rand
	nets    []netip.Prefix
	ports   []uint16
	Devices []string
	Groups  map[datapath.GroupName]datapath.AddressGroup
}

// NewWorld returns the world for a seed.
func NewWorld(seed uint64) *World {
	w := &World{Rand: rand.New(rand.NewPCG(seed, 1)), Devices: []string{"eth0", "eth1", "eth10", "wg0", "a-long-device00", "a-long-device01"}, Groups: map[datapath.GroupName]datapath.AddressGroup{}}
	// Few nets, so that some contain others.
	for range 2 + w.IntN(40) {
		var p netip.Prefix
		if w.IntN(2) == 0 {
			b := [4]byte{10, byte(w.IntN(3)), byte(w.IntN(256)), byte(w.Uint32())}
			if w.IntN(4) == 0 {
				b[0] = byte(w.Uint32())
			}
			p = netip.PrefixFrom(netip.AddrFrom4(b), w.IntN(33))
		} else {
			b := [16]byte{0x20, 0x01, 0x0d, 0xb8, 14: byte(w.Uint32()), 15: byte(w.Uint32())}
			for i := w.IntN(16); i < 16; i++ {
				b[i] = byte(w.Uint32())
			}
			p = netip.PrefixFrom(netip.AddrFrom16(b), w.IntN(129))
		}
		if w.IntN(2) == 0 && len(w.nets) > 0 { // inside another net
			o := w.nets[w.IntN(len(w.nets))]
			a := Within(o, w.Uint64(), w.Uint64())
			p = netip.PrefixFrom(a, o.Bits()+w.IntN(a.BitLen()-o.Bits()+1))
		}
		w.nets = append(w.nets, p)
	}
	for range 1 + w.IntN(12) {
		w.ports = append(w.ports, uint16(w.Uint32()))
	}
	w.ports = append(w.ports, 0, 65535)
	for _, g := range []datapath.GroupName{"a", "b", "empty"} {
		var group datapath.AddressGroup
		for range w.IntN(20) {
			group.Prefixes = append(group.Prefixes, w.net())
		}
		if g == "empty" {
			group.Prefixes = nil
		}
		w.Groups[g] = group
	}
	return w
}

func (w *World) net() netip.Prefix { return w.nets[w.IntN(len(w.nets))] }

func some[T any](w *World, one func() T) (list []T) {
	if w.IntN(3) > 0 {
		return nil
	}
	for range 1 + w.IntN(3) {
		list = append(list, one())
	}
	return list
}

func (w *World) ranges() []datapath.PortRange {
	return some(w, func() datapath.PortRange {
		a, b := w.ports[w.IntN(len(w.ports))], w.ports[w.IntN(len(w.ports))]
		if w.IntN(2) == 0 {
			b = a
		}
		return datapath.PortRange{First: min(a, b), Last: max(a, b)}
	})
}

// Rule draws a rule.
func (w *World) Rule() classify.Rule {
	m := &datapath.Match{
		Source: some(w, w.net), Destination: some(w, w.net),
		SourceGroups:      some(w, func() datapath.GroupName { return []datapath.GroupName{"a", "b", "empty"}[w.IntN(3)] }),
		DestinationGroups: some(w, func() datapath.GroupName { return []datapath.GroupName{"a", "b", "empty"}[w.IntN(3)] }),
		Protocols:         some(w, func() datapath.Protocol { return []datapath.Protocol{1, 6, 6, 17, 47, 58, 132, 255}[w.IntN(8)] }),
		SourcePorts:       w.ranges(), Ports: w.ranges(),
		In: some(w, w.device), Out: some(w, w.device),
		DSCP: some(w, func() uint8 { return uint8(w.IntN(64)) }),
		VLANs: some(w, func() datapath.VLANRange {
			a, b := uint16(1+w.IntN(4094)), uint16(1+w.IntN(4094))
			return datapath.VLANRange{First: min(a, b), Last: max(a, b)}
		}),
	}
	if w.IntN(5) == 0 {
		m.ICMP = some(w, func() datapath.ICMPMatch {
			return datapath.ICMPMatch{Type: uint8(w.IntN(16)), Code: uint8(w.IntN(4)), AnyCode: w.IntN(2) == 0}
		})
	}
	if w.IntN(5) == 0 {
		m.TCPFlags.Mask = uint8(w.Uint32())
		m.TCPFlags.Flags = m.TCPFlags.Mask & uint8(w.Uint32())
	}
	hooks := datapath.HookAll
	if w.IntN(3) == 0 {
		hooks = datapath.FirewallHook(1 + w.IntN(7))
	}
	// Most fields of most rules are empty, since otherwise hardly any packet would match.
	for _, clearIt := range []func(){
		func() { m.Source, m.SourceGroups = nil, nil }, func() { m.Destination, m.DestinationGroups = nil, nil },
		func() { m.In = nil }, func() { m.Out = nil }, func() { m.DSCP = nil }, func() { m.VLANs = nil },
		func() { m.SourcePorts = nil }, func() { m.Ports = nil }, func() { m.ICMP = nil }, func() { m.TCPFlags = datapath.TCPFlagsMatch{} },
	} {
		if w.IntN(3) > 0 {
			clearIt()
		}
	}
	return classify.Rule{Name: "r", ID: w.Uint32(), Hooks: hooks, Match: m, Action: uint8(w.IntN(3)), Flags: uint8(w.IntN(256))}
}

func (w *World) device() string { return w.Devices[w.IntN(len(w.Devices))] }

// Within returns an address in a prefix.
func Within(p netip.Prefix, hi, lo uint64) netip.Addr {
	b := p.Masked().Addr().As16()
	offset := 128 - p.Addr().BitLen()
	for bit := offset + p.Bits(); bit < 128; bit++ {
		v := lo
		if bit%2 == 0 {
			v = hi
		}
		b[bit/8] |= byte(v>>(bit%64)&1) << (7 - bit%8)
	}
	a := netip.AddrFrom16(b)
	if p.Addr().Is4() {
		return a.Unmap()
	}
	return a
}

// addr returns an address of the given family at a boundary of a prefix.
func (w *World) addr(six bool) netip.Addr {
	for range 20 {
		p := w.net()
		if p.Addr().Is6() != six {
			continue
		}
		switch w.IntN(5) {
		case 0:
			return p.Masked().Addr()
		case 1:
			return Within(p, ^uint64(0), ^uint64(0))
		case 2:
			if a := p.Masked().Addr().Prev(); a.IsValid() {
				return a
			}
		case 3:
			if a := Within(p, ^uint64(0), ^uint64(0)).Next(); a.IsValid() {
				return a
			}
		}
		return Within(p, w.Uint64(), w.Uint64())
	}
	if six {
		return netip.MustParseAddr("2001:db8::1")
	}
	return netip.MustParseAddr("192.0.2.1")
}

func (w *World) port() uint16 { return w.ports[w.IntN(len(w.ports))] + uint16(w.IntN(3)) - 1 }

// Packet draws a packet.
func (w *World) Packet() classify.Packet {
	six := w.IntN(2) == 0
	p := classify.Packet{
		Source: w.addr(six), Destination: w.addr(six),
		Protocol: []uint8{0, 1, 6, 6, 6, 17, 17, 47, 58, 132, 255}[w.IntN(11)],
		HasPorts: w.IntN(8) > 0,
		DSCP:     uint8(w.IntN(64)), Hook: 1 << w.IntN(3),
		In: w.device(), Out: w.device(),
	}
	if w.IntN(3) == 0 {
		p.VLAN = uint16(w.IntN(4096))
	}
	if w.IntN(8) == 0 {
		p.In, p.Out = "", "eth"
	}
	if p.HasPorts {
		p.SourcePort, p.DestinationPort = w.port(), w.port()
		if p.Protocol == 1 || p.Protocol == 58 {
			p.SourcePort, p.DestinationPort = 0, uint16(w.IntN(16))<<8|uint16(w.IntN(4))
		}
		p.HasTCPFlags = p.Protocol == 6
		if p.HasTCPFlags {
			p.TCPFlags = uint8(w.Uint32())
		}
	}
	return p
}

// Aim returns a packet that matches one of the rules, exactly or nearly.
func (w *World) Aim(rules []classify.Rule) classify.Packet {
	p := w.Packet()
	p.Protocol, p.HasPorts, p.HasTCPFlags = 6, true, true
	p.Source, p.Destination = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7")
	for range 2 {
		m := rules[w.IntN(len(rules))].Match
		if len(m.Source) > 0 && w.IntN(4) > 0 {
			p.Source = Within(m.Source[0], w.Uint64(), w.Uint64())
		}
		if len(m.Destination) > 0 && w.IntN(4) > 0 {
			p.Destination = Within(m.Destination[0], w.Uint64(), w.Uint64())
		}
		if len(m.Ports) > 0 && w.IntN(4) > 0 {
			p.DestinationPort = m.Ports[0].First + uint16(w.IntN(3)) - 1
		}
		if len(m.SourcePorts) > 0 && w.IntN(4) > 0 {
			p.SourcePort = m.SourcePorts[0].Last + uint16(w.IntN(3)) - 1
		}
	}
	if p.Source.Is6() != p.Destination.Is6() {
		p.Source = p.Destination
	}
	return p
}
