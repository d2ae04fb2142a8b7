// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"maps"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// decoded returns the prefix to which an entry of a pool translates.
func decoded(t *testing.T, p kernel.NatPrefix) netip.Prefix {
	t.Helper()
	a, host := p.Addr.Addr(), 0
	for _, word := range p.Host.Word {
		host += bits.OnesCount32(word)
	}
	b := p.Host.Addr().As16()
	mask := new(big.Int).SetBytes(b[:])
	if new(big.Int).And(mask, new(big.Int).Add(mask, big.NewInt(1))).Sign() != 0 {
		t.Errorf("%s: the host bits %x are not the last ones", a, b)
	}
	return netip.PrefixFrom(a, a.BitLen()-host)
}

// disjoint returns random prefixes, none of which contains another.
func disjoint(r *rand.Rand, count int) (list []netip.Prefix) {
	for range count {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(r.IntN(256)), byte(r.IntN(256))}), 20+r.IntN(13))
		if r.IntN(3) == 0 {
			b := [16]byte{0x20, 1, 0xd, 0xb8, 0, byte(r.IntN(256)), byte(r.IntN(256))}
			p = netip.PrefixFrom(netip.AddrFrom16(b), []int{40, 44, 48, 56, 64, 72, 128}[r.IntN(7)])
		}
		p = p.Masked()
		if !slices.ContainsFunc(list, p.Overlaps) {
			list = append(list, p)
		}
	}
	return list
}

// TestPools: the pieces of a pool are disjoint, and contain exactly the addresses of its prefixes.
// All pieces of a family have the size of its smallest prefix if that takes at most 512 pieces;
// otherwise no piece is larger than necessary for that number.
func TestPools(t *testing.T) {
	single := func(count int) (list []netip.Prefix) {
		for i := range count {
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i / 128), byte(i%128) * 2}), 32))
		}
		return list
	}
	pools := [][]netip.Prefix{
		prefixes("203.0.113.7/32"), prefixes("203.0.113.64/28", "2001:db8:cb00:71::/64"), prefixes("10.0.0.0/8", "192.0.2.1/32"),
		prefixes("203.0.113.0/24", "198.51.100.0/24"), prefixes("203.0.112.0/23"), prefixes("0.0.0.0/0"), prefixes("::/0", "0.0.0.0/1", "192.0.2.1/32"),
		single(511), single(512), single(513), append(single(600), prefixes("10.0.0.0/8", "2001:db8::/48")...),
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 6))
		pools = append(pools, disjoint(r, 1+r.IntN(20)))
	}
	for _, pool := range pools {
		sets, err := compileNAT("away", 7, &datapath.NAT{Addresses: pool}, []datapath.PortRange{{First: 61000, Last: 65535}})
		if err != nil || sets[0] != nil {
			t.Fatalf("%v: rule for DNAT %v, error %v", pool, sets[0], err)
		}
		var pieces [2][]netip.Prefix
		for i, p := range sets[1].pool {
			of := decoded(t, p)
			family := kernel.FamilyOf(of.Addr())
			if pieces[family] = append(pieces[family], of); family == 0 && i >= len(pieces[0]) {
				t.Errorf("%v: IPv4 is not first", pool)
			}
		}
		for family, list := range pieces {
			if int(sets[1].record.PoolCount[family]) != len(list) {
				t.Errorf("%v: %d pieces, counted as %d", pool, len(list), sets[1].record.PoolCount[family])
			}
			wantPieces(t, list, slices.DeleteFunc(slices.Clone(pool), func(p netip.Prefix) bool { return kernel.FamilyOf(p.Addr()) != family }))
		}
	}
}

// wantPieces compares the pieces of one family with the prefixes that they divide.
func wantPieces(t *testing.T, list, of []netip.Prefix) {
	t.Helper()
	size := func(prefixes []netip.Prefix) *big.Int {
		sum := new(big.Int)
		for _, p := range prefixes {
			sum.Add(sum, new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits())))
		}
		return sum
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	shortest, longest := 128, 0
	for i, p := range list {
		if p != p.Masked() || i > 0 && p.Overlaps(list[i-1]) {
			t.Errorf("%v: piece %s overlaps %s", of, p, list[max(0, i-1)])
		}
		if !slices.ContainsFunc(of, func(whole netip.Prefix) bool { return whole.Bits() <= p.Bits() && whole.Contains(p.Addr()) }) {
			t.Errorf("%v: piece %s is not in the pool", of, p)
		}
		shortest, longest = min(shortest, p.Bits()), max(longest, p.Bits())
	}
	if size(list).Cmp(size(of)) != 0 {
		t.Errorf("%v: the pieces contain %s addresses, want %s", of, size(list), size(of))
	}
	smallest := 0
	for _, p := range of {
		smallest = max(smallest, p.Bits())
	}
	if len(list) > max(natPoolMax, len(of)) {
		t.Errorf("%v: %d pieces", of, len(list))
	}
	ideal := new(big.Int)
	for _, p := range of {
		ideal.Add(ideal, new(big.Int).Lsh(big.NewInt(1), uint(smallest-p.Bits())))
	}
	switch equal := shortest == longest; {
	case len(of) > 0 && ideal.Cmp(big.NewInt(natPoolMax)) <= 0 && (!equal || shortest != smallest):
		t.Errorf("%v: pieces from /%d to /%d, want /%d", of, shortest, longest, smallest)
	case len(of) > 0 && ideal.Cmp(big.NewInt(natPoolMax)) > 0 && len(of) <= natPoolMax/2 && len(list) < natPoolMax/4:
		t.Errorf("%v: only %d pieces", of, len(list))
	}
}

