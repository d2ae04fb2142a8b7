// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// external changes one entry of a table, as another program might.
type external struct {
	what string
	do   func() error
}

// externals returns changes of a table: each entry that is not zero is deleted if delete is true,
// and altered.
func externals[K, V comparable](name string, m *bpfmap.Map[K, V], deletes bool, alter func(*V)) (list []external) {
	var key K
	var value, zero V
	for it := m.Iterate(); it.Next(&key, &value); {
		if value == zero {
			continue
		}
		of, changed := key, value
		alter(&changed)
		list = append(list, external{fmt.Sprintf("%s %+v altered", name, of), func() error { return m.Put(of, changed) }})
		if deletes {
			list = append(list, external{fmt.Sprintf("%s %+v deleted", name, of), func() error { return m.Delete(of) }})
		}
	}
	return list
}

func (s *faultySite) externals() (list []external) {
	alter := func(e *kernel.Service) { e.AffinityTicks++ }
	list = append(list, externals("frontend", &s.tables.Service, true, alter)...)
	list = append(list, externals("by id", &s.tables.ServiceId, true, alter)...)
	list = append(list, externals("divert", &s.tables.Divert, true, func(d *kernel.Divert) { d.ServiceId++ })...)
	list = append(list, externals("divert, family", &s.tables.Divert, false, func(d *kernel.Divert) { d.Family ^= 2 })...)
	list = append(list, externals("range", &s.tables.SourceRange, true, func(family *uint8) { *family ^= 2 })...)
	list = append(list, externals("address", &s.tables.ServiceAddr, true, func(flags *uint32) { *flags ^= 3 })...)
	list = append(list, externals("slot", &s.tables.Slot, true, func(c *kernel.SlotChunk) { c.Word[0]++ })...)
	for _, alter := range []func(*kernel.Backend){
		func(b *kernel.Backend) { b.Flags ^= 1 }, func(b *kernel.Backend) { b.Weight++ }, func(b *kernel.Backend) { b.Port++ },
		func(b *kernel.Backend) { b.Addr.Word[3] ^= 1 << 24 }, func(b *kernel.Backend) { b.ServiceId++ }, func(b *kernel.Backend) { *b = kernel.Backend{} },
	} {
		list = append(list, externals("backend", &s.tables.Backend, false, alter)...)
	}
	return list
}

// siteOfTwo returns a site with two services that use every table.
func siteOfTwo(t *testing.T) *faultySite {
	t.Helper()
	s := newFaultySite(t, 1)
	s.unchecked = true
	s.desired["other"], s.desired["web"] = everything("198.51.100.1", ""), everything("198.51.100.2", "other")
	s.converge()
	return s
}

// TestExternalChanges: an external change to any entry that affects packets is detected by Verify
// of at least one service. An update of the services that do not verify repairs it.
func TestExternalChanges(t *testing.T) {
	count := len(siteOfTwo(t).externals())
	for i := range count {
		s := siteOfTwo(t)
		change := s.externals()[i]
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
		var wrong []datapath.ServiceName
		for name, v := range s.desired {
			ok, err := s.Verify(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				continue
			}
			wrong = append(wrong, name)
			if err := s.Update(t.Context(), name, v); err != nil {
				t.Fatal(err)
			}
		}
		if len(wrong) == 0 {
			t.Errorf("%s: not detected", change.what)
		}
		s.pass()
		s.pass()
		s.wantModel(change.what)
	}
	if t.Logf("%d changes", count); count < 100 {
		t.Error("too few changes")
	}
}

// TestChangedWhileStopped: an external change to a selection table while no daemon runs is repaired by
// the first updates of the next run.
func TestChangedWhileStopped(t *testing.T) {
	count := 0
	for i, change := range siteOfTwo(t).externals() {
		if !strings.HasPrefix(change.what, "slot ") {
			continue
		}
		count++
		s := siteOfTwo(t)
		if err := s.externals()[i].do(); err != nil {
			t.Fatal(err)
		}
		s.restart()
		s.converge()
		s.pass()
		s.pass()
		s.wantModel(change.what)
	}
	if count < 8 {
		t.Errorf("only %d changes", count)
	}
}

