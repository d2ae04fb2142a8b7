// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// through returns both entries of a connection through a frontend to a backend of a service.
func (s *faultySite) through(f datapath.Frontend, service datapath.ServiceName, backend netip.AddrPort) (both [2]*entry) {
	s.t.Helper()
	info, _ := s.Get(service)
	m := kernel.CtMeta{Flags: kernel.CtService, State: uint8(kernel.CtStateCT_ESTABLISHED), PacketCount: 1}
	for _, b := range info.Backends {
		if b.Addr == backend {
			m.BackendId = b.ID
		}
	}
	if m.BackendId == 0 {
		s.t.Fatalf("%s has no backend %s", service, backend)
	}
	client := netip.AddrPortFrom(f.Addr.Addr().Next(), 1234)
	forth := &entry{m, f.Protocol, datapath.Tuple{Source: client, Destination: f.Addr}, datapath.Tuple{Source: client, Destination: backend}}
	back := &entry{
		m, f.Protocol, datapath.Tuple{Source: backend, Destination: client}, datapath.Tuple{Source: f.Addr, Destination: client},
	}
	back.meta.Flags |= kernel.CtReply
	return [2]*entry{forth, back}
}

// wantEnds checks whether the next pass ends a connection.
func (s *faultySite) wantEnds(what string, both [2]*entry, want bool) {
	s.t.Helper()
	p := s.PassBegins(s.passes.passes + 1)
	p.Resumed()
	for i, e := range both {
		p.Seen(e)
		if got := p.Ends(e); got != want {
			s.t.Errorf("%s: direction %d ends: %t, want %t", what, i, got, want)
		}
	}
}

// TestEndsOfBackends: all connections to a removed backend end, and UDP connections to a backend
// that is down while another backend of its family is not. Other connections stay. The same applies
// to the run after an interruption.
func TestEndsOfBackends(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		s := newFaultySite(t, 1)
		s.desired["web"] = everything("198.51.100.1", "")
		s.converge()
		f := s.desired["web"].Frontends
		connections := map[string][2]*entry{}
		for n, state := range []string{"removed", "down", "active"} {
			backend := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n + 1)}), 8080)
			connections[state+" TCP"], connections[state+" UDP"] = s.through(f[0], "web", backend), s.through(f[1], "web", backend)
		}
		check := func(when string, ends map[string]bool) {
			t.Helper()
			for what, both := range connections {
				s.wantEnds(fmt.Sprintf("%s, restarts %t: %s", when, restarts, what), both, ends[what])
			}
		}
		check("before", nil)
		v := everything("198.51.100.1", "")
		v.Backends = v.Backends[1:]
		v.Backends[0].State = datapath.BackendDown
		s.desired["web"] = v
		s.reconcile()
		if restarts {
			s.restart()
			s.reconcile()
		}
		check("removed and down", map[string]bool{"removed TCP": true, "removed UDP": true, "down UDP": true})
		v.Backends[1].State = datapath.BackendDown
		s.reconcile()
		check("all are down", map[string]bool{"removed TCP": true, "removed UDP": true})
		p := s.PassBegins(s.passes.passes + 1).(*Pass)
		v.Backends[0].State, v.Backends[1].State = datapath.BackendDown, datapath.BackendActive
		s.reconcile()
		p.Resumed()
		if p.Ends(connections["down UDP"][0]) {
			t.Error("a pass ends connections to a backend that went down after it had begun")
		}
		p = s.PassBegins(s.passes.passes + 1).(*Pass)
		v.Backends[0].State = datapath.BackendActive
		s.reconcile()
		p.Resumed()
		if p.Ends(connections["down UDP"][0]) {
			t.Error("a pass ends connections to a backend that is up again")
		}
		delete(s.desired, "web")
		s.reconcile()
		s.restart()
		s.wantEnds("deleted", connections["active TCP"], true)
	}
}

