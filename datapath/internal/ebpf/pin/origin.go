// SPDX-License-Identifier: Apache-2.0

package pin

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

// OriginName is the pin of a map with one entry, which names the version that pinned the others.
const OriginName = "ll_origin"

// Origin identifies the version of loxilight that pinned the maps beside it.
type Origin struct {
	Version string
	Sum     uint64 // checksum of the layouts of all maps; 0: a layout change is unfinished
}

const (
	originVersionSize = 120
	originSize        = originVersionSize + 8
)

// OpenOrigin opens the map of the origin that is pinned in dir.
func OpenOrigin(dir string) (*ebpf.Map, error) {
	return ebpf.LoadPinnedMap(filepath.Join(dir, OriginName), nil)
}

// ReadOrigin returns the origin of the maps in dir; the zero value if none is recorded.
func ReadOrigin(dir string) (o Origin) {
	m, err := OpenOrigin(dir)
	if err != nil {
		return o
	}
	defer m.Close()
	var b []byte
	if m.ValueSize() != originSize || m.Lookup(uint32(0), &b) != nil {
		return o
	}
	o.Version = strings.TrimRight(string(b[:originVersionSize]), "\x00")
	o.Sum = binary.NativeEndian.Uint64(b[originVersionSize:])
	return o
}

// WriteOrigin records the origin of the maps in dir.
func WriteOrigin(dir string, o Origin) error {
	m, err := OpenOrigin(dir)
	if err != nil || m.ValueSize() != originSize {
		if err == nil {
			m.Close() // written by a version with a different format
		}
		if m, err = ebpf.NewMap(&ebpf.MapSpec{Name: OriginName, Type: ebpf.Array, KeySize: 4, ValueSize: originSize, MaxEntries: 1}); err != nil {
			return fmt.Errorf("map %s: %w", OriginName, err)
		}
		path := filepath.Join(dir, OriginName)
		if err := errors.Join(Remove(path), m.Pin(path)); err != nil {
			return errors.Join(err, m.Close())
		}
	}
	defer m.Close()
	b := make([]byte, originSize)
	copy(b[:originVersionSize], o.Version)
	binary.NativeEndian.PutUint64(b[originVersionSize:], o.Sum)
	return m.Update(uint32(0), b, ebpf.UpdateAny)
}

// LayoutSum returns a checksum of the layouts of all maps.
func LayoutSum(specs map[string]*ebpf.MapSpec) uint64 {
	var lines []string
	for name, spec := range specs {
		if spec.Pinning != ebpf.PinByName {
			continue
		}
		line := fmt.Sprint(name, spec.Type, spec.KeySize, spec.ValueSize)
		if c := classOf(spec); c.connections || c.segmented {
			spec = spec.InnerMap
			line += fmt.Sprint(spec.ValueSize)
		}
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
