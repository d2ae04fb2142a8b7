// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// converter converts keys or values from one layout to another, matching fields by name. New fields
// are zero; removed fields are dropped.
type converter struct {
	size  int // of the result, in bytes
	moves []move
}

// move is a run of bytes that stays unchanged, or a field whose width or enum values change.
type move struct {
	from, to  field
	unchanged bool
	values    map[int64]int64 // values of an enum, old to new
}

// newConverter fails if the conversion would lose or corrupt information. No field of a key may be
// removed, because two entries could become one.
func newConverter(from, to fields, key bool) (*converter, error) {
	c := &converter{size: to.size}
	for i := range to.list {
		t := &to.list[i]
		f := from.find(t.name)
		if f == nil || t.padding() {
			continue
		}
		m, err := newMove(f, t)
		if err != nil {
			return nil, err
		}
		c.moves = append(c.moves, m)
	}
	for i := range from.list {
		f := &from.list[i]
		t := to.find(f.name)
		if key && !f.padding() && (t == nil || t.count < f.count) {
			return nil, fmt.Errorf("field %q of the key is missing or shorter", f.name)
		}
	}
	c.merge()
	return c, nil
}

func newMove(f, t *field) (m move, err error) {
	m = move{from: *f, to: *t}
	if f.wire != t.wire || f.wire && f.size != t.size {
		return m, fmt.Errorf("field %q has another byte order or size on the wire", f.name)
	}
	if (f.enum == nil) != (t.enum == nil) {
		return m, fmt.Errorf("field %q is an enum in only one of the two layouts", f.name)
	}
	for name, v := range f.enum {
		if w, ok := t.enum[name]; !ok || w != v {
			m.values = make(map[int64]int64)
		}
	}
	if m.values != nil {
		for name, v := range f.enum {
			if w, ok := t.enum[name]; ok {
				m.values[v] = w
			}
		}
	}
	m.unchanged = m.values == nil && f.size == t.size && f.signed == t.signed && f.count == t.count
	return m, nil
}

// merge joins adjacent unchanged fields into one run.
func (c *converter) merge() {
	slices.SortFunc(c.moves, func(a, b move) int { return a.to.offset - b.to.offset })
	var merged []move
	for _, m := range c.moves {
		if m.unchanged {
			m.from.count, m.from.size = m.from.count*m.from.size, 1
			if n := len(merged); n > 0 {
				last := &merged[n-1]
				if last.unchanged && last.from.offset+last.from.count == m.from.offset && last.to.offset+last.from.count == m.to.offset {
					last.from.count += m.from.count
					continue
				}
			}
		}
		merged = append(merged, m)
	}
	c.moves = merged
}

// convert converts the bytes of from, and writes the result to the first c.size bytes of to.
func (c *converter) convert(to, from []byte) error {
	clear(to)
	for i := range c.moves {
		m := &c.moves[i]
		if m.unchanged {
			copy(to[m.to.offset:m.to.offset+m.from.count], from[m.from.offset:])
			continue
		}
		if err := m.convert(to, from); err != nil {
			return err
		}
	}
	return nil
}

func (m *move) convert(to, from []byte) error {
	for i := range m.from.count {
		v := number(from[m.from.offset+i*m.from.size:], m.from.size, m.from.signed)
		if m.values != nil {
			w, ok := m.values[v]
			if !ok {
				return fmt.Errorf("field %q: value %d is not in the new enum", m.from.name, v)
			}
			v = w
		}
		if i >= m.to.count {
			if v != 0 {
				return fmt.Errorf("field %q: there is no room for its value %d", m.from.name, i)
			}
			continue
		}
		at := to[m.to.offset+i*m.to.size:]
		setNumber(at, m.to.size, v)
		// An unsigned 64-bit number compares equal to the signed number with the same bits.
		if number(at, m.to.size, m.to.signed) != v || m.from.signed != m.to.signed && v < 0 {
			return fmt.Errorf("field %q: %d does not fit into %d bytes", m.from.name, v, m.to.size)
		}
	}
	return nil
}

func number(b []byte, size int, signed bool) int64 {
	var v uint64
	switch size {
	case 1:
		v = uint64(b[0])
	case 2:
		v = uint64(binary.NativeEndian.Uint16(b))
	case 4:
		v = uint64(binary.NativeEndian.Uint32(b))
	default:
		return int64(binary.NativeEndian.Uint64(b))
	}
	if shift := 64 - 8*size; signed {
		return int64(v<<shift) >> shift
	}
	return int64(v)
}

func setNumber(b []byte, size int, v int64) {
	switch size {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.NativeEndian.PutUint16(b, uint16(v))
	case 4:
		binary.NativeEndian.PutUint32(b, uint32(v))
	default:
		binary.NativeEndian.PutUint64(b, uint64(v))
	}
}

// entryConverter converts the entries of a map.
type entryConverter struct{ key, value *converter }

// newEntryConverter compares the current layout of a map with the wanted one.
func newEntryConverter(t ebpf.MapType, from, to shape) (*entryConverter, error) {
	if from.same(to) {
		return nil, nil
	}
	if t == ebpf.LPMTrie && !from.key.same(to.key) {
		return nil, fmt.Errorf("the key, of which bits are compared, has another layout")
	}
	key, err := newConverter(from.key, to.key, true)
	if err != nil {
		return nil, err
	}
	value, err := newConverter(from.value, to.value, false)
	if err != nil {
		return nil, err
	}
	return &entryConverter{key, value}, nil
}