// TestEndsOfTakenFrontends: UDP connections through a frontend that has moved to another service
// end, unless the other service has their backend, or diverts clients to a service that has it. Two
// passes later, the search has ended.
func TestEndsOfTakenFrontends(t *testing.T) {
	addr := func(n byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 8080) }
	for _, tt := range []struct {
		name   string
		change func(taker *datapath.Service)
		ends   bool
	}{
		{"another backend", func(*datapath.Service) {}, true},
		{"the same backend", func(v *datapath.Service) { v.Backends = append(v.Backends, datapath.Backend{Addr: addr(1), Weight: 1}) }, false},
		{"the same backend, draining", func(v *datapath.Service) {
			v.Backends = append(v.Backends, datapath.Backend{Addr: addr(1), State: datapath.BackendDraining})
		}, false},
		{"the same backend, down", func(v *datapath.Service) {
			v.Backends = append(v.Backends, datapath.Backend{Addr: addr(1), State: datapath.BackendDown})
		}, true},
		{"diverted", func(v *datapath.Service) {
			v.Diverts = []datapath.Divert{{Sources: parse(netip.MustParsePrefix, "192.0.2.0/24"), Service: "old"}}
		}, false},
	} {
		s := newFaultySite(t, 1)
		old := everything("198.51.100.1", "")
		taker := datapath.Service{Backends: []datapath.Backend{{Addr: addr(9), Weight: 1}}}
		s.desired["old"] = old
		s.converge()
		udp, tcp, kept := s.through(old.Frontends[1], "old", addr(1)), s.through(old.Frontends[0], "old", addr(1)), s.through(old.Frontends[3], "old", addr(1))
		tt.change(&taker)
		taker.Frontends, old.Frontends = old.Frontends[:2], old.Frontends[2:]
		s.desired["old"], s.desired["taker"] = old, taker
		for range 2 {
			s.reconcile()
		}
		s.wantEnds(tt.name+": UDP", udp, tt.ends)
		s.wantEnds(tt.name+": TCP", tcp, false)
		s.wantEnds(tt.name+": another frontend", kept, false)
		s.wantEnds(tt.name+": to the taker", s.through(taker.Frontends[1], "taker", addr(9)), false)
		s.converge()
		s.wantModel(tt.name)
		s.wantEnds(tt.name+": after the passes", udp, false)
	}
}

// TestLoads: after a pass, the load of each backend is the number of connections that it still
// serves, even if that number is 0, after failed writes, and after a restart.
func TestLoads(t *testing.T) {
	for seed := range uint64(50) {
		s := newFaultySite(t, seed)
		s.desired["web"] = everything("198.51.100.1", "")
		s.converge()
		v := s.desired["web"]
		for round := range 10 {
			want := make([]uint32, s.tables.BackendLoad.MaxEntries())
			p := s.PassBegins(s.passes.passes + 1)
			p.Resumed()
			for range s.random.IntN(6) {
				e := s.through(v.Frontends[0], "web", v.Backends[s.random.IntN(3)].Addr)
				id := e[0].meta.BackendId
				var load uint32
				_ = s.tables.BackendLoad.Lookup(id, &load)
				if err := s.tables.BackendLoad.Put(id, load+1); err != nil { // as the programs do
					t.Fatal(err)
				}
				want[id]++
				for _, direction := range e {
					p.Seen(direction)
				}
				if s.random.IntN(2) == 0 {
					want[id]--
					for _, direction := range e {
						p.Deleted(direction)
					}
				}
			}
			s.fails = []float64{0, 0.3}[s.random.IntN(2)]
			err := p.PassEnded()
			failed := s.fails > 0 && err != nil
			if s.passes.passes++; err != nil && s.fails == 0 {
				t.Fatal(err)
			}
			if s.fails = 0; failed {
				if s.random.IntN(2) == 0 {
					s.restart()
				}
				continue
			}
			for id, n := range want {
				var load uint32
				if _ = s.tables.BackendLoad.Lookup(uint32(id), &load); load != n {
					t.Fatalf("seed %d, round %d: load of backend %d is %d, want %d", seed, round, id, load, n)
				}
			}
		}
	}
}
