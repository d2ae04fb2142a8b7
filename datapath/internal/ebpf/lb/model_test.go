// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// model compares the tables with the desired services. It computes what the tables must contain
// from the definition of a Service, without the code under test.
type model struct {
	*faultySite
	tables   *tablesOfSite
	wrong    []string
	ids      map[datapath.ServiceName]uint32
	backends map[uint32]kernel.Backend // in use, by id
	chunks   map[uint32]uint32         // of selection tables in use
	sets     map[uint32]bool           // of source ranges and diverts, in use
}

// wantModel fails the test unless the tables contain exactly the desired services. It must be
// called once nothing remains to be done. where describes the circumstances.
func (s *faultySite) wantModel(where string) {
	s.t.Helper()
	m := &model{
		faultySite: s, tables: &tablesOfSite{s.Table.tables}, ids: map[datapath.ServiceName]uint32{}, backends: map[uint32]kernel.Backend{},
		chunks: map[uint32]uint32{}, sets: map[uint32]bool{},
	}
	m.read()
	frontends := m.tables.entries()
	for name, v := range s.desired {
		m.checkBackends(name, &v)
		for _, f := range v.Frontends {
			e, ok := frontends[f]
			if delete(frontends, f); !ok {
				m.errorf("frontend %s does not exist", f)
				continue
			}
			m.checkEntry("frontend "+f.String(), name, &e, f.Addr.Addr().Is6())
		}
	}
	for f, e := range frontends {
		m.errorf("frontend %s exists: %+v", f, e)
	}
	m.checkByID()
	m.checkAddrs()
	m.checkUnused()
	m.checkIDs()
	m.checkQueries()
	if len(m.wrong) > 0 {
		s.t.Fatalf("%s:\n%s", where, strings.Join(m.wrong, "\n"))
	}
}

func (m *model) errorf(format string, args ...any) {
	m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
}

// read reads the ids of services and the backends, and compares the names and the counters.
func (m *model) read() {
	_ = m.tables.ServiceName.Batches(func(ids []uint32, names []kernel.ServiceName) error {
		for i, id := range ids {
			name := names[i].Text()
			if _, ok := m.desired[name]; !ok || m.ids[name] != 0 {
				m.errorf("service %d is called %q, which has id %d or is not desired", id, name, m.ids[name])
			}
			m.ids[name] = id
			var stats []kernel.ServiceStats
			if ok, err := m.tables.ServiceStats.Find(id, &stats); !ok || err != nil {
				m.errorf("service %s has no counters: %v", name, err)
			}
		}
		return nil
	})
	if n := m.maps["ServiceStats"].Len(); n != len(m.desired) || len(m.ids) != len(m.desired) {
		m.errorf("%d services have counters and %d have names, want %d", n, len(m.ids), len(m.desired))
	}
	_ = m.tables.ServiceTraffic.Batches(func(ids []uint32, _ []kernel.Traffic) error {
		for _, id := range ids {
			if m.Name(id) == "" {
				m.errorf("totals of service %d, which does not exist", id)
			}
		}
		return nil
	})
	_ = m.tables.Backend.Batches(func(ids []uint32, values []kernel.Backend) error {
		for i, b := range values {
			if b.ServiceId == 0 {
				continue
			}
			if m.backends[ids[i]] = b; m.ids[m.tables.nameOf(b.ServiceId)] != b.ServiceId {
				m.errorf("backend %d of service %d, which does not exist", ids[i], b.ServiceId)
			}
		}
		return nil
	})
}

// wantShares returns the weight of each backend of a family that gets new connections: active ones
// by weight; if none of them has a weight, all backends that are not down, with at least 1.
func wantShares(v *datapath.Service, is6 bool) map[netip.AddrPort]int {
	active, others := map[netip.AddrPort]int{}, map[netip.AddrPort]int{}
	for _, b := range v.Backends {
		if b.Addr.Addr().Is6() != is6 || b.State == datapath.BackendDown {
			continue
		}
		if b.State == datapath.BackendActive && b.Weight > 0 {
			active[b.Addr] = int(b.Weight)
		}
		others[b.Addr] = max(1, int(b.Weight))
	}
	if len(active) > 0 {
		return active
	}
	return others
}

