// SPDX-License-Identifier: Apache-2.0

// Package testmap provides in-memory maps that behave like kernel maps and fail on demand, for
// tests without root.
package testmap

import (
	"maps"
	"reflect"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
)

// Map is a map in memory: an array, a hash table or a prefix trie. In a trie, a lookup matches only
// the exact prefix. It is not safe for concurrent use.
type Map struct {
	kind   ebpf.MapType
	max    uint32
	faults *Faults

	values map[any]reflect.Value // by key; in arrays, missing ones are zero
	order  []any                 // keys in the order they were added, for iteration
}

// Faults decides which map changes fail, and observes each change.
type Faults struct {
	// Fail returns the error of the next change; nil: it succeeds.
	Fail func() error
	// Changed is called after each successful change.
	Changed func()
}

var _ bpfmap.Store = (*Map)(nil)

// New returns an empty map of the type and size of spec.
func New(spec *ebpf.MapSpec, faults *Faults) *Map {
	return &Map{kind: spec.Type, max: spec.MaxEntries, faults: faults, values: map[any]reflect.Value{}}
}

func (m *Map) isArray() bool { return m.kind == ebpf.Array || m.kind == ebpf.PerCPUArray }

// MaxEntries implements [bpfmap.Store].
func (m *Map) MaxEntries() uint32 { return m.max }

// Len returns the number of entries; for an array, the number that were set.
func (m *Map) Len() int { return len(m.values) }

func pointed(key any) any {
	v := reflect.ValueOf(key)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v.Interface()
}

// copyOf returns a copy of a value, or of per-CPU values.
func copyOf(value reflect.Value) reflect.Value {
	if value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	if value.Kind() == reflect.Slice {
		return reflect.AppendSlice(reflect.MakeSlice(value.Type(), 0, value.Len()), value)
	}
	c := reflect.New(value.Type()).Elem()
	c.Set(value)
	return c
}

// Lookup implements [bpfmap.Store].
func (m *Map) Lookup(key, value any) error {
	k, out := pointed(key), reflect.ValueOf(value).Elem()
	have, ok := m.values[k]
	switch {
	case ok:
		out.Set(copyOf(have))
		return nil
	case m.isArray() && reflect.ValueOf(k).Uint() < uint64(m.max):
		out.SetZero()
		return nil
	}
	return ebpf.ErrKeyNotExist
}

// fails returns the error of a change, or nil if the change succeeds.
func (m *Map) fails() error {
	if m.faults != nil && m.faults.Fail != nil {
		return m.faults.Fail()
	}
	return nil
}

func (m *Map) changed() {
	if m.faults != nil && m.faults.Changed != nil {
		m.faults.Changed()
	}
}

// Update implements [bpfmap.Store].
func (m *Map) Update(key, value any, flags ebpf.MapUpdateFlags) error {
	if err := m.fails(); err != nil {
		return err
	}
	err := m.set(pointed(key), reflect.ValueOf(value), flags)
	if err == nil {
		m.changed()
	}
	return err
}

func (m *Map) set(k any, value reflect.Value, flags ebpf.MapUpdateFlags) error {
	_, ok := m.values[k]
	switch {
	case m.isArray() && reflect.ValueOf(k).Uint() >= uint64(m.max):
		return unix.E2BIG
	case !ok && !m.isArray() && flags == ebpf.UpdateExist:
		return ebpf.ErrKeyNotExist
	case ok && flags == ebpf.UpdateNoExist:
		return ebpf.ErrKeyExist
	case !ok && !m.isArray() && len(m.values) >= int(m.max):
		if m.kind == ebpf.LPMTrie {
			return unix.ENOSPC
		}
		return unix.E2BIG
	}
	if !ok {
		m.order = append(m.order, k)
	}
	m.values[k] = copyOf(value)
	return nil
}

// Delete implements [bpfmap.Store].
func (m *Map) Delete(key any) error {
	if m.isArray() {
		return unix.EINVAL
	}
	k := pointed(key)
	if _, ok := m.values[k]; !ok {
		return ebpf.ErrKeyNotExist
	}
	if err := m.fails(); err != nil {
		return err
	}
	delete(m.values, k)
	for i := range m.order {
		if m.order[i] == k {
			m.order = append(m.order[:i:i], m.order[i+1:]...)
			break
		}
	}
	m.changed()
	return nil
}

// BatchUpdate implements [bpfmap.Store]. If it fails, some of the entries are set, as in the
// kernel.
func (m *Map) BatchUpdate(keys, values any) error {
	k, v := reflect.ValueOf(keys), reflect.ValueOf(values)
	for i := range k.Len() {
		if err := m.fails(); err != nil {
			return err
		}
		if err := m.set(k.Index(i).Interface(), v.Index(i), ebpf.UpdateAny); err != nil {
			return err
		}
		m.changed()
	}
	return nil
}

// BatchLookup implements [bpfmap.Store].
func (m *Map) BatchLookup(cursor *bpfmap.Cursor, keys, values any) (n int, err error) {
	k, v := reflect.ValueOf(keys), reflect.ValueOf(values)
	for n < k.Len() {
		key, value, ok := m.entry(cursor.Next, k.Type().Elem(), v.Type().Elem())
		if !ok {
			return n, ebpf.ErrKeyNotExist
		}
		k.Index(n).Set(key)
		v.Index(n).Set(value)
		cursor.Next++
		n++
	}
	return n, nil
}

// entry returns the key and value at an index, with these types.
func (m *Map) entry(index int, keys, values reflect.Type) (key, value reflect.Value, ok bool) {
	if m.isArray() {
		if index >= int(m.max) {
			return key, value, false
		}
		key = reflect.New(keys).Elem()
		key.SetUint(uint64(index))
		if have, ok := m.values[key.Interface()]; ok {
			return key, copyOf(have), true
		}
		return key, reflect.Zero(values), true
	}
	if index >= len(m.order) {
		return key, value, false
	}
	return reflect.ValueOf(m.order[index]), copyOf(m.values[m.order[index]]), true
}

// Iterate implements [bpfmap.Store]. Entries may be deleted during the iteration.
func (m *Map) Iterate() bpfmap.Iterating {
	c := &Map{kind: m.kind, max: m.max, values: maps.Clone(m.values), order: slices.Clone(m.order)}
	return &iterator{then: c, now: m}
}

// iterator reads those entries of an earlier copy of the map (then) that are still in the map
// (now).
type iterator struct {
	then, now *Map
	next      int
}

func (i *iterator) Next(key, value any) bool {
	k, v := reflect.ValueOf(key).Elem(), reflect.ValueOf(value).Elem()
	for {
		nextKey, nextValue, ok := i.then.entry(i.next, k.Type(), v.Type())
		if !ok {
			return false
		}
		i.next++
		if _, stays := i.now.values[nextKey.Interface()]; !stays && !i.now.isArray() {
			continue
		}
		k.Set(nextKey)
		v.Set(nextValue)
		return true
	}
}

func (i *iterator) Err() error { return nil }
