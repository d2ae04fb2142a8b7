// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// entry is one direction of a connection through a service.
type entry struct {
	meta          kernel.CtMeta
	protocol      datapath.Protocol
	comes, leaves datapath.Tuple
}

func (e *entry) Meta() *kernel.CtMeta                   { return &e.meta }
func (e *entry) Protocol() datapath.Protocol            { return e.protocol }
func (e *entry) Namespace() uint8                       { return 0 }
func (e *entry) Tuples() (comes, leaves datapath.Tuple) { return e.comes, e.leaves }

// trafficSite has a service with two backends, and a connection to the first of them.
type trafficSite struct {
	*faultySite
	value   datapath.Service
	service uint32
	id      uint32 // of the first backend
	live    *entry // nil: none
	carried uint64 // packets of connections that have ended
	number  uint64 // of the last pass
	ended   uint64 // likewise, of the last that ended a connection
}

func newTrafficSite(t *testing.T, seed uint64) *trafficSite {
	t.Helper()
	s := &trafficSite{faultySite: newFaultySite(t, seed)}
	s.value.Frontends = []datapath.Frontend{{Addr: netip.MustParseAddrPort("198.51.100.1:80"), Protocol: datapath.TCP}}
	for _, a := range []string{"10.0.0.1:80", "10.0.0.2:80"} {
		s.value.Backends = append(s.value.Backends, datapath.Backend{Addr: netip.MustParseAddrPort(a), Weight: 1})
	}
	s.update()
	info, _ := s.Get("web")
	s.service, s.id = info.ID, info.Backends[0].ID
	return s
}

func (s *trafficSite) update() {
	s.t.Helper()
	if err := s.Update(s.t.Context(), "web", s.value); err != nil {
		s.t.Fatal(err)
	}
}

// pass does a pass over the connection, whose last packet arrives after its entry was seen.
func (s *trafficSite) pass(fails float64, ends bool) error {
	s.fails = fails
	defer func() { s.fails = 0 }()
	s.number++
	p := s.PassBegins(s.number)
	p.Resumed()
	if s.live != nil {
		p.Seen(s.live)
		s.live.meta.PacketCount++
		if p.Ends(s.live) || ends {
			p.Deleted(s.live)
			s.carried += s.live.meta.PacketCount
			s.live, s.ended = nil, s.number
		}
	}
	return p.PassEnded()
}

// check compares the traffic of the backend; a packet after the entry was seen is counted with the
// next pass.
func (s *trafficSite) check() {
	s.t.Helper()
	want, active := s.carried, uint64(0)
	if s.live != nil {
		want, active = want+s.live.meta.PacketCount-1, 1
	} else if s.ended == s.number {
		want--
	}
	if n, got, err := s.Traffic(s.id); err != nil || got.PacketCount != want || n != active {
		s.t.Fatalf("%d connections with %d packets, %v; want %d with %d", n, got.PacketCount, err, active, want)
	}
}

// TestTrafficOfEndedConnections: the traffic of a backend is exact while its connections live, after
// they have ended, and after the backend was removed, whichever changes of tables fail in between.
// An id is not given to another backend before its traffic is in a table.
func TestTrafficOfEndedConnections(t *testing.T) {
	for seed := range uint64(30) {
		s := newTrafficSite(t, seed)
		for range 20 {
			if s.live == nil {
				s.live = &entry{meta: kernel.CtMeta{Flags: kernel.CtService, BackendId: s.id, State: uint8(kernel.CtStateCT_ESTABLISHED)}, protocol: datapath.TCP}
			}
			s.live.meta.PacketCount += uint64(s.random.IntN(9))
			if s.pass(0.4, s.random.IntN(2) == 0) == nil {
				s.check()
			}
			if err := s.pass(0, false); err != nil {
				t.Fatal(err)
			}
			s.check()
		}
		s.value.Backends = s.value.Backends[1:]
		s.update()
		s.number = s.passes.passes // the backend was marked for a pass after this one
		for i := 0; len(s.Dead()) > 0; i++ {
			if err := s.pass(0.5, false); err == nil && i > 100 {
				t.Fatalf("seed %d: the id is not freed", seed)
			}
		}
		if s.live != nil || !slices.Contains(s.backends.free, s.id) {
			t.Fatalf("seed %d: connection %v, free %v", seed, s.live, s.backends.free)
		}
		var total kernel.Traffic
		if _, err := s.tables.ServiceTraffic.Find(s.service, &total); err != nil || total.PacketCount != s.carried {
			t.Fatalf("seed %d: %d packets of removed backends, %v; want %d", seed, total.PacketCount, err, s.carried)
		}
	}
}
