// SPDX-License-Identifier: Apache-2.0

package classify

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// Rules of different shapes, by which fields they name, have regions of their own in
// the vectors. Else the vector of a source would have the bits of all rules that name
// none, that of a destination those of all that name a source alone, and a word with
// both would be looked into in vain. A region has whole words, in which the rules are in
// order; of the first rules that match in each region that of the lowest rank decides.

// regionsFrom is how many rules there are at least where they are put into regions.
const regionsFrom = 512

// placed is a rule at its place in the vectors. Where there is none, Match is empty and
// Hooks 0: nothing matches.
type placed struct {
	*Rule
	rank int // place among the rules as they were given
}

var nobody = placed{Rule: &Rule{Match: &datapath.Match{}}}

// shape says which fields a rule names.
func (r *Rule) shape() (s int) {
	m := r.Match
	for i, names := range []bool{
		len(m.Source)+len(m.SourceGroups) > 0,
		len(m.Destination)+len(m.DestinationGroups) > 0,
		len(m.Protocols)+len(m.Ports)+len(m.ICMP) > 0,
		len(m.SourcePorts) > 0,
		r.Hooks != datapath.HookAll || len(m.DSCP)+len(m.VLANs)+len(m.In)+len(m.Out) > 0 || m.TCPFlags.Mask != 0,
	} {
		if names {
			s |= 1 << i
		}
	}
	return s
}

// place puts rules into regions, and returns the first word behind each region.
func place(rules []Rule) (all []placed, ends []int) {
	regions := make(map[int][]placed)
	for i := range rules {
		shape := 0
		if len(rules) >= regionsFrom {
			shape = rules[i].shape()
		}
		regions[shape] = append(regions[shape], placed{&rules[i], i})
	}
	var order [][]placed
	for _, r := range regions {
		order = append(order, r)
	}
	slices.SortFunc(order, func(a, b []placed) int { return cmp.Compare(a[0].rank, b[0].rank) })
	for _, r := range order {
		all = append(all, r...)
		for len(all)%64 != 0 {
			all = append(all, nobody)
		}
		ends = append(ends, len(all)/64)
	}
	return all, ends
}

// decides returns the place of the rule of a vector that decides, or -1.
func (c *compiler) decides(vector uint32) int {
	found := -1
	c.vectors.each(vector, func(place int) {
		if found < 0 || c.rules[place].rank < c.rules[found].rank {
			found = place
		}
	})
	return found
}

// regions returns, for each word, where the words behind its region are in the image: a
// bit each. 0 where there is but one region.
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