// checkBackends checks that each backend of a service has one entry, and that no other backend has
// one.
func (m *model) checkBackends(name datapath.ServiceName, v *datapath.Service) {
	got := map[netip.AddrPort]kernel.Backend{}
	for id, b := range m.backends {
		if b.ServiceId != m.ids[name] {
			continue
		}
		if _, twice := got[b.BackendAddr()]; twice {
			m.errorf("%s: backend %s has two ids, one is %d", name, b.BackendAddr(), id)
		}
		got[b.BackendAddr()] = b
	}
	for _, b := range v.Backends {
		want := kernel.Backend{Weight: uint32(b.Weight)}
		if share := wantShares(v, b.Addr.Addr().Is6())[b.Addr]; share > 0 {
			want.Weight, want.Flags = uint32(share), kernel.BackendUsable
		}
		have, ok := got[b.Addr]
		if delete(got, b.Addr); !ok || have.Weight != want.Weight || have.Flags != want.Flags {
			m.errorf("%s: backend %s (%t): weight %d, flags %d; want %d, %d", name, b.Addr, ok, have.Weight, have.Flags, want.Weight, want.Flags)
		}
	}
	for addr, b := range got {
		m.errorf("%s: backend %s exists: %+v", name, addr, b)
	}
}

var (
	wantAlgorithm = map[datapath.Algorithm]kernel.Algorithm{
		datapath.Maglev: kernel.AlgorithmALG_MAGLEV, datapath.Random: kernel.AlgorithmALG_RANDOM, datapath.RoundRobin: kernel.AlgorithmALG_ROUND_ROBIN,
		datapath.LeastConnections: kernel.AlgorithmALG_LEAST_CONNECTIONS, datapath.SourceHash: kernel.AlgorithmALG_SOURCE_HASH,
	}
	wantSource = map[datapath.SourceMode]kernel.SourceMode{
		datapath.SourceAuto: kernel.SourceModeSOURCE_AUTO, datapath.SourceKeep: kernel.SourceModeSOURCE_KEEP, datapath.SourceSNAT: kernel.SourceModeSOURCE_SNAT,
	}
	wantTicks = map[time.Duration]uint32{0: 0, time.Minute: 448} // of 2^27 ns
)

// checkEntry checks an entry of a desired service, of a frontend or by id.
func (m *model) checkEntry(what string, name datapath.ServiceName, e *kernel.Service, is6 bool) {
	v := m.desired[name]
	want := kernel.Service{
		Id: m.ids[name], AffinityTicks: wantTicks[v.Affinity], Algorithm: wantAlgorithm[v.Algorithm], Source: wantSource[v.Source],
		TableId: e.TableId, SlotCount: e.SlotCount, MemberCount: e.MemberCount, TableSum: e.TableSum, TableSource: e.TableSource, RangeSetId: e.RangeSetId, DivertSetId: e.DivertSetId, Idle: e.Idle,
	}
	if v.Silent {
		want.Flags = kernel.ServiceSilent
	}
	if *e != want {
		m.errorf("%s: %+v, want %+v", what, *e, want)
	}
	m.checkSlots(what, &v, e, is6)
	ranges, diverts := m.tables.sets()
	wantRanges, wantDiverts := []string{}, []string{}
	for _, p := range v.SourceRanges {
		wantRanges = append(wantRanges, p.String())
	}
	for _, d := range v.Diverts {
		for _, p := range d.Sources {
			wantDiverts = append(wantDiverts, fmt.Sprintf("%s to %s", p, d.Service))
		}
	}
	m.checkSet(what+": source ranges", e.RangeSetId, ranges, wantRanges)
	m.checkSet(what+": diverts", e.DivertSetId, diverts, wantDiverts)
}

