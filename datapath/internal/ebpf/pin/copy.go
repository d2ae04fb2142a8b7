// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
)

// follows reports whether programs may have added entries since the copy, so that the copy must be
// repeated. Arrays have all their entries from the start, so they are copied once: packets that the
// old programs count in them during the replacement are missing from the counters.
func follows(x *replacement) bool {
	if x.class.connections {
		return true
	}
	switch x.target.Type() {
	case ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		return !x.class.notCopied && !x.class.createdByDaemon
	}
	return false
}

// cells are keys or values of one size, as a slice of arrays, which the library requires for
// batches. bytes is the same memory.
type cells struct {
	v     reflect.Value
	size  int
	bytes []byte
}

func newCells(count int, size uint32) cells {
	v := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(size), reflect.TypeFor[byte]())), count, count)
	return cells{v, int(size), unsafe.Slice((*byte)(v.UnsafePointer()), count*int(size))}
}

func (c cells) at(i int) []byte { return c.bytes[i*c.size : (i+1)*c.size] }
func (c cells) first(n int) any { return c.v.Slice(0, n).Interface() }
func (c cells) all() any        { return c.v.Interface() }

// eachEntry calls each for every entry of a map with one value per key. The arguments of each are
// valid only during the call.
func eachEntry(m *ebpf.Map, each func(key, value []byte) error) error {
	if m.Type() != ebpf.LPMTrie {
		return eachBatch(m, func(keys, values cells, n int) error {
			for i := range n {
				if err := each(keys.at(i), values.at(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var key, value []byte
	it := m.Iterate()
	for it.Next(&key, &value) {
		if err := each(key, value); err != nil {
			return err
		}
	}
	if err := it.Err(); !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	return nil
}

// batchBytes limits the values that one system call reads.
const batchBytes = 4 << 20

// eachBatch reads a map in batches, and calls each with the entries of each batch and their number.
func eachBatch(m *ebpf.Map, each func(keys, values cells, n int) error) error {
	size := min(bpfmap.BatchSize, int(m.MaxEntries()), max(1, batchBytes/int(m.ValueSize())))
	keys, values := newCells(size, m.KeySize()), newCells(size, m.ValueSize())
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys.all(), values.all(), nil)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !last {
			return err
		}
		if err := each(keys, values, n); err != nil || last {
			return err
		}
	}
}

func perCPUMap(m *ebpf.Map) bool {
	switch m.Type() {
	case ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		return true
	}
	return false
}

// fill copies the entries of an earlier generation to m, which is not yet in use.
func fill(m *ebpf.Map, spec *ebpf.MapSpec, from generation) (count int, err error) {
	if perCPUMap(m) || m.Type() == ebpf.LPMTrie {
		return oneByOne(m, from, ebpf.UpdateAny)
	}
	if m.Type() == ebpf.ArrayOfMaps && from.convert == nil {
		return shareMaps(m, from.m)
	}
	if m.Type() == ebpf.ArrayOfMaps {
		return fillSegments(m, spec.InnerMap, from)
	}
	size := min(bpfmap.BatchSize, int(from.m.MaxEntries()))
	toKeys, toValues := newCells(size, m.KeySize()), newCells(size, m.ValueSize())
	array := m.Type() == ebpf.Array
	err = eachBatch(from.m, func(keys, values cells, n int) error {
		kept := 0
		for i := range n {
			if array && allZero(values.at(i)) {
				continue
			}
			if err := from.entry(toKeys.at(kept), toValues.at(kept), keys.at(i), values.at(i)); err != nil {
				return err
			}
			kept++
		}
		if kept == 0 {
			return nil
		}
		count += kept
		_, err := m.BatchUpdate(toKeys.first(kept), toValues.first(kept), nil)
		return err
	})
	return count, tooFull(err, m)
}

// shareMaps also inserts into m the inner maps of an earlier outer map.
func shareMaps(m, from *ebpf.Map) (count int, err error) {
	for i := range min(m.MaxEntries(), from.MaxEntries()) {
		var inner *ebpf.Map
		if err := from.Lookup(i, &inner); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		} else if err != nil {
			return count, err
		}
		err := m.Put(i, inner)
		inner.Close() // both outer maps hold it
		if err != nil {
			return count, err
		}
		count++
	}
	return count, nil
}

// fillSegments inserts into m segments with the converted entries of the segments of an earlier
// array.
func fillSegments(m *ebpf.Map, spec *ebpf.MapSpec, from generation) (count int, err error) {
	segment := func(i uint32) error {
		old := generation{comparison: from.comparison}
		if err := from.m.Lookup(i, &old.m); err != nil {
			return err
		}
		defer old.m.Close() // only closes a file descriptor
		inner, err := ebpf.NewMap(spec)
		if err != nil {
			return err
		}
		defer inner.Close() // m holds it
		n, err := fill(inner, spec, old)
		count += n
		return errors.Join(err, m.Put(i, inner))
	}
	for i := range from.m.MaxEntries() {
		if err := segment(i); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return count, err
		}
	}
	return count, nil
}

// tooFull explains the error that occurs if entries were added after they were counted.
func tooFull(err error, m *ebpf.Map) error {
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("it holds more entries than its new size %d: raise the table sizes in the configuration: %w", m.MaxEntries(), err)
	}
	return err
}

// entry copies one entry, converted if necessary.
func (g *generation) entry(toKey, toValue, key, value []byte) error {
	if g.convert == nil {
		copy(toKey, key)
		copy(toValue, value)
		return nil
	}
	if err := errors.Join(g.convert.key.convert(toKey, key), g.convert.value.convert(toValue, value)); err != nil {
		return fmt.Errorf("%w: %w", err, datapath.ErrRefused)
	}
	return nil
}

// recencySlack is the number of ticks by which an entry may be newer than its time field.
const recencySlack = 15

// ages lists the fields that hold the creation time of an entry, the most precise one first.
var ages = []string{"meta.created_tick", "created_tick", "seen_tick", "used_tick"}

// age returns the field of a value that holds the age of its entry, or nil.
func (g *generation) age() *field {
	if s, err := shapeOfPinned(g.m); err == nil {
		for _, name := range ages {
			if f := s.value.find(name); f != nil && f.size == 4 && f.count == 1 {
				return f
			}
		}
	}
	return nil
}

// addMissing copies to m the entries of an earlier generation that m does not contain. If since is
// not 0, and entries have an age, entries that were certainly created before that tick are skipped.
func addMissing(m *ebpf.Map, from generation, since uint32) (count int, err error) {
	if perCPUMap(m) {
		return oneByOne(m, from, ebpf.UpdateNoExist)
	}
	var age *field
	if since != 0 {
		age = from.age()
	}
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	err = eachBatch(from.m, func(keys, values cells, n int) error {
		for i := range n {
			if age != nil {
				made := uint32(number(values.at(i)[age.offset:], age.size, false))
				if int32(made-since) < -recencySlack {
					continue
				}
			}
			if from.entry(key, value, keys.at(i), values.at(i)) != nil {
				continue // cannot be converted to the new layout; continue with the others
			}
			switch err := m.Update(key, value, ebpf.UpdateNoExist); {
			case err == nil:
				count++
			case !errors.Is(err, ebpf.ErrKeyExist) && !errors.Is(err, unix.E2BIG):
				return err
			}
		}
		return nil
	})
	return count, err
}

// oneByOne copies a map that has several values per key, or that does not support batches. Several
// values per key are counters; a counter that the new layout does not know (of a drop reason that
// only a later version has) is lost, rather than that a start is refused.
func oneByOne(m *ebpf.Map, from generation, flags ebpf.MapUpdateFlags) (count int, err error) {
	toKey, key := make([]byte, m.KeySize()), make([]byte, from.m.KeySize())
	var value any = new([]byte)
	if perCPUMap(m) {
		value = new([][]byte)
	}
	it := from.m.Iterate()
	for it.Next(&key, value) {
		var to any
		var err error
		switch v := value.(type) {
		case *[]byte:
			b := make([]byte, m.ValueSize())
			err, to = from.entry(toKey, b, key, *v), b
		case *[][]byte:
			each := make([][]byte, len(*v))
			for cpu, b := range *v {
				each[cpu] = make([]byte, m.ValueSize())
				err = errors.Join(err, from.entry(toKey, each[cpu], key, b))
			}
			to = each
		}
		if err == nil {
			err = m.Update(toKey, to, flags)
		}
		switch {
		case err == nil:
			count++
		case perCPUMap(m) && errors.Is(err, datapath.ErrRefused):
		case m.Type() == ebpf.PerCPUArray && errors.Is(err, unix.E2BIG): // beyond its end
		case !errors.Is(err, ebpf.ErrKeyExist):
			return count, tooFull(err, m)
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return count, err
	}
	return count, nil
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
