// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// The connection table consists of arrays of blocks. The place of an entry depends on the number of
// blocks, and programs add entries meanwhile: so its entries are inserted one by one, and the copy
// is repeated.

// blockLayout is where a block has its entries, and what they contain.
type blockLayout struct {
	size, slots int // bytes of a block, and its entries
	entry, more part
}

// part is one of the arrays in a block.
type part struct {
	offset int
	fields fields
}

// at returns the bytes of an element.
func (p *part) at(block []byte, slot int) []byte {
	return block[p.offset+slot*p.fields.size:][:p.fields.size]
}

// blockLayoutOf returns the layout of the type of a block.
func blockLayoutOf(t btf.Type) (l blockLayout, err error) {
	if one, ok := btf.As[*btf.Array](t); ok {
		t = one.Type
	}
	s, ok := btf.As[*btf.Struct](t)
	if !ok {
		return l, fmt.Errorf("its values are no blocks of connections")
	}
	l.size = int(s.Size)
	for name, p := range map[string]*part{"entry": &l.entry, "more": &l.more} {
		for _, m := range s.Members {
			array, ok := btf.As[*btf.Array](m.Type)
			if m.Name != name || !ok {
				continue
			}
			l.slots, p.offset = int(array.Nelems), int(m.Offset.Bytes())
			if p.fields, err = fieldsOf(array.Type); err != nil {
				return l, err
			}
		}
		if p.fields.size == 0 {
			return l, fmt.Errorf("its blocks have no field %q", name)
		}
	}
	return l, nil
}

// blockConverter converts the entries of blocks of an earlier layout.
type blockConverter struct {
	from        blockLayout
	entry, more *converter // nil: unchanged
}

// compareBlocks returns the converter from the blocks of old to the blocks of spec.
func compareBlocks(old *ebpf.Map, spec *ebpf.MapSpec) (*blockConverter, bool, error) {
	segments, err := segmentsOf(old)
	if err != nil {
		return nil, false, err
	}
	defer kernel.CloseMaps(segments)
	if len(segments) == 0 {
		return nil, false, errors.New("it has no segment")
	}
	_, value, err := pinnedTypes(segments[0])
	if err != nil {
		return nil, false, err
	}
	c := new(blockConverter)
	if c.from, err = blockLayoutOf(value); err != nil {
		return nil, false, err
	}
	to, err := blockLayoutOf(spec.InnerMap.Value)
	if err != nil {
		return nil, false, err
	}
	same := old.Type() == spec.Type && c.from.size == to.size && c.from.slots == to.slots && c.from.entry.offset == to.entry.offset && c.from.more.offset == to.more.offset
	for _, p := range []struct {
		from, to fields
		c        **converter
	}{{c.from.entry.fields, to.entry.fields, &c.entry}, {c.from.more.fields, to.more.fields, &c.more}} {
		if p.from.same(p.to) {
			continue
		}
		same = false
		if *p.c, err = newConverter(p.from, p.to, false); err != nil {
			return nil, false, err
		}
	}
	return c, same, nil
}

// segmentsOf returns the segments of a pinned table. Earlier versions had a single array.
func segmentsOf(m *ebpf.Map) ([]*ebpf.Map, error) {
	if m.Type() == ebpf.ArrayOfMaps {
		return kernel.SegmentsOf(m)
	}
	if m.Type() != ebpf.Array {
		return nil, fmt.Errorf("type %s, want %s", m.Type(), ebpf.ArrayOfMaps)
	}
	same, err := m.Clone()
	return []*ebpf.Map{same}, err
}

// keepSegments sets the size in spec to the size of an earlier table that has several segments: both
// tables have the same number of segments until no program uses the earlier one. Reports whether it
// has several.
func keepSegments(old *ebpf.Map, spec *ebpf.MapSpec) (bool, error) {
	if !classOf(spec).connections || old.Type() != ebpf.ArrayOfMaps {
		return false, nil
	}
	segments, err := kernel.SegmentsOf(old)
	if err != nil || len(segments) < 2 {
		kernel.CloseMaps(segments)
		return false, err
	}
	defer kernel.CloseMaps(segments)
	setEntries(spec, segments[0].MaxEntries())
	return true, nil
}

// eachConnection calls each for all entries of an earlier table, converted, with the tick in which
// their connection was created. The arguments of each are valid only during the call.
func (c *blockConverter) eachConnection(from *ebpf.Map, each func(entry, more []byte, created uint32) error) error {
	tail, created := c.from.entry.fields.find("key.proto"), c.from.more.fields.find("created_tick")
	if tail == nil || created == nil {
		return errors.New("its connections have no protocol, or no time")
	}
	var entry, more []byte
	convert := func(x *converter, b []byte, to *[]byte) error {
		if x == nil {
			*to = b
			return nil
		}
		if *to == nil {
			*to = make([]byte, x.size)
		}
		return x.convert(*to, b)
	}
	segments, err := segmentsOf(from)
	if err != nil {
		return err
	}
	defer kernel.CloseMaps(segments)
	eachBlock := func(_, block []byte) error {
		for slot := range c.from.slots {
			b, m := c.from.entry.at(block, slot), c.from.more.at(block, slot)
			if b[tail.offset] == 0 {
				continue
			}
			if convert(c.entry, b, &entry) != nil || convert(c.more, m, &more) != nil {
				continue // cannot be converted; continue with the others
			}
			if err := each(entry, more, uint32(number(m[created.offset:], created.size, false))); err != nil {
				return err
			}
		}
		return nil
	}
	for _, segment := range segments {
		if err := eachEntry(segment, eachBlock); err != nil {
			return err
		}
	}
	return nil
}

// addConnections inserts the connections of an earlier table that x does not contain. If since is not
// 0, connections that were certainly created before that tick are skipped.
func (r *Replacements) addConnections(x *replacement, from generation, since uint32) (count int, err error) {
	to, err := kernel.OpenConnInserter(r.Maps, x.name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	full := 0
	err = from.blocks.eachConnection(from.m, func(entry, more []byte, created uint32) error {
		if since != 0 && int32(created-since) < -recencySlack {
			return nil
		}
		switch err := to.Insert(entry, more); {
		case err == nil:
			count++
		case errors.Is(err, unix.E2BIG):
			full++
		case !errors.Is(err, ebpf.ErrKeyExist):
			return err
		}
		return nil
	})
	if full > 0 {
		r.log.Warn("some connections found no place in the new table", "table", x.name, "entries", full)
	}
	return count, err
}

// countConnections returns the number of entries in use of a table.
func (c *blockConverter) countConnections(m *ebpf.Map) (n uint32, err error) {
	err = c.eachConnection(m, func([]byte, []byte, uint32) error {
		n++
		return nil
	})
	return n, err
}