func (m *model) checkSet(what string, id uint32, sets map[uint32][]string, want []string) {
	m.sets[id] = true
	have := slices.Sorted(slices.Values(sets[id]))
	slices.Sort(want)
	if !slices.Equal(have, want) || (id == 0) != (len(want) == 0) {
		m.errorf("%s: set %d has %v, want %v", what, id, have, want)
	}
}

// checkSlots compares the share of each backend in a selection table with its weight.
func (m *model) checkSlots(what string, v *datapath.Service, e *kernel.Service, is6 bool) {
	ids, complete := m.tables.slotsOf(e)
	have, want, all, sum := map[netip.AddrPort]int{}, map[netip.AddrPort]int{}, 0, 0
	if slices.ContainsFunc(v.Frontends, func(f datapath.Frontend) bool { return f.Addr.Addr().Is6() == is6 }) {
		want = wantShares(v, is6)
	}
	m.chunks[e.TableId] = chunkCount(e)
	for _, id := range ids {
		if b := m.backends[id]; b.ServiceId == m.ids[m.tables.nameOf(e.Id)] {
			have[b.BackendAddr()]++
		}
	}
	for _, share := range want {
		sum += share
	}
	for _, b := range v.Backends {
		if b.Addr.Addr().Is6() == is6 {
			all++
		}
	}
	isHash := v.Algorithm == datapath.Maglev || v.Algorithm == datapath.SourceHash
	for addr, share := range want {
		exact := float64(len(ids)*share) / float64(sum)
		tolerance := 2.0
		if !isHash {
			tolerance = 0
		}
		if v.Algorithm == datapath.LeastConnections {
			exact = 1
		}
		if math.Abs(float64(have[addr])-exact) > tolerance {
			m.errorf("%s: backend %s has %d of %d slots, want %.1f", what, addr, have[addr], len(ids), exact)
		}
	}
	if !complete || len(have) != len(want) || len(want) == 0 && len(ids) > 0 || isHash && len(want) > 0 && len(ids) != datapath.SlotCount(all) {
		m.errorf("%s: complete %t, %d slots for %v, want %v", what, complete, len(ids), have, want)
	}
}

// checkByID checks the entries of services to which others divert clients.
func (m *model) checkByID() {
	want := map[kernel.ServiceIdKey]datapath.ServiceName{}
	for _, v := range m.desired {
		for _, d := range v.Diverts {
			for _, family := range []uint32{4, 6} {
				want[kernel.ServiceIdKey{Id: m.ids[d.Service], Family: family}] = d.Service
			}
		}
	}
	for key, e := range m.tables.byID() {
		name, ok := want[key]
		if delete(want, key); !ok {
			m.errorf("by id %d/%d: %+v, which no service diverts to", key.Id, key.Family, e)
			continue
		}
		m.checkEntry(fmt.Sprintf("by id %s/%d", name, key.Family), name, &e, key.Family == 6)
	}
	for key, name := range want {
		m.errorf("by id %s/%d does not exist", name, key.Family)
	}
}

// checkAddrs checks the settings of the addresses of frontends.
func (m *model) checkAddrs() {
	strictest, announced := map[netip.Addr]uint32{}, map[netip.Addr]bool{}
	for _, v := range m.desired {
		for _, f := range v.Frontends {
			addr := f.Addr.Addr()
			if v.Announce {
				announced[addr] = true
			}
			switch {
			case v.OtherPorts == datapath.OtherPortsDrop:
				strictest[addr] = kernel.ServiceAddrDrop
			case v.OtherPorts == datapath.OtherPortsReject && strictest[addr] == 0:
				strictest[addr] = kernel.ServiceAddrReject
			}
		}
	}
	have := map[netip.Addr]uint32{}
	_ = m.tables.ServiceAddr.Batches(func(keys []kernel.Addr, values []uint32) error {
		for i := range keys {
			have[keys[i].Addr()] = values[i]
		}
		return nil
	})
	if !maps.Equal(have, strictest) {
		m.errorf("settings of addresses %v, want %v", have, strictest)
	}
	if !maps.Equal(m.announced.addrs, announced) {
		m.errorf("announced %v, want %v", m.announced.addrs, announced)
	}
}
