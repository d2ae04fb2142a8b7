// SPDX-License-Identifier: Apache-2.0

// Package bpfmap gives types to kernel maps, so that the compiler checks which keys and values
// belong to which map.
package bpfmap

import (
	"errors"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// BatchSize is the maximum number of entries that one system call reads.
const BatchSize = 4096

// Map is a map with keys of type K and values of type V. The types have the layout of the C types,
// in the byte order of the host unless a field says otherwise. The zero value is not a usable map.
type Map[K, V any] struct{ table[K] }

// PerCPU is a map with a value of type V for each CPU.
type PerCPU[K, V any] struct{ table[K] }

// Store holds the entries of a map, in the kernel or in the memory of a test. Keys and values are
// passed as pointers, or as slices in batches and for per-CPU values. Errors are those of
// [ebpf.Map].
type Store interface {
	Lookup(key, value any) error
	Update(key, value any, flags ebpf.MapUpdateFlags) error
	Delete(key any) error
	// BatchUpdate sets values. Both keys and values are slices.
	BatchUpdate(keys, values any) error
	// BatchLookup reads entries after the cursor into the slices. After the last one, it returns
	// [ebpf.ErrKeyNotExist], with the number of entries that it read.
	BatchLookup(cursor *Cursor, keys, values any) (int, error)
	Iterate() Iterating
	MaxEntries() uint32
}

// Iterating reads the entries of a [Store] one by one.
type Iterating interface {
	Next(key, value any) bool
	Err() error
}

// Cursor is a position between two entries of a map; the zero value is the position before the
// first entry.
type Cursor struct {
	kernel ebpf.MapBatchCursor
	Next   int // of a [Store] in memory: the index of the next entry
}

// inKernel is a [Store] in the kernel.
type inKernel struct{ *ebpf.Map }

func (m inKernel) BatchUpdate(keys, values any) error {
	_, err := m.Map.BatchUpdate(keys, values, nil)
	return err
}

func (m inKernel) BatchLookup(cursor *Cursor, keys, values any) (int, error) {
	return m.Map.BatchLookup(&cursor.kernel, keys, values, nil)
}

func (m inKernel) Iterate() Iterating { return m.Map.Iterate() }

// table has the methods of all maps.
type table[K any] struct{ store Store }

// Raw returns the kernel map without types, or nil if the map is not in the kernel.
func (t *table[K]) Raw() *ebpf.Map {
	m, _ := t.store.(inKernel)
	return m.Map
}

// MaxEntries returns the maximum number of entries.
func (t *table[K]) MaxEntries() uint32 { return t.store.MaxEntries() }

// Delete deletes the entry of a key. A missing entry is not an error.
func (t *table[K]) Delete(key K) error {
	_, err := found(t.store.Delete(&key))
	return err
}

// Maps without preallocation take new entries from a small pool for each CPU, which the kernel
// refills asynchronously.
const (
	refillTries = 200
	refillTime  = 5 * time.Millisecond
)

func (t *table[K]) put(key K, value any) (err error) {
	for range refillTries {
		if err = t.store.Update(&key, value, ebpf.UpdateAny); !errors.Is(err, unix.ENOMEM) {
			return err
		}
		time.Sleep(refillTime)
	}
	return err
}

// Bind makes t use the kernel map m. The keys and values of m must have the sizes of K and V;
// otherwise every use returns an error.
func (t *table[K]) Bind(m *ebpf.Map) { t.store = inKernel{m} }

// BindStore makes t use the store s.
func (t *table[K]) BindStore(s Store) { t.store = s }

// Lookup reads the value of a key. The error is [ebpf.ErrKeyNotExist] if the key does not exist.
func (t *Map[K, V]) Lookup(key K, value *V) error { return t.store.Lookup(&key, value) }

// Find is like Lookup, but returns false if the key does not exist.
func (t *Map[K, V]) Find(key K, value *V) (bool, error) { return found(t.store.Lookup(&key, value)) }

// Put sets the value of a key. While the kernel has no memory for the entry, it retries for up to a
// second.
func (t *Map[K, V]) Put(key K, value V) error { return t.put(key, &value) }

// Replace sets the value of a key. The error is [ebpf.ErrKeyNotExist] if the key does not exist.
func (t *Map[K, V]) Replace(key K, value V) error {
	return t.store.Update(&key, &value, ebpf.UpdateExist)
}

// PutBatch sets the values of keys in one system call.
func (t *Map[K, V]) PutBatch(keys []K, values []V) error {
	return t.store.BatchUpdate(keys, values)
}

// NextBatch reads the next entries after cursor into keys and values, which have the same length.
// It returns how many it read, and whether more entries follow.
func (t *Map[K, V]) NextBatch(cursor *Cursor, keys []K, values []V) (n int, more bool, err error) {
	n, err = t.store.BatchLookup(cursor, keys, values)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return n, false, nil
	}
	return n, err == nil, err
}

// firstBatch is the number of entries that the first system call of Batches reads: most tables are
// nearly empty, and need no large buffers.
const firstBatch = 256

// Batches calls each with all entries, in batches.
func (t *Map[K, V]) Batches(each func(keys []K, values []V) error) error {
	var cursor Cursor
	most := int(t.MaxEntries())
	keys, values := make([]K, min(firstBatch, most)), make([]V, min(firstBatch, most))
	for {
		n, more, err := t.NextBatch(&cursor, keys, values)
		if err != nil {
			return err
		}
		if err := each(keys[:n], values[:n]); err != nil || !more {
			return err
		}
		if size := min(BatchSize, most); len(keys) < size {
			keys, values = make([]K, size), make([]V, size)
		}
	}
}

// Iterate returns an iterator over the entries. It is for small maps, and for maps that cannot be
// read in batches.
func (t *Map[K, V]) Iterate() *Iterator[K, V] { return &Iterator[K, V]{t.store.Iterate()} }

// Iterator reads one entry at a time.
type Iterator[K, V any] struct{ raw Iterating }

// Next reads the next entry, and reports whether one exists.
func (i *Iterator[K, V]) Next(key *K, value *V) bool { return i.raw.Next(key, value) }

// Err returns why Next ended too early, or nil if it read all entries.
func (i *Iterator[K, V]) Err() error { return i.raw.Err() }

// Lookup reads the values of a key. The error is [ebpf.ErrKeyNotExist] if the key does not exist.
func (t *PerCPU[K, V]) Lookup(key K, values *[]V) error { return t.store.Lookup(&key, values) }

// Find is like Lookup, but returns false if the key does not exist.
func (t *PerCPU[K, V]) Find(key K, values *[]V) (bool, error) {
	return found(t.store.Lookup(&key, values))
}

// Put sets the values of a key, one for each possible CPU. Missing ones are zero.
func (t *PerCPU[K, V]) Put(key K, values []V) error { return t.put(key, values) }

func found(err error) (bool, error) {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}
