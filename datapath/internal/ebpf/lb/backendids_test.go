// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// TestBackendIDStaysFree: an id whose counters cannot be set to zero stays free.
func TestBackendIDStaysFree(t *testing.T) {
	all, _ := testtables.New(t, datapath.Tables{Backends: 16}, &testmap.Faults{Fail: func() error { return unix.EIO }})
	ids := newBackendIDs(all)
	ids.next, ids.free = 8, []uint32{7}
	for range 2 {
		if id, err := ids.take(1); !errors.Is(err, unix.EIO) {
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

// TestReusedIDHasNoCounters: whichever write is the last one before the process ends while a
// backend gets the id of a removed one, the new backend's counters are zero, by the same or the
// next run.
func TestReusedIDHasNoCounters(t *testing.T) {
	for n := 0; ; n++ {
		s := newFaultySite(t, 1)
		s.desired["web"] = everything("198.51.100.1", "")
		s.converge()
		delete(s.desired, "web")
		counted := kernel.Traffic{PacketCount: 9, ByteCount: 999}
		for id := uint32(1); id < s.backends.next; id++ {
			if err := errors.Join(
				s.tables.BackendLoad.Put(id, 5), s.tables.BackendTotal.Put(id, kernel.BackendTotal{ConnectionCount: 5}), s.tables.BackendTraffic.Put(id, counted),
			); err != nil {
				t.Fatal(err)
			}
		}
		s.converge()
		s.desired["web"] = everything("198.51.100.2", "")
		slices.Sort(s.backends.free) // the highest id is reused first
		s.writes, s.failAt, s.killed = 0, 1+n/2, true
		s.reconcile()
		if s.failures == 0 {
			break
		}
		if s.failAt = 0; n%2 == 0 {
			s.restart()
		}
		s.converge()
		s.wantModel(fmt.Sprint("change ", n))
		info, _ := s.Get("web")
		for _, b := range info.Backends {
			var load uint32
			var total kernel.BackendTotal
			active, traffic, err := s.Traffic(b.ID)
			err = errors.Join(err, s.tables.BackendLoad.Lookup(b.ID, &load), s.tables.BackendTotal.Lookup(b.ID, &total))
			if err != nil || active != 0 || load != 0 || traffic != (kernel.Traffic{}) || total != (kernel.BackendTotal{}) {
				t.Errorf("change %d: id %d: load %d, %+v, %+v, %v", n, b.ID, load, traffic, total, err)
			}
		}
	}
}

// TestServiceIDIsNotReused: as long as the tables refer to the id of a deleted service, a later run
// does not give it to another service: the traffic of its backends would be counted for that one.
func TestServiceIDIsNotReused(t *testing.T) {
	s := newFaultySite(t, 1)
	s.desired["first"], s.desired["last"] = everything("198.51.100.1", ""), everything("198.51.100.2", "")
	s.converge()
	for _, name := range []datapath.ServiceName{"first", "last"} {
		info, _ := s.Get(name)
		if err := s.tables.BackendTraffic.Put(info.Backends[0].ID, kernel.Traffic{PacketCount: 7}); err != nil {
			t.Fatal(err)
		}
	}
	s.desired = map[datapath.ServiceName]datapath.Service{}
	s.reconcile()
	for i := range s.old {
		s.old[i].at = time.Time{}
	}
	s.DropOld() // nothing but the backends is left
	s.restart()
	s.desired["new"] = everything("198.51.100.3", "")
	s.converge()
	info, _ := s.Get("new")
	var total kernel.Traffic
	if ok, err := s.tables.ServiceTraffic.Find(info.ID, &total); ok || err != nil {
		t.Errorf("a new service has carried %d packets, %v", total.PacketCount, err)
	}
	s.wantModel("after the deletion")
}
