// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// converge applies the desired services without faults until nothing remains to be done.
func (s *faultySite) converge() {
	s.t.Helper()
	s.fails, s.failAt, s.killed, s.begins = 0, 0, false, false
	for range 3 { // frontends move from their old owner to their new one
		s.reconcile()
	}
	s.wantRemovedUnusable()
	s.pass()
	s.pass()
}

// wantRemovedUnusable fails the test if a removed backend may still get new connections, from
// clients with affinity to it.
func (s *faultySite) wantRemovedUnusable() {
	s.t.Helper()
	_ = s.tables.Backend.Batches(func(ids []uint32, values []kernel.Backend) error {
		for i, b := range values {
			v := s.desired[s.Name(b.ServiceId)]
			isWanted := slices.ContainsFunc(v.Backends, func(x datapath.Backend) bool { return x.Addr == b.BackendAddr() })
			if b.Flags != 0 && !isWanted {
				s.t.Errorf("backend %d, which was removed, is usable: %+v", ids[i], b)
			}
		}
		return nil
	})
}

// wantSound fails the test if a packet could have encountered an error since the last call.
func (s *faultySite) wantSound(where string) {
	s.t.Helper()
	if s.broken == "" {
		s.broken = wrongReference(&tablesOfSite{s.tables})
	}
	if s.broken != "" {
		s.t.Fatalf("%s: %s", where, s.broken)
	}
}

// newTransition returns a site that has the first desired services of a seed in its tables, and
// whose desired services have changed since; back makes the first ones the desired services again.
func newTransition(t *testing.T, seed uint64) (s *faultySite, back func()) {
	t.Helper()
	s = newFaultySite(t, seed)
	s.unchecked = true
	for range 6 {
		s.change()
	}
	s.converge()
	before := maps.Clone(s.desired)
	for range 1 + int(seed%3) {
		s.change()
	}
	s.unchecked, s.writes, s.broken, s.begins = false, 0, "", seed%2 == 0
	return s, func() { s.desired = before }
}

// transitions calls do for each position at which one of the changes of a transition can fail, for
// several transitions.
func transitions(t *testing.T, do func(s *faultySite, where string, back func())) {
	t.Helper()
	total := 0
	for seed := range uint64(24) {
		s, _ := newTransition(t, seed)
		s.reconcile()
		s.reconcile()
		s.pass()
		count := s.writes
		s.converge()
		s.wantSound(fmt.Sprintf("seed %d", seed))
		s.wantModel(fmt.Sprintf("seed %d, undisturbed", seed))
		total += count
		for n := 1; n <= count; n++ {
			s, back := newTransition(t, seed)
			s.failAt = n
			do(s, fmt.Sprintf("seed %d, change %d of %d", seed, n, count), back)
		}
	}
	if t.Logf("%d positions", total); total < 300 {
		t.Error("too few positions")
	}
}

// TestFailedWrite: if any single change of an update or a deletion fails, retries reach the state
// of an undisturbed run, and a packet finds only complete tables in the meantime.
func TestFailedWrite(t *testing.T) {
	transitions(t, func(s *faultySite, where string, _ func()) {
		s.reconcile()
		s.reconcile()
		s.pass()
		if s.failures != 1 {
			t.Fatalf("%s: %d failures", where, s.failures)
		}
		s.converge()
		s.wantSound(where)
		s.wantModel(where)
	})
}

// TestFailedWriteThenReverted: if a change fails, and then the former services are desired again,
// the tables contain exactly these.
func TestFailedWriteThenReverted(t *testing.T) {
	transitions(t, func(s *faultySite, where string, back func()) {
		s.killed = s.failAt%2 == 0 // all later changes fail too
		s.reconcile()
		back()
		s.converge()
		s.wantSound(where)
		s.wantModel(where)
	})
}

// TestInterrupted: the process ends after any change. What the next run adopts is complete, also
// after the deferred deletions and a pass, before it has updated any service; its updates reach the
// state of an undisturbed run.
func TestInterrupted(t *testing.T) {
	transitions(t, func(s *faultySite, where string, _ func()) {
		s.killed = true
		s.reconcile()
		s.failAt, s.killed = 0, false
		s.restart()
		s.wantSound(where + ", adopted")
		s.pass()
		s.wantSound(where + ", after a pass of the next run")
		if s.failures%2 == 0 {
			s.restart() // a second time, before any update
			s.pass()
		}
		s.converge()
		s.wantSound(where)
		s.wantModel(where)
	})
}

// TestAdoptionFails: a change of tables during the adoption fails, after the process ended in the
// middle of an update. The next attempt adopts all.
func TestAdoptionFails(t *testing.T) {
	failed := 0
	transitions(t, func(s *faultySite, where string, _ func()) {
		s.killed = true
		s.reconcile()
		for n := 1; ; n++ {
			s.writes, s.failAt, s.killed = 0, n, n%2 == 0
			next, err := s.adopt()
			if err == nil {
				next.Start(s.passes, func() {})
				s.Table = next
				break
			}
			if failed++; !errors.Is(err, unix.EIO) {
				t.Fatalf("%s: %v", where, err)
			}
			s.wantSound(fmt.Sprintf("%s, change %d of the adoption", where, n))
		}
		s.converge()
		s.wantSound(where)
		s.wantModel(where)
	})
	if t.Logf("%d adoptions failed", failed); failed == 0 {
		t.Error("no adoption failed")
	}
}

// TestDivertedToUnfinished: a service diverts clients to another one whose last update failed at
// some write, or is still to release frontends.
func TestDivertedToUnfinished(t *testing.T) {
	for _, begins := range []bool{false, true} {
		failed := true
		for n := 1; failed; n++ {
			s := newFaultySite(t, 1)
			other := everything("198.51.100.1", "")
			if begins { // it gets frontends of the other family, and is to release one
				first := everything("198.51.100.1", "")
				first.Frontends = first.Frontends[:2]
				s.desired["other"] = first
				s.converge()
				other.Frontends = other.Frontends[1:]
			}
			s.writes, s.failAt = 0, n
			_, err := s.update("other", other, !begins)
			failed = err != nil
			s.failAt, s.desired["other"], s.desired["web"] = 0, other, everything("198.51.100.2", "other")
			if err := s.Update(t.Context(), "web", s.desired["web"]); err != nil {
				t.Fatal(err)
			}
			where := fmt.Sprintf("change %d, begins %t", n, begins)
			info, _ := s.Get("other")
			tables := &tablesOfSite{s.tables}
			for _, f := range other.Frontends {
				if e := tables.byID()[idKey(info.ID, f)]; !failed && e != tables.entries()[f] {
					t.Errorf("%s: diverted clients have %+v, others of %s %+v", where, e, f, tables.entries()[f])
				}
			}
			s.wantSound(where)
			s.converge()
			s.wantSound(where)
			s.wantModel(where)
		}
	}
}