// TestPoolFamily: a rule with a pool of one family does not match the other family.
func TestPoolFamily(t *testing.T) {
	for pool, want := range map[string]string{
		"203.0.113.7/32": "[0.0.0.0/0]", "2001:db8::/64": "[::/0]", "203.0.113.7/32 2001:db8::/64": "[]", "": "[]",
	} {
		v := datapath.NAT{Addresses: prefixes(strings.Fields(pool)...)}
		sets, err := compileNAT("away", 7, &v, []datapath.PortRange{{First: 61000, Last: 65535}})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(sets[1].match.Source); got != want {
			t.Errorf("pool %q: sources %s, want %s", pool, got, want)
		}
	}
}

// run is a range of ports.
type run struct{ first, size int }

// wantRuns returns the ranges of ports that a rule uses, from a list of all ports.
func wantRuns(ranges []datapath.PortRange, block int) (runs []run) {
	var in [1<<16 + 1]bool
	for _, r := range ranges {
		for p := int(r.First); p <= int(r.Last); p++ {
			in[p] = p > 0
		}
	}
	for p := 1; p < 1<<16; p++ {
		switch {
		case in[p] && !in[p-1]:
			runs = append(runs, run{p, 1})
		case in[p]:
			runs[len(runs)-1].size++
		}
	}
	slices.SortStableFunc(runs, func(a, b run) int { return b.size - a.size })
	runs = runs[:min(8, len(runs))]
	for i := range runs {
		runs[i].size -= runs[i].size % max(1, block)
	}
	runs = slices.DeleteFunc(runs, func(r run) bool { return r.size == 0 })
	slices.SortFunc(runs, func(a, b run) int { return a.first - b.first })
	return runs
}

// TestSourcePorts compares the source ports of a rule with a list of all ports: the eight largest
// ranges of ports count, in whole blocks. The stride visits each port once.
func TestSourcePorts(t *testing.T) {
	lists := [][]datapath.PortRange{
		{{First: 1, Last: 65535}}, {{First: 0, Last: 65535}}, {{First: 65535, Last: 65535}}, {{First: 0, Last: 0}}, {{First: 5000, Last: 5000}},
		{{First: 1024, Last: 1087}, {First: 1088, Last: 1151}}, {{First: 61000, Last: 65535}, {First: 1024, Last: 1026}},
	}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 6))
		var list []datapath.PortRange
		for range 1 + r.IntN(14) {
			first := r.IntN(1 << (8 + r.IntN(9)))
			list = append(list, datapath.PortRange{First: uint16(first), Last: uint16(min(1<<16-1, first+r.IntN(1<<r.IntN(13))))})
		}
		lists = append(lists, list)
	}
	for i, list := range lists {
		block := []int{0, 64, 128}[i%3]
		v := datapath.NAT{Type: datapath.Masquerade, Ports: list, BlockSize: uint16(block)}
		if i%2 == 0 {
			v.Ports = nil // the default ports instead
		}
		sets, err := compileNAT("away", 7, &v, list)
		want := wantRuns(list, block)
		if len(want) == 0 {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(blockSize %d)", block)) {
				t.Errorf("%v in blocks of %d: error %v", list, block, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%v in blocks of %d: %v", list, block, err)
		}
		record, count := &sets[1].record, 0
		var got []run
		for i, size := range record.RangeSize {
			if size > 0 {
				got = append(got, run{int(record.RangeFirst[i]), int(size)})
				count += int(size)
			}
		}
		slices.SortFunc(got, func(a, b run) int { return a.first - b.first })
		if !slices.Equal(got, want) || int(record.PortCount) != count || int(record.BlockSize) != block {
			t.Errorf("%v in blocks of %d: %v with %d ports, want %v", list, block, got, record.PortCount, want)
		}
		visited := make(map[int]bool)
		for i := range count {
			visited[i*int(record.PortStride)%count] = true
		}
		if len(visited) != count || record.PortStride > 1<<16 {
			t.Errorf("stride %d visits %d of %d ports", record.PortStride, len(visited), count)
		}
	}
}

