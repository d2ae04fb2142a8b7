// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/api"
)

// openMap opens a pinned map, or the first segment of one in segments, and returns the keys of its
// entries: of an array, those that are not zero.
func openMap(t *testing.T, pins, name string) (m *ebpf.Map, keys [][]byte) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(pins, "*", name))
	if err != nil || len(found) != 1 {
		t.Fatalf("pins of %s in %s: %v, %v", name, pins, found, err)
	}
	if m, err = ebpf.LoadPinnedMap(found[0], nil); err != nil {
		t.Fatal(err)
	}
	if outer := m; outer.Type() == ebpf.ArrayOfMaps {
		defer outer.Close()
		m = nil
		if err := outer.Lookup(uint32(0), &m); err != nil {
			t.Fatal(err)
		}
	}
	zero := make([]byte, m.ValueSize())
	for entries, key, value := m.Iterate(), []byte(nil), []byte(nil); entries.Next(&key, &value); {
		if m.Type() != ebpf.Array || !bytes.Equal(value, zero) {
			keys = append(keys, bytes.Clone(key))
		}
	}
	return m, keys
}

// entriesOf returns the number of entries of a pinned map.
func entriesOf(t *testing.T, pins, name string) int {
	t.Helper()
	m, keys := openMap(t, pins, name)
	m.Close()
	return len(keys)
}

// emptyMap empties a pinned map, as bpftool can, and returns how many entries it had. Array entries
// cannot be deleted: they become zero.
func emptyMap(t *testing.T, pins, name string) (emptied int) {
	t.Helper()
	m, keys := openMap(t, pins, name)
	defer m.Close()
	zero := make([]byte, m.ValueSize())
	for _, key := range keys {
		var err error
		if m.Type() == ebpf.Array {
			err = m.Put(key, zero)
		} else {
			err = m.Delete(key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return len(keys)
}

// TestFlushedMapIsRepaired: entries that another program deletes are restored within
// seconds, and counted.
func TestFlushedMapIsRepaired(t *testing.T) {
	s, pins := newKernelSite(t)
	objects := []api.Object{s.node()}
	s.run()
	for i := range 20 {
		objects = append(objects, serviceObject(fmt.Sprint("s", i), i, "10.0.1.2:8080", "10.0.1.3:8080"))
	}
	s.apply(objects...)
	if before := s.status().Repairs; before != 0 {
		t.Errorf("%d repairs without an external change", before)
	}
	for _, name := range []string{"ll_service", "ll_backend"} {
		if n := emptyMap(t, pins, name); n == 0 {
			t.Fatalf("%s was empty", name)
		}
	}
	eventually(t, func() bool {
		return entriesOf(t, pins, "ll_service") == 20 && entriesOf(t, pins, "ll_backend") == 40
	})
	// A Service that is verified between the two deletions is repaired twice.
	eventually(t, func() bool { return s.status().Repairs >= 20 })
	s.wantUsage(s.specs())

	repaired := s.status().Repairs
	outer, err := ebpf.LoadPinnedMap(filepath.Join(pins, "layout-1", "ll_backend"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	if err := outer.Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		var segment *ebpf.Map
		if outer.Lookup(uint32(0), &segment) != nil {
			return false
		}
		segment.Close()
		return entriesOf(t, pins, "ll_backend") == 40 && s.status().Repairs > repaired
	})
}
