// SPDX-License-Identifier: Apache-2.0

package classify

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// The shape of a rule is which fields it matches, and how much of each. Rules of different shapes
// have separate regions in the vectors. Otherwise the vector of a source would contain the bits of
// all rules without a source, the vector of a destination the bits of all rules with only a source,
// and words with both kinds would be searched in vain. A region consists of whole words, in which
// the rules are in order; among the first matching rules of all regions, the one with the lowest
// rank applies.

// regionsFrom is the minimum number of rules for which regions are used.
const regionsFrom = 512

// placed is a rule at its place in the vectors. An unused place has an empty Match and Hooks 0, so
// it matches nothing.
type placed struct {
	*Rule
	rank int // place in the original order of the rules
}

var noRule = placed{Rule: &Rule{Match: &datapath.Match{}}}

// How much of a field a rule matches.
const (
	all = iota
	much
	little
	degrees
)

// Prefixes up to this length, and ranges of more than this many ports, count as much of a field.
const (
	muchBits4 = 20
	muchBits6 = 48
	muchPorts = 256
)

func degree(names bool, broad bool) int {
	switch {
	case !names:
		return all
	case broad:
		return much
	}
	return little
}

func broad(prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool {
		return p.Addr().Is4() && p.Bits() <= muchBits4 || p.Addr().Is6() && p.Bits() <= muchBits6
	})
}

// shape encodes which fields a rule matches, and how much of them.
func (r *Rule) shape() (s int) {
	m := r.Match
	ports := slices.ContainsFunc(m.Ports, func(p datapath.PortRange) bool { return p.Last-p.First >= muchPorts })
	for _, d := range []int{
		degree(len(m.Source)+len(m.SourceGroups) > 0, broad(m.Source)),
		degree(len(m.Destination)+len(m.DestinationGroups) > 0, broad(m.Destination)),
		degree(len(m.Protocols)+len(m.Ports)+len(m.ICMP) > 0, ports || len(m.Ports)+len(m.ICMP) == 0),
		degree(len(m.SourcePorts) > 0, false),
		degree(r.Hooks != datapath.HookAll || len(m.DSCP)+len(m.VLANs)+len(m.In)+len(m.Out) > 0 || m.TCPFlags.Mask != 0, false),
	} {
		s = s*degrees + d
	}
	return s
}

// shapes returns a number for each rule; rules with the same number share a region. Shapes with few
// rules, less than 1/64 of all, share a region too, because each region takes words of its own, and
// [aggregateMax] limits their number.
func shapes(rules []Rule) []int {
	of := make([]int, len(rules))
	if len(rules) < regionsFrom {
		return of
	}
	count := make(map[int]int)
	for i := range rules {
		of[i] = rules[i].shape()
		count[of[i]]++
	}
	for i, s := range of {
		if count[s] < (len(rules)+63)/64 {
			of[i] = -1
		}
	}
	return of
}

// place assigns rules to regions, and returns the first word after each region.
func place(rules []Rule) (places []placed, ends []int) {
	places, ends = placeBy(rules, shapes(rules))
	if len(places) > aggregateMax*64*64 {
		return placeBy(rules, make([]int, len(rules)))
	}
	return places, ends
}

func placeBy(rules []Rule, shapes []int) (places []placed, ends []int) {
	regions := make(map[int][]placed)
	for i, shape := range shapes {
		regions[shape] = append(regions[shape], placed{&rules[i], i})
	}
	var order [][]placed
	for _, r := range regions {
		order = append(order, r)
	}
	slices.SortFunc(order, func(a, b []placed) int { return cmp.Compare(a[0].rank, b[0].rank) })
	for _, r := range order {
		places = append(places, r...)
		for len(places)%64 != 0 {
			places = append(places, noRule)
		}
		ends = append(ends, len(places)/64)
	}
	return places, ends
}

// decides returns the place of the rule that applies among the rules in a vector, or -1.
func (c *compiler) decides(vector uint32) int {
	found := -1
	c.vectors.each(vector, func(place int) {
		if found < 0 || c.rules[place].rank < c.rules[found].rank {
			found = place
		}
	})
	return found
}

// regions writes, for each word, a bitmap of the words after its region, and returns the offset of
// this table in the image; 0 if there is only one region.
func (c *compiler) regions(m *memory) uint32 {
	if len(c.ends) < 2 {
		return 0
	}
	var table []byte
	begin := 0
	for _, end := range c.ends {
		var behind [8 * aggregateMax]byte
		for w := end; w < len(c.rules)/64; w++ {
			behind[w/8] |= 1 << (w % 8)
		}
		at := m.put(behind[:])
		for ; begin < end; begin++ {
			table = binary.LittleEndian.AppendUint32(table, at)
		}
	}
	return m.put(table)
}