// TestDestinations checks the translation of destinations, and the errors about ports and pairs.
func TestDestinations(t *testing.T) {
	ports := func(first, last uint16) []datapath.PortRange { return []datapath.PortRange{{First: first, Last: last}} }
	to := prefixes("192.0.2.10/32")
	for _, tt := range []struct {
		name string
		nat  datapath.NAT
		want kernel.NatRule // without pool
		err  string         // "": none
	}{
		{"address", datapath.NAT{Type: datapath.DNAT, Addresses: to}, kernel.NatRule{}, ""},
		{"port", datapath.NAT{Type: datapath.DNAT, Addresses: to, Ports: ports(9029, 9029)},
			kernel.NatRule{PortCount: 1, RangeFirst: [8]uint16{9029}, RangeSize: [8]uint16{1}}, ""},
		{"port by port", datapath.NAT{Type: datapath.DNAT, Addresses: to, Ports: ports(9600, 9699), Match: datapath.Match{Ports: ports(4600, 4699)}},
			kernel.NatRule{PortCount: 100, Flags: kernel.NATEachPort, MatchPort: 4600, RangeFirst: [8]uint16{9600}, RangeSize: [8]uint16{100}}, ""},
		{"fewer ports", datapath.NAT{Type: datapath.DNAT, Addresses: to, Ports: ports(9600, 9699), Match: datapath.Match{Ports: ports(4600, 4698)}},
			kernel.NatRule{}, "ports: 9600-9699 needs one range as long in match.ports"},
		{"any port", datapath.NAT{Type: datapath.DNAT, Addresses: to, Ports: ports(9600, 9699)},
			kernel.NatRule{}, "ports: 9600-9699 needs one range as long in match.ports"},
		{"two ranges", datapath.NAT{Type: datapath.DNAT, Addresses: to, Ports: append(ports(80, 80), ports(81, 81)...)},
			kernel.NatRule{}, "ports: DNAT takes one range, not 2"},
		{"pairs of different length", datapath.NAT{Type: datapath.DNAT, OneToOne: true, Addresses: prefixes("192.0.2.0/25"), Match: datapath.Match{Destination: prefixes("10.0.1.0/24")}},
			kernel.NatRule{}, "addresses: 192.0.2.0/25 and 10.0.1.0/24 differ in prefix length or address family"},
		{"pairs of different families", datapath.NAT{OneToOne: true, Addresses: prefixes("2001:db8::/24"), Match: datapath.Match{Source: prefixes("10.0.1.0/24")}},
			kernel.NatRule{}, "addresses: 2001:db8::/24 and 10.0.1.0/24 differ in prefix length or address family"},
		{"too few addresses", datapath.NAT{OneToOne: true, Addresses: to, Match: datapath.Match{Source: prefixes("10.0.1.0/32", "10.0.1.1/32")}},
			kernel.NatRule{}, "addresses: 1 prefixes, want 2 as in the match"},
	} {
		sets, err := compileNAT("in", 7, &tt.nat, nil)
		switch {
		case tt.err != "":
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s: error %v, want %s", tt.name, err, tt.err)
			}
			continue
		case err != nil || sets[0] == nil || sets[1] != nil:
			t.Fatalf("%s: rules %v, error %v", tt.name, sets, err)
		}
		tt.want.Id, tt.want.Type, tt.want.PoolCount[0] = 7, 1, 1 // NAT_DNAT
		if sets[0].record != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, sets[0].record, tt.want)
		}
	}
}

// TestPairs: each prefix of the match is paired with the address of the same position.
func TestPairs(t *testing.T) {
	from, to := prefixes("10.0.1.0/24", "10.0.2.7/32", "2001:db8:1::/64"), prefixes("203.0.113.0/24", "203.0.112.9/32", "2001:db8:2::/64")
	for _, v := range []datapath.NAT{
		{OneToOne: true, Match: datapath.Match{Source: from}, Addresses: to},
		{Type: datapath.DNAT, OneToOne: true, Match: datapath.Match{Destination: from}, Addresses: to},
	} {
		sets, err := compileNAT("pair", 7, &v, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := sets[1]
		if v.Type == datapath.DNAT {
			r = sets[0]
		}
		got, want := map[string]string{}, map[string]string{}
		for i, key := range r.pairs {
			a := key.Addr.Addr()
			p := netip.PrefixFrom(a, int(key.PrefixLen)-32-128+a.BitLen())
			got[p.String()] = decoded(t, r.pairAddrs[i]).String()
			if want[from[i].String()] = to[i].String(); key.Slot != 7<<2 {
				t.Errorf("slot %d", key.Slot)
			}
		}
		if !maps.Equal(got, want) || r.record.Flags != kernel.NATOneToOne || len(r.pool) != 0 {
			t.Errorf("pairs %v, want %v; flags %d", got, want, r.record.Flags)
		}
	}
}
