// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

const (
	natRanges = len(kernel.NatRule{}.RangeFirst)

	// natPoolMax is the maximum number of equal-sized pieces of a pool. A pool of more prefixes has a
	// piece for each.
	natPoolMax = 512
)

var natTypes = map[datapath.NATType]uint8{datapath.SNAT: 0, datapath.DNAT: 1, datapath.Masquerade: 2}

// compileNAT returns the rules of a NAT, indexed by set (DNAT, SNAT). free contains the source
// ports for a NAT that names none.
func compileNAT(name datapath.NATName, id uint16, v *datapath.NAT, free []datapath.PortRange) (sets [2]*natRule, err error) {
	r := &natRule{name: name, match: v.Match, natSlot: natSlot{slot: uint32(id) << 2}}
	r.record = kernel.NatRule{Id: id, Type: natTypes[v.Type]}
	own := 1
	if v.Type == datapath.DNAT {
		own = 0
	}
	r.set = natSets[own]
	sets[own] = r
	if v.OneToOne {
		return sets, r.pairUp(v)
	}
	r.fillPool(v.Addresses)
	if v.Type == datapath.DNAT {
		return sets, r.fillDestinationPorts(v)
	}
	if v.Mapping == datapath.EndpointIndependent {
		r.record.Flags |= kernel.NATMapping
	}
	if v.Filtering == datapath.EndpointIndependent {
		r.record.Flags |= kernel.NATOpen
	}
	ranges := v.Ports
	if len(ranges) == 0 {
		ranges = free
	}
	return sets, r.fillPorts(ranges, v.BlockSize)
}

// pairUp makes r translate prefixes one-to-one.
func (r *natRule) pairUp(v *datapath.NAT) error {
	from := v.Match.Source
	if v.Type == datapath.DNAT {
		from = v.Match.Destination
	}
	if len(from) != len(v.Addresses) {
		return fmt.Errorf("addresses: %d prefixes, want %d as in the match", len(v.Addresses), len(from))
	}
	for i, p := range from {
		to := v.Addresses[i]
		if p.Bits() != to.Bits() || p.Addr().Is4() != to.Addr().Is4() {
			return fmt.Errorf("addresses: %s and %s differ in prefix length or address family", to, p)
		}
		r.pair(p, to)
	}
	r.record.Flags |= kernel.NATOneToOne
	return nil
}

func (r *natRule) pair(from, to netip.Prefix) {
	r.pairs = append(r.pairs, kernel.NatPairKey{PrefixLen: uint32(32 + kernel.Bits128(from)), Slot: r.slot, Addr: kernel.AddrOf(from.Masked().Addr())})
	r.pairAddrs = append(r.pairAddrs, natPrefixOf(to))
}

func natPrefixOf(p netip.Prefix) kernel.NatPrefix {
	var host [16]byte
	for i := kernel.Bits128(p); i < 128; i++ {
		host[i/8] |= 0x80 >> (i % 8)
	}
	k := kernel.NatPrefix{Addr: kernel.AddrOf(p.Masked().Addr())}
	k.Host.Word = kernel.WordsOf(host)
	return k
}

// fillPool divides the addresses of each family into pieces of equal size, so that each piece is
// selected with the same probability.
func (r *natRule) fillPool(addresses []netip.Prefix) {
	for family := range 2 {
		var of []netip.Prefix
		longest := 0
		for _, p := range addresses {
			if kernel.FamilyOf(p.Addr()) == family {
				of = append(of, p.Masked())
				longest = max(longest, p.Bits())
			}
		}
		for ; longest > 0 && pieces(of, longest) > natPoolMax; longest-- {
		}
		for _, p := range of {
			for a, n := p.Addr(), 1<<max(0, longest-p.Bits()); n > 0; n-- {
				piece := netip.PrefixFrom(a, max(longest, p.Bits()))
				r.pool = append(r.pool, natPrefixOf(piece))
				r.record.PoolCount[family]++
				a = lastOf(piece).Next()
			}
		}
	}
	if len(r.match.Source)+len(r.match.SourceGroups) == 0 && len(addresses) > 0 {
		// The rule does not apply to the other family.
		switch {
		case r.record.PoolCount[0] == 0:
			r.match.Source = []netip.Prefix{netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
		case r.record.PoolCount[1] == 0:
			r.match.Source = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
		}
	}
}

func pieces(prefixes []netip.Prefix, bits int) (n int) {
	for _, p := range prefixes {
		n += 1 << min(max(0, bits-p.Bits()), 30)
	}
	return n
}

// lastOf returns the last address of p.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As16()
	for i := kernel.Bits128(p); i < 128; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a := netip.AddrFrom16(b)
	if p.Addr().Is4() {
		return a.Unmap()
	}
	return a
}

// fillDestinationPorts sets the translation of destination ports.
func (r *natRule) fillDestinationPorts(v *datapath.NAT) error {
	if len(v.Ports) == 0 {
		return nil
	}
	to := v.Ports[0]
	if len(v.Ports) > 1 {
		return fmt.Errorf("ports: DNAT takes one range, not %d", len(v.Ports))
	}
	r.record.RangeFirst[0], r.record.RangeSize[0] = to.First, to.Last-to.First+1
	r.record.PortCount = uint32(to.Last-to.First) + 1
	if to.First == to.Last {
		return nil
	}
	if len(v.Match.Ports) != 1 || v.Match.Ports[0].Last-v.Match.Ports[0].First != to.Last-to.First {
		return fmt.Errorf("ports: %d-%d needs one range as long in match.ports", to.First, to.Last)
	}
	r.record.Flags |= kernel.NATEachPort
	r.record.MatchPort = v.Match.Ports[0].First
	return nil
}

// fillPorts sets the ranges from which source ports are selected.
func (r *natRule) fillPorts(ranges []datapath.PortRange, block uint16) error {
	ranges = mergeRanges(ranges)
	if len(ranges) > natRanges {
		// Keep the largest ranges.
		slices.SortStableFunc(ranges, func(a, b datapath.PortRange) int { return int(b.Last-b.First) - int(a.Last-a.First) })
		ranges = ranges[:natRanges]
	}
	n := uint32(0)
	for _, p := range ranges {
		size := uint32(p.Last) - uint32(max(p.First, 1)) + 1
		if block != 0 {
			size -= size % uint32(block)
		}
		if size == 0 {
			continue
		}
		used := slices.Index(r.record.RangeSize[:], 0)
		r.record.RangeFirst[used], r.record.RangeSize[used] = max(p.First, 1), uint16(size)
		n += size
	}
	if n == 0 {
		return fmt.Errorf("ports: no ports are left to assign (blockSize %d)", block)
	}
	r.record.PortCount, r.record.BlockSize = n, block
	// A stride that is coprime to the count visits every port once, with successive ports far
	// apart.
	r.record.PortStride = n*5/8 | 1
	for gcd(n, r.record.PortStride) != 1 {
		r.record.PortStride++
	}
	return nil
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// mergeRanges returns ranges in order, without overlaps.
func mergeRanges(ranges []datapath.PortRange) []datapath.PortRange {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b datapath.PortRange) int { return int(a.First) - int(b.First) })
	merged := ranges[:0]
	for _, p := range ranges {
		if n := len(merged); n > 0 && int(p.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, p.Last)
			continue
		}
		merged = append(merged, p)
	}
	return merged
}
