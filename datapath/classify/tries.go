// SPDX-License-Identifier: Apache-2.0

package classify

import "net/netip"

// Trie is a trie that programs walk as they walk the tries of an [Image].
type Trie struct {
	Entry uint32 // where they begin
	Data  []byte // what entries refer to; empty if Entry is a leaf
}

// PortRun are ports from First to the port before the next run. Values are below [ValueMax].
type PortRun struct {
	First uint16
	Value uint32
}

// ValueMax is the bound of values in tries.
const ValueMax = entrySkip

// PortTrie returns a trie of ports, whose data will be at an offset, a multiple of 8. The first run
// begins with port 0.
func PortTrie(at int, runs []PortRun) (Trie, error) {
	keys := make([]run, len(runs))
	for i, r := range runs {
		keys[i] = run{number(uint64(r.First), 16), r.Value}
	}
	return trieOf(at, compact(keys))
}

// PrefixTrie returns a trie of the prefixes of a family, as PortTrie does: an address has the value
// of the longest prefix that contains it, or 0.
func PrefixTrie(at int, is4 bool, prefixes map[netip.Prefix]uint32) (Trie, error) {
	var all []owned
	for p, value := range prefixes {
		if p.Addr().Is4() == is4 {
			all = append(all, owned{start: keyOfAddr(p.Masked().Addr()), bits: p.Bits(), rule: -1, value: value})
		}
	}
	return trieOf(at, nestedRuns(0, all, func(_ uint32, same []owned) uint32 { return same[0].value }))
}

func trieOf(at int, runs []run) (Trie, error) {
	m := &memory{base: at}
	entry := m.trie(runs, 0)
	return Trie{entry, m.b}, m.err
}
