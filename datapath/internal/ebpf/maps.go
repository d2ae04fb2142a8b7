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
		kernelMapLlBackendReused:  t.Backends + 1,
		kernelMapLlAffinity:       t.Affinity,
		kernelMapLlSourceRange:    2 * t.Ranges, // old and new ones for a moment
	}
}

// wantedMaps returns the maps of specs in the sizes that t asks for.
func wantedMaps(specs map[string]*ebpf.MapSpec, t datapath.Tables) map[string]*ebpf.MapSpec {
	sizes := mapSizes(t)
	wanted := make(map[string]*ebpf.MapSpec)
	for name, spec := range specs {
		if !strings.HasPrefix(name, "ll_") {
			continue // constants of one program
		}
		spec = spec.Copy()
		if n := sizes[name]; n != 0 {
			spec.MaxEntries = n
		}
		spec.Pinning = ebpf.PinNone
		wanted[name] = spec
	}
	return wanted
}

// openMaps takes over the maps pinned in d.dir, or makes them. A map of another
// size than wanted is made anew and the entries are copied; finishResize goes on
// when the programs use it. It returns the maps that are not pinned yet, by path.
func (d *DataPlane) openMaps(specs map[string]*ebpf.MapSpec) (fresh map[string]*ebpf.Map, err error) {
	d.maps, fresh = make(map[string]*ebpf.Map), make(map[string]*ebpf.Map)
	for name, spec := range wantedMaps(specs, d.config.Tables) {
		m, path, err := openMap(filepath.Join(d.dir, name), spec, d.log)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", name, noRoom(err, spec, specs, d.config.Tables))
		}
		d.maps[name] = m
		if path != "" {
			fresh[path] = m
		}
	}
	return fresh, nil
}

// pinMaps pins maps, by path, in place of what is there.
func pinMaps(fresh map[string]*ebpf.Map) error {
	for path, m := range fresh {
		if err := errors.Join(remove(path), m.Pin(path)); err != nil {
			return err
		}
	}
	return nil
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		if m != nil {
			m.Close() // harmless: a file descriptor
		}
	}
}

// openMap returns the map of spec that is pinned at path, or a new one and where it
// is to be pinned.
func openMap(path string, spec *ebpf.MapSpec, log *slog.Logger) (_ *ebpf.Map, pin string, err error) {
	old, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		m, err := ebpf.NewMap(spec)
		return m, path, err
	}
	if err != nil {
		return nil, "", err
	}
	stale, err := ebpf.LoadPinnedMap(path+resized, nil)
	if err == nil {
		defer stale.Close()
	}
	switch action, reason := compareMap(old, spec); {
	case action == datapath.PinsRefuse:
		return nil, "", errors.Join(fmt.Errorf("%s: %w", reason, datapath.ErrRefused), old.Close())
	case action == datapath.PinsAdopt && stale == nil:
		return old, "", nil
	}
	if stale == nil && spec.MaxEntries < old.MaxEntries() {
		held, err := countEntries(old)
		if err != nil {
			return nil, "", errors.Join(err, old.Close())
		}
		if held > spec.MaxEntries {
			log.Warn("table keeps its size: it holds more than it is to have room for; raise the tables in the configuration, or let connections end and restart",
				"table", spec.Name, "entries", held, "wanted", spec.MaxEntries, "size", old.MaxEntries())
			return old, "", nil
		}
	}
	defer old.Close()
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, "", err
	}
	err = copyMap(m, old)
	if stale != nil {
		err = errors.Join(err, copyMap(m, stale))
	}
	if err != nil {
		return nil, "", errors.Join(err, m.Close())
	}
	return m, path + resized, nil
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
