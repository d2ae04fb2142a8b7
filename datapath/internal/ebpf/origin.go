// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// originName is the pin of a map with one entry, which names the version that pinned the others.
const originName = "ll_origin"

// origin identifies the version of loxilight that pinned the maps beside it.
type origin struct {
	version string
	sum     uint64 // of the layouts of all maps; 0: a change of layouts is unfinished
}

const (
	originVersionSize = 120
	originSize        = originVersionSize + 8
)

func openOrigin(dir string) (*ebpf.Map, error) {
	return ebpf.LoadPinnedMap(filepath.Join(dir, originName), nil)
}

// readOrigin returns the zero value if none is recorded.
func readOrigin(dir string) (o origin) {
	m, err := openOrigin(dir)
	if err != nil {
		return o
	}
	defer m.Close()
	var b []byte
	if m.ValueSize() != originSize || m.Lookup(uint32(0), &b) != nil {
		return o
	}
	o.version = strings.TrimRight(string(b[:originVersionSize]), "\x00")
	o.sum = binary.NativeEndian.Uint64(b[originVersionSize:])
	return o
}

func writeOrigin(dir string, o origin) error {
	m, err := openOrigin(dir)
	if err != nil || m.ValueSize() != originSize {
		if err == nil {
			m.Close() // of a version with another format
		}
		if m, err = ebpf.NewMap(&ebpf.MapSpec{Name: originName, Type: ebpf.Array, KeySize: 4, ValueSize: originSize, MaxEntries: 1}); err != nil {
			return fmt.Errorf("map %s: %w", originName, err)
		}
		path := filepath.Join(dir, originName)
		if err := errors.Join(remove(path), m.Pin(path)); err != nil {
			return errors.Join(err, m.Close())
		}
	}
	defer m.Close()
	b := make([]byte, originSize)
	copy(b[:originVersionSize], o.version)
	binary.NativeEndian.PutUint64(b[originVersionSize:], o.sum)
	return m.Update(uint32(0), b, ebpf.UpdateAny)
}

// layoutSum returns a checksum of the layouts of all maps.
func layoutSum(specs map[string]*ebpf.MapSpec) uint64 {
	var lines []string
	for name, spec := range specs {
		if spec.Pinning != ebpf.PinByName {
			continue
		}
		line := fmt.Sprint(name, spec.Type, spec.KeySize, spec.ValueSize)
		if s, err := shapeOf(spec); err == nil {
			line += fmt.Sprint(s) // maps are printed in order
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	h := fnv.New64a()
	for _, line := range lines {
		h.Write([]byte(line)) // never fails
	}
	return h.Sum64() | 1
}
