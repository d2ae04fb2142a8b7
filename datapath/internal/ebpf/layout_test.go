// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// TestWhatCannotBeConverted: maps that cannot be converted are refused and not changed; the error
// names the map and the field.
func TestWhatCannotBeConverted(t *testing.T) {
	spec, err := kernel.LoadKernel()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, table, why string
		change           func(*ebpf.MapSpec)
	}{
		{"key has a field more", kernel.MapLlService, `"vni" of the key is missing`, func(s *ebpf.MapSpec) {
			k := *s.Key.(*btf.Struct)
			k.Members = append(slices.Clone(k.Members), btf.Member{Name: "vni", Type: &btf.Int{Name: "unsigned int", Size: 4}, Offset: btf.Bits(8 * k.Size)})
			k.Size += 4
			s.Key, s.KeySize = &k, s.KeySize+4
		}},
		{"another type of map", kernel.MapLlPeer, "type Hash, want Array", func(s *ebpf.MapSpec) { s.Type = ebpf.Hash }},
		{"not in segments", kernel.MapLlBackend, "type Array, want ArrayOfMaps", func(s *ebpf.MapSpec) { *s = *s.InnerMap }},
		{"no types", kernel.MapLlCt4, "BTF", func(s *ebpf.MapSpec) { s.InnerMap.Key, s.InnerMap.Value = nil, nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNetwork(t)
			n.attach()
			n.serve()
			n.ok(n.d.Services().Update(t.Context(), "web", web(3)))
			c := n.dial("198.51.100.10:80")
			n.ok(n.d.Close())
			s := spec.Maps[tt.table].Copy()
			tt.change(s)
			s.Pinning = ebpf.PinNone
			m, err := ebpf.NewMap(s)
			n.ok(err)
			defer m.Close()
			if s.InnerMap != nil {
				segment, err := ebpf.NewMap(s.InnerMap)
				n.ok(err)
				n.ok(errors.Join(m.Put(uint32(0), segment), segment.Close()))
			}
			path := filepath.Join(n.d.dir, tt.table)
			n.ok(pin.Remove(path))
			n.ok(m.Pin(path))
			before := n.pinnedMaps()

			err = n.tryOpen()
			if !errors.Is(err, datapath.ErrRefused) || !strings.Contains(err.Error(), tt.table) || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("error %v, want an error that names %s and %s", err, tt.table, tt.why)
			}
			if p, err := pin.Preflight(n.config, spec.Maps); err != nil || p.OK || p.Action != datapath.PinsRefuse || !strings.Contains(fmt.Sprint(p.Maps), tt.why) {
				t.Errorf("preflight: %v, %+v", err, p)
			}
			if after := n.pinnedMaps(); after != before {
				t.Errorf("pinned before:\n%sand after:\n%s", before, after)
			}
			c.echo(t, "by the programs of before")
		})
	}
}

// tryOpen tries to open the data plane, and closes it again if that succeeds.
func (n *network) tryOpen() (err error) {
	n.t.Helper()
	n.node.Do(n.t, func() error {
		var d *DataPlane
		if d, err = Open(n.config, slog.New(slog.NewTextHandler(n.t.Output(), nil))); err == nil {
			err = d.Close()
		}
		return nil
	})
	return err
}

// pinnedMaps returns the pins with the ids and sizes of their maps.
func (n *network) pinnedMaps() (list string) {
	n.t.Helper()
	for _, name := range n.pins() {
		m, err := ebpf.LoadPinnedMap(filepath.Join(n.d.dir, name), nil)
		if err != nil {
			continue // the ports folder
		}
		info, err := m.Info()
		n.ok(err)
		id, _ := info.ID()
		list += fmt.Sprintln(name, id, m.MaxEntries(), m.ValueSize())
		m.Close()
	}
	return list
}