// TestVerifyNeedsUpdate: a service that this run has not written, or not completely, or that does
// not exist, does not verify.
func TestVerifyNeedsUpdate(t *testing.T) {
	s := newFaultySite(t, 1)
	want := func(when string, want bool) {
		t.Helper()
		if ok, err := s.Verify(t.Context(), "web"); ok != want || err != nil {
			t.Errorf("%s: %t, %v; want %t", when, ok, err, want)
		}
	}
	want("before it exists", false)
	s.desired["web"] = everything("198.51.100.1", "")
	s.converge()
	want("updated", true)
	s.restart()
	want("adopted", false)
	table := (&tablesOfSite{s.tables}).entries()
	s.converge()
	want("updated by the next run", true)
	for f, e := range (&tablesOfSite{s.tables}).entries() {
		if e != table[f] {
			t.Errorf("frontend %s: %+v after an update with the same value, before %+v", f, e, table[f])
		}
	}
	s.writes, s.failAt = 0, 1
	if err := s.Delete(t.Context(), "web"); err == nil {
		t.Error("no write failed")
	}
	want("not completely deleted", false)
	s.converge()
	want("updated again", true)
}

// TestFrontendStaysAfterAll: a frontend that is configured again while its removal is pending uses
// the current tables like the other frontends, not the old tables, also if the next run finishes
// the update. While the removal is pending, the frontend leads to the old tables.
func TestFrontendStaysAfterAll(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		s := newFaultySite(t, 1)
		all := everything("198.51.100.1", "")
		s.desired["web"] = all
		s.converge()
		pending := all.Frontends[1]
		before := (&tablesOfSite{s.tables}).entries()[pending]
		fewer := all
		fewer.Frontends, fewer.Backends = all.Frontends[:1], all.Backends[1:]
		for range 2 {
			if whole, err := s.Begin(t.Context(), "web", fewer); whole || err != nil {
				t.Fatalf("whole: %t, %v; want that a frontend is left to be given up", whole, err)
			}
			s.pass()
			if now := (&tablesOfSite{s.tables}).entries()[pending]; now != before {
				t.Errorf("the pending frontend has %+v, before %+v", now, before)
			}
		}
		if restarts {
			s.restart()
			s.pass()
		}
		all.Backends = fewer.Backends
		s.desired["web"] = all
		if err := s.Update(t.Context(), "web", all); err != nil {
			t.Fatal(err)
		}
		s.pass()
		s.pass()
		s.wantSound("afterwards")
		s.wantModel("afterwards")
	}
}

// TestBeginIsComplete: Begin is a complete update if no frontend is to be released, or if another
// service has taken those.
func TestBeginIsComplete(t *testing.T) {
	s := newFaultySite(t, 1)
	old, taker := everything("198.51.100.1", ""), everything("198.51.100.2", "")
	for name, v := range map[datapath.ServiceName]datapath.Service{"old": old, "taker": taker} {
		if whole, err := s.Begin(t.Context(), name, v); !whole || err != nil {
			t.Errorf("%s: whole: %t, %v", name, whole, err)
		}
	}
	taker.Frontends = append(taker.Frontends, old.Frontends[2:]...)
	old.Frontends = old.Frontends[:2]
	for _, step := range []struct {
		name  datapath.ServiceName
		value datapath.Service
		whole bool
	}{{"old", old, false}, {"taker", taker, true}, {"old", old, true}} {
		if whole, err := s.Begin(t.Context(), step.name, step.value); whole != step.whole || err != nil {
			t.Errorf("%s: whole: %t, %v; want %t", step.name, whole, err, step.whole)
		}
	}
	s.desired["old"], s.desired["taker"] = old, taker
	s.pass()
	s.pass()
	s.wantSound("moved")
	s.wantModel("moved")
}
