// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
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

// fakeAnnouncer records the addresses that services announce. If it fails, it retries by itself.
type fakeAnnouncer struct {
	addrs map[netip.Addr]bool
	fail  func() error
}

func (a *fakeAnnouncer) Announce(addrs []netip.Addr) error {
	a.Seed(addrs)
	return a.fail()
}

func (a *fakeAnnouncer) Seed(addrs []netip.Addr) {
	a.addrs = map[netip.Addr]bool{}
	for _, addr := range addrs {
		a.addrs[addr] = true
	}
}

func (a *fakeAnnouncer) Announced() map[netip.Addr]bool { return a.addrs }

// fakeSweep counts passes, each of which finds no connection.
type fakeSweep struct{ passes uint64 }

func (w *fakeSweep) NextPass() uint64 { return w.passes + 1 }
func (w *fakeSweep) Kick()            {}

// faultySite has services in in-memory tables; changes to these tables fail at random.
type faultySite struct {
	*Table
	t         *testing.T
	random    *rand.Rand
	maps      map[string]*testmap.Map
	announced *fakeAnnouncer
	targets   targetPorts
	passes    *fakeSweep
	fails     float64 // probability that a change fails
	failures  int
	writes    int  // number of changes, including those that failed
	failAt    int  // number of a change that fails; 0: none
	killed    bool // all changes after failAt fail as well
	unchecked bool // broken is not updated
	begins    bool // stop in the middle of some updates
	desired   map[datapath.ServiceName]datapath.Service
	broken    string // first invariant that a change broke
}

func newFaultySite(t *testing.T, seed uint64) *faultySite {
	s := &faultySite{
		t: t, random: rand.New(rand.NewPCG(seed, 5)), passes: &fakeSweep{}, desired: map[datapath.ServiceName]datapath.Service{},
	}
	s.announced = &fakeAnnouncer{fail: s.fail}
	var all *kernel.Tables
	all, s.maps = testtables.New(t, testtables.Small, &testmap.Faults{
		Fail: s.fail,
		Changed: func() {
			if s.broken == "" && !s.unchecked {
				s.broken = wrongReference(&tablesOfSite{s.tables})
			}
		},
	})
	s.Table = &Table{tables: all}
	s.restart()
	return s
}

// targetPorts counts the backends with each port: [Targets].
type targetPorts map[uint16]int

func (t targetPorts) Add(port uint16) error {
	t[port]++
	return nil
}

func (t targetPorts) Remove(port uint16) {
	if t[port]--; t[port] == 0 {
		delete(t, port)
	}
}

// fail returns the error of the next change; nil: it succeeds.
func (s *faultySite) fail() error {
	s.writes++
	if s.fails > 0 && s.random.Float64() < s.fails || s.failAt > 0 && (s.writes == s.failAt || s.killed && s.writes > s.failAt) {
		s.failures++
		return unix.EIO
	}
	return nil
}

// adopt returns a Table that adopts the tables, as a new run does.
func (s *faultySite) adopt() (*Table, error) {
	s.targets = make(targetPorts)
	return Adopt(s.tables, s.announced, s.targets, slog.New(slog.DiscardHandler))
}

// restart replaces the Table with a new one, which adopts the tables as a new run does.
func (s *faultySite) restart() {
	s.t.Helper()
	next, err := s.adopt()
	if err != nil {
		s.t.Fatal(err)
	}
	next.Start(s.passes, func() {})
	s.Table = next
}

// pass simulates a complete sweep that finds no connection, and the delay after which old tables
// are deleted.
func (s *faultySite) pass() {
	for i := range s.old {
		s.old[i].at = time.Time{}
	}
	s.DropOld()
	s.passes.passes++
	if err := s.passEnded(s.passes.passes, func(uint32) bool { return false }); err != nil && s.fails == 0 && s.failAt == 0 {
		s.t.Fatal(err)
	}
}

var faultyNames = []datapath.ServiceName{"a", "b", "c", "d"}

