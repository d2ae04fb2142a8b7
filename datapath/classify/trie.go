// SPDX-License-Identifier: Apache-2.0

package classify

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/loxilight/loxilight/datapath"
)

// An entry of a trie is a leaf, with its value; a node, in which the next byte of the key is looked
// up; or a skip, with which the next few bytes are compared.
const (
	entryLeaf  = 1 << 31
	entrySkip  = 1 << 30
	entryValue = entrySkip - 1 // of a leaf; otherwise an offset in units of 4 bytes
)

// A node has a bitmap of the 256 values of a byte, with a bit set where a run of equal entries
// begins, the number of bits set before each of its words, and the entries of the runs. A skip has
// a value, its number of bits, and the entries for matching keys and for other keys.
const (
	nodeCounts  = 32
	nodeEntries = 36
	skipBits    = 8
	skipSame    = 12
	skipOther   = 16
	skipSize    = 24
	skipMax     = 7 // bytes
	line        = 64
)

// memory is the image during construction.
type memory struct {
	b      []byte
	base   int               // offset of b in the image
	shared map[string]uint32 // offsets by data, to store equal data once; nil: not shared
	err    error
}

// put appends b, and returns its offset. Data that fits into a cache line does not cross a
// cache-line boundary.
func (m *memory) put(b []byte) uint32 {
	if at, ok := m.shared[string(b)]; ok {
		return at
	}
	at := (m.base + len(m.b) + 7) &^ 7
	if len(b) <= line && at/line != (at+len(b)-1)/line {
		at = (at + line - 1) &^ (line - 1)
	}
	if at+len(b) > ImageMax {
		if m.err == nil {
			m.err = fmt.Errorf("the image is larger than %d MiB: %w", ImageMax>>20, datapath.ErrCapacity)
		}
		return 0
	}
	m.b = append(append(m.b, make([]byte, at-m.base-len(m.b))...), b...)
	if m.shared != nil {
		m.shared[string(b)] = uint32(at)
	}
	return uint32(at)
}

// byteOf returns byte i of a key, from 0.
func (k key) byteOf(i int) int {
	if i < 8 {
		return int(k.hi >> (56 - 8*i) & 0xff)
	}
	return int(k.lo >> (120 - 8*i) & 0xff)
}

// bytes returns n bytes, at most seven, starting at byte i.
func (k key) bytes(i, n int) (v uint64) {
	for j := range n {
		v = v<<8 | uint64(k.byteOf(i+j))
	}
	return v
}

// endsAt reports whether no bit is set in byte i or after it.
func (k key) endsAt(i int) bool {
	switch {
	case i >= 16:
		return true
	case i >= 8:
		return k.lo<<(8*(i-8)) == 0
	}
	return k.hi<<(8*i) == 0 && k.lo == 0
}

func (k key) before() key {
	if k.lo == 0 {
		return key{k.hi - 1, ^uint64(0)}
	}
	return key{k.hi, k.lo - 1}
}

// common returns the number of leading bytes that two keys have in common.
func (k key) common(o key) int {
	if x := k.hi ^ o.hi; x != 0 {
		return bits.LeadingZeros64(x) / 8
	}
	return 8 + bits.LeadingZeros64(k.lo^o.lo)/8
}

// trie builds a trie from runs, whose values become the values of leaves, and returns its entry.
// All keys of the runs have the same first depth bytes, except that the first run may begin
// earlier.
func (m *memory) trie(runs []run, depth int) uint32 {
	if len(runs) == 1 || m.err != nil {
		return entryLeaf | runs[0].value
	}
	if last := runs[len(runs)-1]; last.value == runs[0].value {
		if n := runs[1].start.common(last.start.before()) - depth; n > 1 {
			return m.skip(runs, depth, min(n, skipMax))
		}
	}
	type child struct {
		first int
		entry uint32
	}
	children := []child{{0, entryLeaf | runs[0].value}}
	add := func(first int, entry uint32) {
		if n := len(children); children[n-1].first == first {
			children = children[:n-1]
		}
		if n := len(children); n == 0 || children[n-1].entry != entry {
			children = append(children, child{first, entry})
		}
	}
	for i := 1; i < len(runs); {
		b, first := runs[i].start.byteOf(depth), i
		if !runs[i].start.endsAt(depth + 1) {
			first-- // continues into this byte
		}
		for i < len(runs) && runs[i].start.byteOf(depth) == b {
			i++
		}
		add(b, m.trie(runs[first:i], depth+1))
		if b < 255 {
			add(b+1, entryLeaf|runs[i-1].value)
		}
	}
	node := make([]byte, nodeEntries+4*len(children))
	for i, c := range children {
		node[c.first/8] |= 1 << (c.first % 8)
		binary.LittleEndian.PutUint32(node[nodeEntries+4*i:], c.entry)
	}
	for w := 1; w < 4; w++ {
		node[nodeCounts+w] = node[nodeCounts+w-1] + byte(bits.OnesCount64(binary.LittleEndian.Uint64(node[8*(w-1):])))
	}
	return m.put(node) / 4
}

// skip builds a skip entry for runs that differ only for keys with the same n bytes.
func (m *memory) skip(runs []run, depth, n int) uint32 {
	other := entryLeaf | runs[0].value
	value := runs[1].start.bytes(depth, n)
	inside := runs
	if runs[len(runs)-1].start.common(runs[1].start) < depth+n {
		inside = inside[:len(inside)-1] // the run after these keys
	}
	if runs[1].start.endsAt(depth + n) {
		inside = inside[1:]
	}
	same := m.trie(inside, depth+n)
	b := make([]byte, skipSize)
	binary.LittleEndian.PutUint64(b, value)
	binary.LittleEndian.PutUint32(b[skipBits:], uint32(8*n))
	binary.LittleEndian.PutUint32(b[skipSame:], same)
	binary.LittleEndian.PutUint32(b[skipOther:], other)
	return entrySkip | m.put(b)/4
}
