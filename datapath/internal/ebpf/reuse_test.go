// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"reflect"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
	"github.com/loxilight/loxilight/internal/testdaemon"
)

// spare holds empty maps, and programs of the host's netns, with which all networks begin as if an
// earlier daemon had left them: otherwise the verifier would take most of the time of a test. They
// are never closed.
var spare struct {
	maps     map[string]*ebpf.Map
	programs hook.Pair
	slow     *ebpf.Map // of Ingress; the kernel empties it without a handle
}

// reuse empties the maps, and pins them where the data plane will look for them.
func (n *network) reuse() {
	n.t.Helper()
	if spare.maps == nil {
		return
	}
	dir := pin.Dir(n.config.PinDir)
	n.ok(pin.PrepareDir(dir))
	var shares kernel.Shares
	n.ok(spare.maps[kernel.MapLlShares].Lookup(uint32(0), &shares))
	for name, m := range spare.maps {
		if err := wipe(m, math.MaxUint32); err != nil {
			n.t.Fatalf("%s: %v", name, err)
		}
		if name == kernel.MapLlNexthopFree {
			for index := uint32(1); index < kernel.NexthopCount; index++ {
				n.ok(m.Put(nil, index))
			}
		}
		if name == kernel.MapLlShares { // the programs have this constant
			n.ok(m.Put(uint32(0), kernel.Shares{CtHash: shares.CtHash}))
		}
		pinned, err := m.Clone()
		n.ok(err)
		n.ok(pinned.Pin(filepath.Join(dir, name)))
		n.ok(pinned.Close())
	}
}

// keep saves the maps and programs of the first network in spare.
func (n *network) keep() {
	n.t.Helper()
	if spare.maps != nil {
		return
	}
	maps := make(map[string]*ebpf.Map)
	for name, m := range n.d.maps {
		var err error
		maps[name], err = m.Clone()
		n.ok(err)
	}
	var err error
	spare.programs.Ingress, err = n.host().Ingress.Clone()
	n.ok(err)
	spare.programs.Egress, err = n.host().Egress.Clone()
	n.ok(err)
	spare.slow = n.slowOf(spare.programs.Ingress)
	spare.maps = maps
}

// slowOf returns the array from which an ingress program calls its slow path; nil for programs
// without a slow path.
func (n *network) slowOf(p *ebpf.Program) *ebpf.Map {
	n.t.Helper()
	info, err := p.Info()
	n.ok(err)
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		n.ok(err)
		info, err := m.Info()
		n.ok(err)
		if info.Name == kernel.MapLlSlow {
			return m
		}
		n.ok(m.Close())
	}
	return nil
}

// end closes the data plane and detaches its programs, which would write into the maps of the next
// network.
func (n *network) end() {
	if n.d != nil {
		n.d.Close()
	}
	n.node.Do(n.t, func() error { return Detach(n.config, slog.New(slog.DiscardHandler)) })
}

// wipe deletes all entries of a map, or zeroes an array up to an index.
func wipe(m *ebpf.Map, indexes uint32) error {
	switch m.Type() {
	case ebpf.RingBuf:
		return testdaemon.Drain(m)
	case ebpf.Queue:
		value := make([]byte, m.ValueSize())
		for m.LookupAndDelete(nil, &value) == nil {
		}
		return nil
	case ebpf.ArrayOfMaps:
		info, err := m.Info()
		if err != nil {
			return err
		}
		switch info.Name { // of at most 15 characters
		case kernel.MapLlCt4, kernel.MapLlCt6, kernel.MapLlBackend, kernel.MapLlBackendTraffic[:15]:
			return wipeSegments(m)
		}
		for key := range m.MaxEntries() {
			if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
		}
		return nil
	case ebpf.Array:
		n := min(m.MaxEntries(), indexes)
		keys := make([]uint32, n)
		for i := range keys {
			keys[i] = uint32(i)
		}
		values := reflect.SliceOf(reflect.ArrayOf(int(m.ValueSize()), reflect.TypeFor[byte]()))
		_, err := m.BatchUpdate(keys, reflect.MakeSlice(values, int(n), int(n)).Interface(), nil)
		return err
	case ebpf.PerCPUArray:
		zeros := make([][]byte, ebpf.MustPossibleCPU())
		for cpu := range zeros {
			zeros[cpu] = make([]byte, m.ValueSize())
		}
		for key := range min(m.MaxEntries(), indexes, 128) { // no test uses higher indexes
			if err := m.Put(key, zeros); err != nil {
				return err
			}
		}
		return nil
	}
	var keys [][]byte
	var key any
	for {
		var next []byte
		if m.NextKey(key, &next) != nil {
			break // no more keys
		}
		keys = append(keys, next)
		key = next
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// wipeSegments empties a connection table, and removes all segments but the first.
func wipeSegments(m *ebpf.Map) error {
	segments, err := kernel.SegmentsOf(m)
	if err != nil || len(segments) == 0 {
		return err
	}
	defer kernel.CloseMaps(segments)
	for i := range segments[1:] {
		if err := m.Delete(uint32(i + 1)); err != nil {
			return err
		}
	}
	return wipe(segments[0], math.MaxUint32)
}
