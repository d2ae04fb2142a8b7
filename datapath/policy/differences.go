// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

// End is one end of traffic: an address of an Entity, a prefix of addresses that no Entity has, or this
// node.
type End struct {
	Entity string // empty: none has the address
	Prefix netip.Prefix
	Node   bool
}

// Difference is traffic whose verdict differs between two states.
type Difference struct {
	Source, Destination End
	Protocol            Protocol // 0: every protocol without ports
	First, Last         uint16   // destination ports; 0 without ports
	Before, After       Action
}

// Differences returns the traffic of local Entities whose verdict in force differs between two states,
// by source, destination and port: at most limit of them, and whether there are more. Traffic of an
// Entity with itself is not compared. Of a prefix, only addresses that are in no longer prefix are
// meant, and only addresses of no name.
func Differences(before, after *State, limit int) (list []Difference, more bool) {
	c := comparison{states: [2]*Compiler{NewCompiler(), NewCompiler()}, known: make(map[[4]RowID][]Difference)}
	c.states[0].Apply(before)
	c.states[1].Apply(after)
	groups := c.groups()
	for _, from := range groups {
		for _, to := range groups {
			if from.is4 != to.is4 && !from.node && !to.node || !from.isLocal() && !to.isLocal() {
				continue
			}
			for _, d := range c.compare(from, to) {
				for _, d.Source = range from.ends {
					for _, d.Destination = range to.ends {
						if d.Source == d.Destination || d.Source.Entity == d.Destination.Entity && d.Source.Entity != "" {
							continue
						}
						if len(list) == limit {
							return list, true
						}
						list = append(list, d)
					}
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Difference) int {
		return cmp.Or(compareEnds(a.Source, b.Source), compareEnds(a.Destination, b.Destination), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	})
	return list, false
}

func compareEnds(a, b End) int {
	return cmp.Or(cmp.Compare(a.Entity, b.Entity), a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
}

// comparison compares two states.
type comparison struct {
	states [2]*Compiler
	known  map[[4]RowID][]Difference // by rows: for egress in both states, then for ingress; -1: none
}

// groupKey is what the verdicts on the traffic of an end depend on, in both states.
type groupKey struct {
	class  [2]Class
	tables [2][2]TableID
	is4    bool
	node   bool
}

// group contains the ends with one key.
type group struct {
	groupKey
	ends []End
}

func (k *groupKey) isLocal() bool { return k.tables != noTables }

var noTables = [2][2]TableID{{NoTable, NoTable}, {NoTable, NoTable}}

// groups returns all ends.
func (c *comparison) groups() (list []*group) {
	byKey := make(map[groupKey]*group)
	add := func(k groupKey, e End) {
		g := byKey[k]
		if g == nil {
			g = &group{groupKey: k}
			byKey[k], list = g, append(list, g)
		}
		g.ends = append(g.ends, e)
	}
	add(groupKey{class: [2]Class{c.states[0].node, c.states[1].node}, tables: [2][2]TableID{c.states[0].here(), c.states[1].here()}, node: true}, End{Node: true})
	var owners [2]map[netip.Addr]string
	for i, s := range c.states {
		owners[i] = make(map[netip.Addr]string)
		for name, x := range s.entities {
			for addr := range x.classes {
				owners[i][addr] = name
			}
		}
	}
	prefixes := make(map[netip.Prefix]bool)
	for i, s := range c.states {
		for addr := range owners[i] {
			if _, done := owners[0][addr]; i == 1 && done {
				continue
			}
			k := groupKey{tables: noTables, is4: addr.Is4()}
			for n, of := range c.states {
				k.class[n], k.tables[n] = of.at(owners[n][addr], addr)
			}
			add(k, End{Entity: cmp.Or(owners[1][addr], owners[0][addr]), Prefix: netip.PrefixFrom(addr, addr.BitLen())})
		}
		for p := range s.prefixes {
			if p.IsSingleIP() && (owners[0][p.Addr()] != "" || owners[1][p.Addr()] != "") {
				continue // an Entity's address
			}
			prefixes[p] = true
		}
	}
	for _, every := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		prefixes[netip.PrefixFrom(every, 0)] = true
	}
	for p := range prefixes {
		add(groupKey{class: [2]Class{c.states[0].prefixes.of(p), c.states[1].prefixes.of(p)}, tables: noTables, is4: p.Addr().Is4()}, End{Prefix: p})
	}
	return list
}

// here returns the tables of this node itself.
func (c *Compiler) here() [2]TableID {
	for _, s := range c.subjects {
		if s.Endpoint == Here {
			return s.Tables
		}
	}
	return noTables[0]
}

// at returns the class of an address, and the tables of the Entity that has it; empty: none has it.
func (c *Compiler) at(entity string, addr netip.Addr) (class Class, tables [2]TableID) {
	if entity == "" {
		return c.prefixes.of(netip.PrefixFrom(addr, addr.BitLen())), noTables[0]
	}
	tables = noTables[0]
	if s := c.subjects[entity]; s != nil {
		tables = s.Tables
	}
	return c.entities[entity].classes[addr], tables
}

// compare returns the differences of traffic from one group to another, without its ends.
func (c *comparison) compare(from, to *group) []Difference {
	key := [4]RowID{-1, -1, -1, -1}
	for i, s := range c.states {
		if id := from.tables[i][Egress]; id != NoTable {
			key[i] = s.tables.items[id].rows[to.class[i]]
		}
		if id := to.tables[i][Ingress]; id != NoTable {
			key[2+i] = s.tables.items[id].rows[from.class[i]]
		}
	}
	found, known := c.known[key]
	if !known {
		found = c.differences(key)
		c.known[key] = found
	}
	return found
}

// differences compares rows.
func (c *comparison) differences(key [4]RowID) (list []Difference) {
	at := func(t Traffic) (is [2]Action) {
		for i, s := range c.states {
			for _, row := range []RowID{key[i], key[2+i]} {
				if row >= 0 && is[i] == Allow {
					is[i] = s.cells.items[s.rows.items[row].CellOf(t)].Others.Enforced.Action
				}
			}
		}
		return is
	}
	for _, protocol := range []Protocol{TCP, UDP, SCTP} {
		firsts := []uint16{0}
		for i, row := range key {
			if row < 0 {
				continue
			}
			for _, x := range c.states[i%2].rows.items[row].Ranges {
				if x.Protocol == protocol {
					firsts = append(firsts, x.First)
				}
			}
		}
		slices.Sort(firsts)
		firsts = slices.Compact(firsts)
		for i, first := range firsts {
			last := uint16(65535)
			if i+1 < len(firsts) {
				last = firsts[i+1] - 1
			}
			is := at(Traffic{Protocol: protocol, Port: first})
			if is[0] == is[1] {
				continue
			}
			if n := len(list); n > 0 && list[n-1].Protocol == protocol && list[n-1].Last+1 == first && list[n-1].Before == is[0] && list[n-1].After == is[1] {
				list[n-1].Last = last
				continue
			}
			list = append(list, Difference{Protocol: protocol, First: first, Last: last, Before: is[0], After: is[1]})
		}
	}
	if is := at(Traffic{}); is[0] != is[1] {
		list = append(list, Difference{Before: is[0], After: is[1]})
	}
	return list
}
