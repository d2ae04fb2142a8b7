// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// cover is the set of inner addresses, protocols and outer addresses that a NAT rule covers.
type cover struct {
	ranges    []addrRange         // sorted, without overlaps; empty: all addresses
	protocols []datapath.Protocol // empty: all
	outer     []kernel.NatPrefix  // empty: addresses of the node
}

type addrRange struct{ first, last netip.Addr }

// coverOf returns the cover of a rule. groups contains the groups to which the rule refers.
func coverOf(m *datapath.Match, groups map[datapath.GroupName]datapath.AddressGroup) cover {
	c := cover{protocols: m.Protocols}
	prefixes := slices.Clone(m.Source)
	for _, name := range m.SourceGroups {
		prefixes = append(prefixes, groups[name].Prefixes...)
	}
	if len(prefixes) == 0 && len(m.SourceGroups) > 0 {
		c.ranges = []addrRange{{}} // matches no address
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	for _, p := range prefixes {
		if last := len(c.ranges) - 1; last >= 0 && p.Addr().Compare(c.ranges[last].last) <= 0 {
			continue // of two overlapping prefixes, one contains the other
		}
		c.ranges = append(c.ranges, addrRange{p.Masked().Addr(), lastOf(p)})
	}
	return c
}

// has reports whether the rule covers an inner address.
func (c *cover) has(a netip.Addr, protocol datapath.Protocol) bool {
	if len(c.protocols) > 0 && !slices.Contains(c.protocols, protocol) {
		return false
	}
	i, found := slices.BinarySearchFunc(c.ranges, a, func(r addrRange, a netip.Addr) int { return r.first.Compare(a) })
	return len(c.ranges) == 0 || found || i > 0 && a.Compare(c.ranges[i-1].last) <= 0
}

// gives reports whether the rule may translate to an address in a namespace.
func (n *Table) gives(c *cover, a kernel.Addr, namespace uint8) (bool, error) {
	if len(c.outer) == 0 {
		var is uint8
		return n.tables.Local.Find(kernel.LocalKey{Addr: a, Netns: uint32(namespace)}, &is)
	}
	return slices.ContainsFunc(c.outer, func(p kernel.NatPrefix) bool {
		for i, word := range p.Addr.Word {
			if (a.Word[i]^word)&^p.Host.Word[i] != 0 {
				return false
			}
		}
		return true
	}), nil
}

// endUncovered ends the mappings that are open to any remote and whose rule no longer covers their
// inner or outer address: they would admit packets that no rule admits. n.mu is held, and the rules
// are in force.
func (n *Table) endUncovered(groups map[datapath.GroupName]datapath.AddressGroup) error {
	covers := map[uint16]cover{}
	for _, r := range n.rules {
		if r.set == kernel.RulesSNAT && r.record.Flags&kernel.NATOpen != 0 {
			c := coverOf(&r.match, groups)
			c.outer = r.pool
			covers[r.record.Id] = c
		}
	}
	if len(covers) == 0 {
		return nil
	}
	outers, inners := &n.tables.MappingOuter, &n.tables.Mapping
	var outer, inner []kernel.MappingKey
	err := outers.Batches(func(keys []kernel.MappingKey, values []kernel.Mapping) error {
		for i, k := range keys {
			v := &values[i]
			c, open := covers[v.NatId]
			if !open {
				continue
			}
			given, err := n.gives(&c, k.Addr, k.Netns)
			if err != nil {
				return err
			}
			if !given || !c.has(v.Addr.Addr(), datapath.Protocol(k.Proto)) {
				outer = append(outer, k)
				inner = append(inner, innerKey(&k, v))
			}
		}
		return nil
	})
	for i := range outer {
		if err == nil {
			err = inners.Delete(inner[i])
		}
		if err == nil {
			err = outers.Delete(outer[i])
		}
	}
	if err != nil {
		return fmt.Errorf("end mappings whose rule changed: %w", err)
	}
	return nil
}
