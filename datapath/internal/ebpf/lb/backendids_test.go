// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// TestBackendIDStaysFree: an id whose counters cannot be set to zero stays free.
func TestBackendIDStaysFree(t *testing.T) {
	all, _ := testtables.New(t, datapath.Tables{Backends: 16}, &testmap.Faults{Fail: func() error { return unix.EIO }})
	ids := newBackendIDs(all)
	ids.next, ids.free = 8, []uint32{7}
	for range 2 {
		if id, err := ids.take(); !errors.Is(err, unix.EIO) {
			t.Fatalf("id %d without its counters: %v", id, err)
		}
	}
	if len(ids.free) != 1 || ids.free[0] != 7 {
		t.Errorf("free ids %v, want 7", ids.free)
	}
}

// TestBackendIDIsFreedOnce: the id of a removed backend is free again after a complete sweep has
// found no connection to it, and not before.
func TestBackendIDIsFreedOnce(t *testing.T) {
	s := newFaultySite(t, 1)
	backends := []datapath.Backend{
		{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1}, {Addr: netip.MustParseAddrPort("10.0.0.2:80"), Weight: 1},
	}
	value := datapath.Service{
		Frontends: []datapath.Frontend{{Addr: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: datapath.TCP}}, Backends: backends,
	}
	update := func() {
		t.Helper()
		if err := s.Update(t.Context(), "web", value); err != nil {
			t.Fatal(err)
		}
	}
	update()
	value.Backends = backends[:1]
	update()
	want := func(pass uint64, live bool, dead, free int) {
		t.Helper()
		if err := s.passEnded(pass, func(uint32) bool { return live }); err != nil {
			t.Fatal(err)
		}
		if ids := s.Dead(); len(ids) != dead || len(s.backends.free) != free {
			t.Errorf("after pass %d: %d dead ids and %v free, want %d and %d", pass, len(ids), s.backends.free, dead, free)
		}
	}
	want(s.passes.NextPass()-1, false, 1, 0) // this pass began before the change
	want(s.passes.NextPass(), true, 1, 0)
	want(s.passes.NextPass()+1, false, 0, 1)
	want(s.passes.NextPass()+2, false, 0, 1)
}
