// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// TestUnderlayMTUEnds: a path MTU is reported, and expires in time.
func TestUnderlayMTUEnds(t *testing.T) {
	const index = 5
	tables, _ := testtables.New(t, testtables.Small, &testmap.Faults{})
	signals := 0
	o, err := Adopt(Options{Tables: tables, Signal: func() { signals++ }})
	if err != nil {
		t.Fatal(err)
	}
	o.peers["far"] = &peer{spec: datapath.Peer{Tunnel: "mesh"}, configured: true, index: index}
	told := func() int {
		t.Helper()
		signals = 0
		if err := o.Maintain(); err != nil {
			t.Fatal(err)
		}
		s, ok := o.PeerState("far")
		if !ok {
			t.Fatal("no such peer")
		}
		return s.PathMTU
	}
	hear := func(tick uint32) {
		if err := tables.PeerPmtu.Put(index, kernel.PeerPmtu{MtuBytes: 1400, HeardTick: tick}); err != nil {
			t.Fatal(err)
		}
	}
	if mtu := told(); mtu != 0 || signals != 0 {
		t.Errorf("MTU %d, which nothing reported; %d signals", mtu, signals)
	}
	hear(kernel.NowTick())
	if mtu := told(); mtu != 1400 {
		t.Errorf("MTU %d, want 1400", mtu)
	}
	if signals == 0 {
		t.Error("no packet too big is reported")
	}
	hear(kernel.NowTick() - kernel.TicksOf(PathMTUAge) + 100)
	if mtu := told(); mtu != 1400 {
		t.Errorf("MTU %d shortly before the end", mtu)
	}
	hear(kernel.NowTick() - kernel.TicksOf(PathMTUAge))
	if mtu := told(); mtu != 0 {
		t.Errorf("MTU %d for ever", mtu)
	}
	var is kernel.PeerPmtu
	if err := tables.PeerPmtu.Lookup(index, &is); err != nil || is != (kernel.PeerPmtu{}) {
		t.Errorf("%+v is left; error %v", is, err)
	}
}
