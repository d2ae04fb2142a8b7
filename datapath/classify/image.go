// SPDX-License-Identifier: Apache-2.0

package classify

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// The image is in the byte order of the machine, which is little-endian. It begins with struct
// rules_header of ebpf-src/types_rules.h, which contains the offsets of the other parts. All
// offsets are in bytes from the beginning.
const (
	Magic = 0x4c4c4302

	headerMagic     = 0
	headerRuleCount = 4
	headerSize      = 8 // of the image
	headerRules     = 12
	headerChunks    = 16
	headerDirect    = 20
	headerRegions   = 24
	headerWords     = 32
	headerRoots     = headerWords + 8*aggregateMax
	headerTables    = headerRoots + 4*16
	headerBytes     = headerTables + 4*12

	recordBytes = 12 // struct rule_record
	recordRank  = 8

	aggregateMax = 5 // words of an aggregate

	// ImageMax is the maximum size of an image.
	ImageMax = 64 << 20
)

// combinationsDirect limits the number of combinations of classes in a table that contains rules,
// if one table is sufficient; combinationsMax limits it in a table that contains vectors.
const (
	combinationsDirect = 1 << 14
	combinationsMax    = 1 << 12
)

// Image is a compiled rule set. It is safe for concurrent use.
type Image struct{ b []byte }

// Open reads an image from the result of [Image.Bytes], which may be followed by further bytes.
func Open(b []byte) (*Image, error) {
	if len(b) < headerBytes || binary.LittleEndian.Uint32(b) != Magic {
		return nil, fmt.Errorf("not a compiled rule set of this version")
	}
	size := binary.LittleEndian.Uint32(b[headerSize:])
	if int64(size) > int64(len(b)) {
		return nil, fmt.Errorf("a compiled rule set of %d bytes has only %d", size, len(b))
	}
	return &Image{b[:size]}, nil
}

// Bytes returns the contents of the image, which must not be changed.
func (m *Image) Bytes() []byte { return m.b }

// RuleCount returns the number of rules in the image.
func (m *Image) RuleCount() int { return int(m.word(headerRuleCount)) }

// group is a set of fields whose classes are folded into one.
type group struct {
	fields []int
	table  []uint32 // vectors, indexed by the sum of the fields' leaves
}

// image builds the image from all fields.
func (c *compiler) image() (*Image, error) {
	classes := c.classes()
	groups, strides := c.fold(classes)
	if c.vectors.err != nil {
		return nil, c.vectors.err
	}
	m := &memory{b: make([]byte, headerBytes)}
	header := func(at int, v uint32) { binary.LittleEndian.PutUint32(m.b[at:], v) }
	header(headerMagic, Magic)
	header(headerRuleCount, uint32(c.count()))
	words := len(c.rules) / 64
	aggregates := max(1, (words+63)/64)
	header(headerChunks, uint32(8*aggregates))
	for i := range words {
		m.b[headerWords+i/8] |= 1 << (i % 8)
	}
	if len(groups) == 1 {
		header(headerDirect, 1)
	}
	header(headerRules, m.put(c.records()))
	header(headerRegions, c.regions(m))
	places := newPlaces(c.vectors, aggregates)
	for _, g := range groups {
		table := make([]byte, 4*len(g.table))
		for i, vector := range g.table {
			v := uint32(c.decides(vector) + 1)
			if len(groups) > 1 {
				v = places.vector(m, vector)
			}
			binary.LittleEndian.PutUint32(table[4*i:], v)
		}
		header(headerTables+4*g.fields[len(g.fields)-1], m.put(table))
	}
	rest := len(m.b)
	for root, runs := range c.runs {
		field := fieldOf[root]
		m.shared = nil
		if field < fieldSource { // addresses have few duplicates
			m.shared = make(map[string]uint32)
		}
		for i := range runs {
			runs[i].value *= strides[field]
		}
		header(headerRoots+4*root, m.trie(runs, 0))
	}
	if m.err != nil {
		return nil, fmt.Errorf("%d rules (%d MiB), and the prefixes, ports and other fields that they name: %w", c.count(), rest>>20, m.err)
	}
	header(headerSize, uint32(len(m.b)))
	return &Image{m.b}, nil
}

