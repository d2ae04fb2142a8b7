// SPDX-License-Identifier: Apache-2.0

package classify

import (
	"encoding/binary"
	"math/bits"

	"github.com/loxilight/loxilight/datapath"
)

func (m *Image) word(at int) uint32 { return binary.LittleEndian.Uint32(m.b[at:]) }
func (m *Image) long(at int) uint64 { return binary.LittleEndian.Uint64(m.b[at:]) }

// Lookup returns the index, in the order given to [Compile], of the first rule that matches p, and
// false if no rule matches.
func (m *Image) Lookup(p *Packet) (int, bool) {
	place := m.search(p)
	if place < 0 {
		return -1, false
	}
	return m.rank(place), true
}

// rank returns the index of the rule at a place in the vectors.
func (m *Image) rank(place int) int {
	return int(m.word(int(m.word(headerRules)) + recordBytes*place + recordRank))
}

// search returns the place of the rule that applies to p, or -1.
func (m *Image) search(p *Packet) int {
	var vectors []int
	direct, sum := m.word(headerDirect) != 0, 0
	for field, t := range tries(p) {
		sum += int(m.walk(m.word(headerRoots+4*t.root), t.key))
		table := int(m.word(headerTables + 4*field))
		if table == 0 {
			continue
		}
		v := int(m.word(table + 4*sum))
		if direct {
			return v - 1
		}
		vectors = append(vectors, v)
		sum = 0
	}
	return m.first(vectors)
}

// question is a key and the trie in which it is looked up.
type question struct {
	root int
	key  key
}

// tries returns the tries and keys to look up for p, by field.
func tries(p *Packet) (t [fieldCount]question) {
	t[fieldHook] = question{rootHook, number(uint64(p.Hook), 8)}
	t[fieldDSCP] = question{rootDSCP, number(uint64(p.DSCP), 8)}
	t[fieldTCPFlags] = question{rootNoTCPFlags, key{}}
	if p.HasTCPFlags {
		t[fieldTCPFlags] = question{rootTCPFlags, number(uint64(p.TCPFlags), 8)}
	}
	t[fieldVLAN] = question{rootVLAN, number(uint64(p.VLAN), 16)}
	t[fieldIn] = question{rootIn, keyOfDevice(p.In)}
	t[fieldOut] = question{rootOut, keyOfDevice(p.Out)}
	t[fieldSourcePort] = question{rootNoSourcePort, key{}}
	t[fieldLayer4] = question{rootNoLayer4, number(uint64(p.Protocol), 8)}
	if p.HasPorts {
		t[fieldLayer4] = question{rootLayer4, number(uint64(p.Protocol)<<16|uint64(p.DestinationPort), 24)}
		if hasPorts(datapath.Protocol(p.Protocol)) {
			t[fieldSourcePort] = question{rootSourcePort, number(uint64(p.SourcePort), 16)}
		}
	}
	family := 0
	if p.Source.Is6() {
		family = 1
	}
	t[fieldSource] = question{rootSource4 + family, keyOfAddr(p.Source)}
	t[fieldDestination] = question{rootDestination4 + family, keyOfAddr(p.Destination)}
	return t
}

// walk looks k up in a trie.
func (m *Image) walk(entry uint32, k key) uint32 {
	for entry&entryLeaf == 0 {
		at := int(entry&entryValue) * 4
		n := 8
		if entry&entrySkip != 0 {
			n = int(m.word(at + skipBits))
			if k.hi>>(64-n) == m.long(at) {
				entry = m.word(at + skipSame)
			} else {
				entry = m.word(at + skipOther)
			}
		} else {
			b := k.byteOf(0)
			word := m.long(at+b/64*8) & (2<<(b%64) - 1)
			rank := int(m.b[at+nodeCounts+b/64]) + bits.OnesCount64(word)
			entry = m.word(at + nodeEntries + 4*(rank-1))
		}
		k = key{k.hi<<n | k.lo>>(64-n), k.lo << n}
	}
	return entry & entryValue
}

// first returns the place of the rule with the lowest rank whose bit is set in all vectors, or -1.
func (m *Image) first(vectors []int) int {
	chunks, regions, found := int(m.word(headerChunks)), int(m.word(headerRegions)), -1
	words := make([]uint64, chunks/8)
	for i := range words {
		words[i] = m.long(headerWords + 8*i)
		for _, v := range vectors {
			words[i] &= m.long(v + 8*i)
		}
	}
	for i := range words {
		for words[i] != 0 {
			word := 64*i + bits.TrailingZeros64(words[i])
			words[i] &= words[i] - 1
			all := ^uint64(0)
			for _, v := range vectors {
				all &= m.long(int(m.word(v+chunks+4*(word/chunkWords))) + 8*(word%chunkWords))
			}
			if all == 0 {
				continue
			}
			if place := word*64 + bits.TrailingZeros64(all); found < 0 || m.rank(place) < m.rank(found) {
				found = place
			}
			if regions == 0 {
				return found
			}
			for j := range words { // later rules of this region have a higher rank
				words[j] &= m.long(int(m.word(regions+4*word)) + 8*j)
			}
		}
	}
	return found
}

// Find returns the first rule that matches p, without its name and match, and false if no rule
// matches.
func (m *Image) Find(p *Packet) (r Rule, found bool) {
	place := m.search(p)
	if place < 0 {
		return r, false
	}
	return m.rule(place), true
}

// rule returns the rule at a place, without its name and match.
func (m *Image) rule(place int) Rule {
	at := int(m.word(headerRules)) + recordBytes*place
	return Rule{ID: m.word(at), Action: m.b[at+4], Flags: m.b[at+5]}
}

// Rules returns the rules whose ID is not 0, without their names and matches, in no particular
// order.
func (m *Image) Rules() (rules []Rule) {
	words := 0
	for i := range aggregateMax {
		words += bits.OnesCount64(m.long(headerWords + 8*i))
	}
	for place := range 64 * words {
		if r := m.rule(place); r.ID != 0 {
			rules = append(rules, r)
		}
	}
	return rules
}

// AsksWhereTo reports whether a rule matches the output device of packets.
func (m *Image) AsksWhereTo() bool { return m.word(headerRoots+4*rootOut)&entryLeaf == 0 }

// AsksOfFrames reports whether a rule matches a VLAN or a DSCP: these may differ between the
// packets of a connection.
func (m *Image) AsksOfFrames() bool {
	return m.word(headerRoots+4*rootVLAN)&entryLeaf == 0 || m.word(headerRoots+4*rootDSCP)&entryLeaf == 0
}
