// SPDX-License-Identifier: Apache-2.0

// Package bpfmap gives the maps of the kernel types: the compiler checks which keys and values
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

// Map is a map with keys of type K and values of type V. They have the layout of the types in C,
// and are in the byte order of the host unless a field says otherwise. The zero value is no map.
type Map[K, V any] struct{ table[K] }

// PerCPU is a map with a value of type V for each CPU.
type PerCPU[K, V any] struct{ table[K] }

// table is what all maps can do.
type table[K any] struct{ raw *ebpf.Map }

// Raw returns the map without types.
func (t *table[K]) Raw() *ebpf.Map { return t.raw }

// MaxEntries returns the number of entries for which the map has room.
func (t *table[K]) MaxEntries() uint32 { return t.raw.MaxEntries() }

// Delete deletes the entry of a key. An absent one is no error.
func (t *table[K]) Delete(key K) error {
	_, err := found(t.raw.Delete(&key))
	return err
}

// Tables without preallocation take new entries from a small pool for each CPU, which the kernel
// refills a moment later.
const (
	refillTries = 200
	refillTime  = 5 * time.Millisecond
)

func (t *table[K]) put(key K, value any) (err error) {
	for range refillTries {
		if err = t.raw.Update(&key, value, ebpf.UpdateAny); !errors.Is(err, unix.ENOMEM) {
			return err
		}
		time.Sleep(refillTime)
	}
	return err
}

// Bind makes m the map. Its keys and values must have the size of K and V, else every use of it is
// an error.
func (t *table[K]) Bind(m *ebpf.Map) { t.raw = m }

// Lookup reads the value of a key. The error is [ebpf.ErrKeyNotExist] if the key does not exist.
func (t *Map[K, V]) Lookup(key K, value *V) error { return t.raw.Lookup(&key, value) }

// Find is Lookup, and reports whether there is a value.
func (t *Map[K, V]) Find(key K, value *V) (bool, error) { return found(t.raw.Lookup(&key, value)) }

// Put sets the value of a key. While the kernel has no memory for the entry, it tries again for up to
// a second.
func (t *Map[K, V]) Put(key K, value V) error { return t.put(key, &value) }

// Replace sets the value of a key. The error is [ebpf.ErrKeyNotExist] if the key does not exist.
func (t *Map[K, V]) Replace(key K, value V) error {
	return t.raw.Update(&key, &value, ebpf.UpdateExist)
}

// PutBatch sets the values of keys in one system call.
func (t *Map[K, V]) PutBatch(keys []K, values []V) error {
	_, err := t.raw.BatchUpdate(keys, values, nil)
	return err
}

// NextBatch reads the next entries after cursor into keys and values, which have the same length. It
// returns how many it read, and whether there are more.
func (t *Map[K, V]) NextBatch(cursor *ebpf.MapBatchCursor, keys []K, values []V) (n int, more bool, err error) {
	n, err = t.raw.BatchLookup(cursor, keys, values, nil)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return n, false, nil
	}
	return n, err == nil, err
}

// Batches calls each with all entries, many at a time.
func (t *Map[K, V]) Batches(each func(keys []K, values []V) error) error {
	var cursor ebpf.MapBatchCursor
	size := min(BatchSize, int(t.MaxEntries()))
	keys, values := make([]K, size), make([]V, size)
	for {
		n, more, err := t.NextBatch(&cursor, keys, values)
		if err != nil {
			return err
		}
		if err := each(keys[:n], values[:n]); err != nil || !more {
			return err
		}
	}
}

// Iterate returns an iterator over the entries. It is for maps that cannot be read in batches, and
// for small ones.
func (t *Map[K, V]) Iterate() *Iterator[K, V] { return &Iterator[K, V]{t.raw.Iterate()} }

// Iterator reads one entry at a time.
type Iterator[K, V any] struct{ raw *ebpf.MapIterator }

// Next reads the next entry, and reports whether there is one.
func (i *Iterator[K, V]) Next(key *K, value *V) bool { return i.raw.Next(key, value) }

// Err returns why Next ended too early; nil: it did not.
func (i *Iterator[K, V]) Err() error { return i.raw.Err() }

// Lookup reads the values of a key. The error is [ebpf.ErrKeyNotExist] if the key does not exist.
func (t *PerCPU[K, V]) Lookup(key K, values *[]V) error { return t.raw.Lookup(&key, values) }

// Find is Lookup, and reports whether there are values.
func (t *PerCPU[K, V]) Find(key K, values *[]V) (bool, error) {
	return found(t.raw.Lookup(&key, values))
}

// Put sets the values of a key, one for each possible CPU. Missing ones are zero.
func (t *PerCPU[K, V]) Put(key K, values []V) error { return t.put(key, values) }

func found(err error) (bool, error) {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}
