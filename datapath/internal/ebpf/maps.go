// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// layoutVersion is LAYOUT_VERSION of types.h: pins of another one lie in another
// folder and are neither read nor touched.
const layoutVersion = 1

// resized is the ending of a map's pin while its content moves to it. (A dot
// would be refused by the BPF file system.)
const resized = "_resized"

// mapSizes returns how many entries each map is to have that has no fixed size.
func mapSizes(t datapath.Tables) map[string]uint32 {
	chunks := 2*(t.Slots/slotsPerChunk) + 4*t.Services
	return map[string]uint32{
		kernelMapLlCt4:            2 * t.Connections, // both directions
		kernelMapLlCt6:            2 * t.Connections,
		kernelMapLlHalf4:          2 * t.HalfOpen,
		kernelMapLlHalf6:          2 * t.HalfOpen,
		kernelMapLlService:        t.Services,
		kernelMapLlServiceName:    t.Services,
		kernelMapLlServiceStats:   t.Services,
		kernelMapLlServiceTraffic: t.Services,
		kernelMapLlSlot:           chunks,
		kernelMapLlBackend:        t.Backends + 1, // id 0 is none
		kernelMapLlBackendLoad:    t.Backends + 1,
		kernelMapLlBackendOpened:  t.Backends + 1,
		kernelMapLlBackendTraffic: t.Backends + 1,
		kernelMapLlAffinity:       t.Affinity,
		kernelMapLlSourceRange:    2 * t.Ranges, // old and new ones for a moment
	}
}

// openMaps takes over the maps pinned in dir, or creates them there. A map of
// another size than wanted is made anew next to the old one and its entries are
// copied; finishResize goes on when the programs use it.
func openMaps(dir string, specs map[string]*ebpf.MapSpec, t datapath.Tables, log *slog.Logger) (_ map[string]*ebpf.Map, err error) {
	maps := make(map[string]*ebpf.Map)
	defer func() {
		if err != nil {
			closeMaps(maps)
		}
	}()
	sizes := mapSizes(t)
	for name, spec := range specs {
		if !strings.HasPrefix(name, "ll_") {
			continue // constants of one program
		}
		spec = spec.Copy()
		if n := sizes[name]; n != 0 {
			spec.MaxEntries = n
		}
		spec.Pinning = ebpf.PinNone
		if maps[name], err = openMap(filepath.Join(dir, name), spec, log); err != nil {
			return maps, fmt.Errorf("map %s: %w", name, tooLarge(err, spec, t))
		}
	}
	return maps, nil
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		if m != nil {
			m.Close() // harmless: a file descriptor
		}
	}
}

func openMap(path string, spec *ebpf.MapSpec, log *slog.Logger) (*ebpf.Map, error) {
	old, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return newPinnedMap(path, spec)
	case err != nil:
		return nil, err
	}
	stale, err := ebpf.LoadPinnedMap(path+resized, nil)
	if err == nil {
		defer stale.Close()
	}
	if spec.Compatible(old) == nil && stale == nil {
		return old, nil
	}
	if old.KeySize() != spec.KeySize || old.ValueSize() != spec.ValueSize || old.Type() != spec.Type {
		defer old.Close()
		return nil, fmt.Errorf("the map pinned at %s has another layout (key %d, value %d bytes) than version %d; remove it, or go back to the version that made it",
			path, old.KeySize(), old.ValueSize(), layoutVersion)
	}
	if stale == nil && spec.MaxEntries < old.MaxEntries() {
		held, err := countEntries(old)
		if err != nil {
			return nil, errors.Join(err, old.Close())
		}
		if held > spec.MaxEntries {
			log.Warn("table keeps its size: it holds more than it is to have room for; raise the tables in the configuration, or let connections end and restart",
				"table", spec.Name, "entries", held, "wanted", spec.MaxEntries, "size", old.MaxEntries())
			return old, nil
		}
	}
	defer old.Close()
	os.Remove(path + resized) // harmless if it is not there
	m, err := newPinnedMap(path+resized, spec)
	if err != nil {
		return nil, err
	}
	err = copyMap(m, old)
	if stale != nil {
		err = errors.Join(err, copyMap(m, stale))
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func newPinnedMap(path string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, err
	}
	if err := m.Pin(path); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// finishResize copies what the old programs entered meanwhile and lets the new
// maps take the old ones' place. The programs use the new ones by now.
func finishResize(dir string, maps map[string]*ebpf.Map) error {
	for name, m := range maps {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path + resized); err != nil {
			continue
		}
		old, err := ebpf.LoadPinnedMap(path, nil)
		if err == nil {
			err = copyMap(m, old)
			old.Close()
		}
		if err == nil {
			err = os.Rename(path+resized, path)
		}
		if err != nil {
			return fmt.Errorf("resize map %s: %w", name, err)
		}
	}
	return nil
}

// copyMap enters into m what from has and m has not. What does not fit is left
// out: the daemon reports how full the tables are.
func copyMap(m, from *ebpf.Map) error {
	if m.Type() == ebpf.Queue || m.Type() == ebpf.RingBuf {
		return nil
	}
	flags := ebpf.UpdateNoExist
	array := m.Type() == ebpf.Array || m.Type() == ebpf.PerCPUArray
	if array {
		flags = ebpf.UpdateAny
	}
	key := make([]byte, from.KeySize())
	var value any = new([]byte)
	if m.Type() == ebpf.PerCPUArray || m.Type() == ebpf.PerCPUHash {
		value = new([][]byte)
	}
	it := from.Iterate()
	for it.Next(&key, value) {
		var err error
		switch v := value.(type) {
		case *[]byte:
			if array && allZero(*v) {
				continue
			}
			err = m.Update(key, *v, flags)
		case *[][]byte:
			err = m.Update(key, *v, flags)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyExist) && !errors.Is(err, unix.E2BIG) {
			return err
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	return nil
}

// countEntries returns how many entries of a map are in use: of an array, up to
// the last one that is not zero.
func countEntries(m *ebpf.Map) (n uint32, err error) {
	array := m.Type() == ebpf.Array
	switch m.Type() {
	case ebpf.Queue, ebpf.RingBuf, ebpf.PerCPUArray, ebpf.PerCPUHash:
		return 0, nil // of fixed size, or as many as there are services
	}
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	it := m.Iterate()
	for i := uint32(1); it.Next(&key, &value); i++ {
		if !array {
			n++
		} else if !allZero(value) {
			n = i
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return 0, err
	}
	return n, nil
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