func (c *compiler) records() []byte {
	b := make([]byte, recordBytes*len(c.rules))
	for i, r := range c.rules {
		binary.LittleEndian.PutUint32(b[recordBytes*i:], r.ID)
		b[recordBytes*i+4], b[recordBytes*i+5] = r.Action, r.Flags
		binary.LittleEndian.PutUint32(b[recordBytes*i+recordRank:], uint32(r.rank))
	}
	return b
}

func (c *compiler) count() (n int) {
	for _, r := range c.rules {
		if r != noRule {
			n++
		}
	}
	return n
}

// classes numbers the different vectors of each field, and replaces the values of its tries with
// these numbers.
func (c *compiler) classes() (classes [fieldCount][]uint32) {
	for field := range fieldCount {
		numbers := make(map[uint32]uint32)
		for root, runs := range c.runs {
			if fieldOf[root] != field {
				continue
			}
			for i, r := range runs {
				n, ok := numbers[r.value]
				if !ok {
					n = uint32(len(classes[field]))
					numbers[r.value] = n
					classes[field] = append(classes[field], r.value)
				}
				runs[i].value = n
			}
		}
	}
	return classes
}

// fold groups fields whose classes have few combinations, and returns, for each field, the stride
// of its classes in the table of its group.
func (c *compiler) fold(classes [fieldCount][]uint32) (groups []group, strides [fieldCount]uint32) {
	all := 1
	for _, of := range classes {
		all = min(all*len(of), combinationsDirect+1)
	}
	most := combinationsMax
	if all <= combinationsDirect {
		most = combinationsDirect
	}
	for field, of := range classes {
		last := len(groups) - 1
		if last < 0 || len(groups[last].table)*len(of) > most {
			groups = append(groups, group{table: of, fields: []int{field}})
			strides[field] = 1
			continue
		}
		g := &groups[last]
		strides[field] = uint32(len(g.table))
		g.fields = append(g.fields, field)
		table := make([]uint32, 0, len(g.table)*len(of))
		for _, vector := range of {
			for _, folded := range g.table {
				table = append(table, c.vectors.and(folded, vector))
			}
		}
		g.table = table
	}
	return groups, strides
}

// places holds the offsets of vectors and chunks in the image.
type places struct {
	v          *vectors
	aggregates int
	vectors    map[uint32]uint32
	chunks     map[uint32]uint32
}

func newPlaces(v *vectors, aggregates int) *places {
	return &places{v, aggregates, make(map[uint32]uint32), make(map[uint32]uint32)}
}

// vector writes a vector (its aggregate, then the offsets of its chunks) and returns the offset of
// the vector.
func (p *places) vector(m *memory, id uint32) uint32 {
	if at, ok := p.vectors[id]; ok {
		return at
	}
	parts := p.v.of(id)
	b := make([]byte, 8*p.aggregates+4*len(parts))
	for i, part := range parts {
		at, ok := p.chunks[part]
		if !ok {
			var c [8 * chunkWords]byte
			for j, w := range p.v.chunks[part] {
				binary.LittleEndian.PutUint64(c[8*j:], w)
			}
			at = m.put(c[:])
			p.chunks[part] = at
		}
		binary.LittleEndian.PutUint32(b[8*p.aggregates+4*i:], at)
		for j, w := range p.v.chunks[part] {
			if word := i*chunkWords + j; w != 0 {
				b[word/8] |= 1 << (word % 8)
			}
		}
	}
	at := m.put(b)
	p.vectors[id] = at
	return at
}

// Clone returns a copy that does not share memory with m.
func (m *Image) Clone() *Image { return &Image{bytes.Clone(m.b)} }