// service returns a random service. Its frontends belong to no other desired service.
func (s *faultySite) service(name datapath.ServiceName) datapath.Service {
	r := s.random
	taken := map[datapath.Frontend]bool{}
	for other, v := range s.desired {
		for _, f := range v.Frontends {
			taken[f] = taken[f] || other != name
		}
	}
	v := datapath.Service{
		Algorithm: datapath.Algorithm(r.IntN(5)), Source: datapath.SourceMode(r.IntN(3)), Affinity: time.Duration(r.IntN(2)) * time.Minute,
		Silent: r.IntN(2) == 0, Announce: r.IntN(2) == 0, OtherPorts: datapath.OtherPorts(r.IntN(3)),
	}
	addrs := []string{"198.51.100.1", "198.51.100.2", "2001:db8::1"}
	for range 1 + r.IntN(3) {
		f := datapath.Frontend{
			Addr:     netip.AddrPortFrom(netip.MustParseAddr(addrs[r.IntN(len(addrs))]), uint16(80+r.IntN(3))),
			Protocol: []datapath.Protocol{datapath.TCP, datapath.UDP}[r.IntN(2)],
		}
		if !taken[f] && !slices.Contains(v.Frontends, f) {
			v.Frontends = append(v.Frontends, f)
		}
	}
	if len(v.Frontends) == 0 {
		v.Frontends = []datapath.Frontend{{Addr: netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 1000+uint16(name[0])), Protocol: datapath.TCP}}
	}
	seen := map[netip.AddrPort]bool{}
	for range r.IntN(5) {
		addr := netip.MustParseAddr([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2"}[r.IntN(5)])
		b := datapath.Backend{Addr: netip.AddrPortFrom(addr, 8080), Weight: uint16(r.IntN(3)), State: datapath.BackendState(r.IntN(3))}
		if !seen[b.Addr] {
			seen[b.Addr] = true
			v.Backends = append(v.Backends, b)
		}
	}
	prefix := func() netip.Prefix {
		return []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("203.0.113.0/25"), netip.MustParsePrefix("2001:db8:1::/48")}[r.IntN(3)]
	}
	for range r.IntN(3) {
		if p := prefix(); !slices.Contains(v.SourceRanges, p) {
			v.SourceRanges = append(v.SourceRanges, p)
		}
	}
	if to := faultyNames[r.IntN(len(faultyNames))]; to != name && r.IntN(2) == 0 {
		if _, ok := s.desired[to]; ok {
			v.Diverts = []datapath.Divert{{Sources: []netip.Prefix{prefix()}, Service: to}}
		}
	}
	return v
}

// change changes the desired services at random.
func (s *faultySite) change() {
	name := faultyNames[s.random.IntN(len(faultyNames))]
	if s.random.IntN(4) > 0 {
		s.desired[name] = s.service(name)
		return
	}
	for _, v := range s.desired {
		for _, d := range v.Diverts {
			if d.Service == name {
				return // the store would reject that
			}
		}
	}
	delete(s.desired, name)
}

// reconcile applies the desired services once, in a random order, as the reconciler does. It may
// stop in the middle of an update that releases frontends.
func (s *faultySite) reconcile() {
	names := map[datapath.ServiceName]bool{}
	for name := range s.byName {
		names[name] = true
	}
	for name := range s.desired {
		names[name] = true
	}
	for _, name := range testtables.Shuffled(s.random, names) {
		var err error
		v, ok := s.desired[name]
		switch {
		case !ok:
			err = s.Delete(s.t.Context(), name)
		case s.begins && s.random.IntN(3) == 0:
			_, err = s.Begin(s.t.Context(), name, v)
		default:
			err = s.Update(s.t.Context(), name, v)
		}
		if err != nil && (s.fails == 0 && s.failAt == 0 || !errors.Is(err, unix.EIO)) {
			s.t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestServicesUnderFaults: whichever change to a table fails, and whenever the daemon restarts, a
// packet finds only complete tables; after the retries the tables are equivalent to what a first
// run with the desired services would write, and no entry is left behind.
func TestServicesUnderFaults(t *testing.T) {
	const rounds, changes = 20, 25
	failures, restarts := 0, 0
	for round := range rounds {
		seed := rand.Uint64()
		s := newFaultySite(t, seed)
		for range changes {
			s.change()
			s.fails, s.begins = []float64{0, 0.02, 0.1, 0.3}[s.random.IntN(4)], s.random.IntN(2) == 0
			for range 1 + s.random.IntN(3) {
				s.reconcile()
				if s.random.IntN(4) == 0 {
					s.pass()
				}
			}
			if s.fails, s.begins = 0, false; s.random.IntN(4) == 0 {
				s.restart()
				restarts++
			}
			if s.broken != "" {
				t.Fatalf("seed %d: %s", seed, s.broken)
			}
			if s.random.IntN(3) == 0 {
				s.wantDesired(seed)
			}
		}
		s.wantDesired(seed)
		if failures += s.failures; s.failures == 0 {
			t.Errorf("round %d: nothing failed", round)
		}
	}
	t.Logf("%d failures, %d restarts", failures, restarts)
}

// wantDesired applies the desired services without faults, and compares the tables with what a
// first run writes.
func (s *faultySite) wantDesired(seed uint64) {
	s.t.Helper()
	for range 3 { // frontends move from their old owner to their new one
		s.reconcile()
	}
	s.pass()
	s.pass()
	fresh := newFaultySite(s.t, seed)
	fresh.desired = s.desired
	for range 3 {
		fresh.reconcile()
	}
	have, want := (&tablesOfSite{s.tables}).meaning(), (&tablesOfSite{fresh.tables}).meaning()
	for what, w := range want {
		if have[what] != w {
			s.t.Errorf("seed %d: %s:\nhave %s\nwant %s", seed, what, have[what], w)
		}
	}
	for what, h := range have {
		if _, ok := want[what]; !ok {
			s.t.Errorf("seed %d: %s: %s, which is not desired", seed, what, h)
		}
	}
	if !maps.Equal(s.announced.addrs, fresh.announced.addrs) {
		s.t.Errorf("seed %d: announced %v, want %v", seed, s.announced.addrs, fresh.announced.addrs)
	}
	if !maps.Equal(s.targets, fresh.targets) {
		s.t.Errorf("seed %d: ports of backends %v, want %v", seed, s.targets, fresh.targets)
	}
	if s.t.Failed() {
		s.t.FailNow()
	}
	s.wantModel(fmt.Sprint("seed ", seed))
}
