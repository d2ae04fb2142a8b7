// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestStops: a mirror that is deleted, or cannot be changed as desired, takes no further copies,
// whatever fails.
func TestStops(t *testing.T) {
	start := func(t *testing.T) (*world, *Table, datapath.Mirror) {
		w := newWorld(t, 1)
		table := w.start()
		m := datapath.Mirror{Port: "p1", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "t1"}}
		if err := table.Update(t.Context(), "m", m); err != nil {
			t.Fatal(err)
		}
		return w, table, m
	}
	wantNone := func(t *testing.T, w *world) {
		t.Helper()
		var device Key
		var p kernel.MirrorPort
		for ports := w.tables.MirrorPort.Iterate(); ports.Next(&device, &p); {
			t.Errorf("device %d still takes copies: %+v", device.Ifindex, p)
		}
	}
	t.Run("deleted", func(t *testing.T) {
		w, table, _ := start(t)
		w.rerouted = errFault
		if err := table.Delete(t.Context(), "m"); !errors.Is(err, errFault) {
			t.Errorf("deletion: %v", err)
		}
		wantNone(t, w)
		w.rerouted = nil
		if err := table.Delete(t.Context(), "m"); err != nil {
			t.Error(err)
		}
		w.wantExactly(table, nil)
	})
	t.Run("changed", func(t *testing.T) {
		w, table, m := start(t)
		w.refused = place{Key{Ifindex: 102}, hook.MirrorSend}
		m.To.Device = "t2"
		if err := table.Update(t.Context(), "m", m); !errors.Is(err, errFault) {
			t.Errorf("update: %v", err)
		}
		wantNone(t, w)
		w.refused = place{}
		if err := table.Update(t.Context(), "m", m); err != nil {
			t.Error(err)
		}
		w.wantExactly(table, map[datapath.MirrorName]datapath.Mirror{"m": m})
	})
}

// TestChangedAtCapacity: a mirror can be changed although no other slot is free.
func TestChangedAtCapacity(t *testing.T) {
	w := newWorld(t, 1)
	table := w.start()
	want := map[datapath.MirrorName]datapath.Mirror{}
	m := datapath.Mirror{Port: "p1", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "t1"}}
	for i := range datapath.MirrorMax {
		name := datapath.MirrorName(fmt.Sprint(i))
		want[name] = m
		if err := table.Update(t.Context(), name, m); err != nil {
			t.Fatal(err)
		}
	}
	m.Port, m.Length = "p2", 64
	want["0"] = m
	if err := table.Update(t.Context(), "0", m); err != nil {
		t.Fatal(err)
	}
	w.wantExactly(table, want)
}

// TestTidy: programs that an earlier run attached for a mirror that it did not enter are detached.
func TestTidy(t *testing.T) {
	w := newWorld(t, 1)
	m := datapath.Mirror{Port: "p1", Direction: datapath.MirrorIn, To: datapath.MirrorTarget{Device: "t1"}}
	if err := w.start().Update(t.Context(), "m", m); err != nil {
		t.Fatal(err)
	}
	w.attached[place{Key{Ifindex: 2}, hook.MirrorOut}] = true
	if err := w.start().Tidy(); err != nil {
		t.Fatal(err)
	}
	want := map[place]bool{{Key{Ifindex: 1}, hook.MirrorIn}: true, {Key{Ifindex: 101}, hook.MirrorSend}: true}
	if !maps.Equal(w.attached, want) {
		t.Errorf("programs %v, want %v", w.attached, want)
	}
}
