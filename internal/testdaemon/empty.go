// SPDX-License-Identifier: Apache-2.0

package testdaemon

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

const (
	nexthopFree  = "ll_nexthop_free" // contains all indexes except 0
	shares       = "ll_shares"
	hashKeyBytes = 88 // ct_hash, the last member of struct shares
)

// segmented are the names, of at most 15 characters, of arrays whose first segment always exists.
var segmented = []string{"ll_ct4", "ll_ct6", "ll_backend", "ll_backend_traf"}

// empty gives a map the content that a new one has.
func empty(m *ebpf.Map) error {
	info, err := m.Info()
	if err != nil {
		return err
	}
	switch m.Type() {
	case ebpf.Queue:
		value := make([]byte, m.ValueSize())
		for m.LookupAndDelete(nil, &value) == nil {
		}
		for index := uint32(1); info.Name == nexthopFree && index < m.MaxEntries(); index++ {
			if err := m.Put(nil, index); err != nil {
				return err
			}
		}
		return nil
	case ebpf.RingBuf:
		return Drain(m)
	case ebpf.ArrayOfMaps:
		return emptyOuter(m, slices.Contains(segmented, info.Name))
	case ebpf.Array:
		if info.Name == shares {
			return zeroShares(m)
		}
		return zero(m)
	case ebpf.PerCPUArray:
		return zeroPerCPU(m)
	}
	return deleteAll(m)
}

// emptyOuter removes all inner maps, or all but the first, which it empties.
func emptyOuter(m *ebpf.Map, keepFirst bool) error {
	for key := range m.MaxEntries() {
		var inner *ebpf.Map
		switch err := m.Lookup(key, &inner); {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			continue
		case err != nil:
			return err
		case keepFirst && key == 0:
			err = empty(inner)
			inner.Close()
			if err != nil {
				return err
			}
			continue
		}
		inner.Close()
		if err := m.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// zero zeroes all values of an array.
func zero(m *ebpf.Map) error {
	const batch = 8192
	values := reflect.SliceOf(reflect.ArrayOf(int(m.ValueSize()), reflect.TypeFor[byte]()))
	for first := uint32(0); first < m.MaxEntries(); first += batch {
		keys := make([]uint32, min(batch, m.MaxEntries()-first))
		for i := range keys {
			keys[i] = first + uint32(i)
		}
		if _, err := m.BatchUpdate(keys, reflect.MakeSlice(values, len(keys), len(keys)).Interface(), nil); err != nil {
			return err
		}
	}
	return nil
}

// zeroShares zeroes the only entry of ll_shares except the key of the connection table's hash, which
// is a constant of the programs.
func zeroShares(m *ebpf.Map) error {
	value, err := m.LookupBytes(uint32(0))
	if err != nil {
		return err
	}
	clear(value[:len(value)-hashKeyBytes])
	return m.Put(uint32(0), value)
}

// zeroPerCPU zeroes all values of an array that has a value for each processor.
func zeroPerCPU(m *ebpf.Map) error {
	zeros := make([][]byte, ebpf.MustPossibleCPU())
	for cpu := range zeros {
		zeros[cpu] = make([]byte, m.ValueSize())
	}
	for key := range m.MaxEntries() {
		if err := m.Put(key, zeros); err != nil {
			return err
		}
	}
	return nil
}

// Drain reads all records from a ring buffer.
func Drain(m *ebpf.Map) error {
	r, err := ringbuf.NewReader(m)
	if err != nil {
		return err
	}
	defer r.Close()
	r.SetDeadline(time.Now())
	for err == nil {
		_, err = r.Read()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func deleteAll(m *ebpf.Map) error {
	var keys [][]byte
	for key := any(nil); ; {
		var next []byte
		if m.NextKey(key, &next) != nil {
			break // no more keys
		}
		keys = append(keys, next)
		key = next
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
