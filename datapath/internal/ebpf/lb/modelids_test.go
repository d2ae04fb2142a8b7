// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"fmt"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// checkUnused checks that no selection table and no set exists without an entry that refers to it.
func (m *model) checkUnused() {
	_ = m.tables.Slot.Batches(func(keys []kernel.SlotKey, _ []kernel.SlotChunk) error {
		for _, k := range keys {
			if k.Chunk >= m.chunks[k.TableId] {
				m.errorf("chunk %d of selection table %d, which has %d", k.Chunk, k.TableId, m.chunks[k.TableId])
			}
		}
		return nil
	})
	ranges, diverts := m.tables.sets()
	for _, sets := range []map[uint32][]string{ranges, diverts} {
		for id, set := range sets {
			if !m.sets[id] {
				m.errorf("set %d is not used: %v", id, set)
			}
		}
	}
	if len(m.old) > 0 {
		m.errorf("%d deletions are pending", len(m.old))
	}
}

// checkIDs checks that each backend id is either in use or free, and which backends are dead.
func (m *model) checkIDs() {
	count := map[uint32]int{}
	for _, id := range m.Table.backends.free {
		count[id]++
	}
	for id := range m.backends {
		count[id]++
	}
	for id, n := range count {
		if n != 1 || id == 0 || id >= m.Table.backends.next {
			m.errorf("backend id %d is in use or free %d times; the next new id is %d", id, n, m.Table.backends.next)
		}
	}
	if len(count) != int(m.Table.backends.next)-1 {
		m.errorf("%d backend ids are in use or free, %d were allocated", len(count), m.Table.backends.next-1)
	}
	dead := map[uint32]bool{}
	for name, v := range m.desired {
		var serves [2]bool // by family: not all backends are down
		for _, b := range v.Backends {
			serves[kernel.FamilyOf(b.Addr.Addr())] = serves[kernel.FamilyOf(b.Addr.Addr())] || b.State != datapath.BackendDown
		}
		info, ok := m.Get(name)
		if !ok || info.ID != m.ids[name] || info.Name != name || len(info.Backends) != len(v.Backends) || m.Name(info.ID) != name {
			m.errorf("%s: %+v (%t), want id %d and %d backends", name, info, ok, m.ids[name], len(v.Backends))
		}
		for _, b := range v.Backends {
			i := slices.IndexFunc(info.Backends, func(x BackendInfo) bool { return x.Addr == b.Addr })
			if i < 0 || m.backends[info.Backends[i].ID].BackendAddr() != b.Addr {
				m.errorf("%s: backend %s is not in %+v", name, b.Addr, info)
			} else if b.State == datapath.BackendDown && serves[kernel.FamilyOf(b.Addr.Addr())] {
				dead[info.Backends[i].ID] = false
			}
		}
	}
	if have := m.Dead(); !maps.Equal(have, dead) {
		m.errorf("dead backends %v, want %v", have, dead)
	}
}

// checkQueries checks what other packages ask for.
func (m *model) checkQueries() {
	var names, outOfUse, wantOutOfUse []string
	var ports []uint16
	var frontends, backends, ranges uint64
	for name, v := range m.desired {
		names = append(names, string(name))
		for _, f := range v.Frontends {
			ports = append(ports, f.Addr.Port())
			frontends++
		}
		for _, b := range v.Backends {
			if backends++; b.Weight > 0 && wantShares(&v, b.Addr.Addr().Is6())[b.Addr] == 0 {
				wantOutOfUse = append(wantOutOfUse, fmt.Sprint(name, " ", b.Addr))
			}
		}
		ranges += uint64(len(v.SourceRanges))
		if ok, err := m.Verify(m.t.Context(), name); !ok || err != nil {
			m.errorf("%s does not verify: %v", name, err)
		}
	}
	for name, addr := range m.OutOfUse() {
		outOfUse = append(outOfUse, fmt.Sprint(name, " ", addr))
	}
	equal(m, "backends out of use", outOfUse, wantOutOfUse)
	equal(m, "ports", m.FrontendPorts(), ports)
	var keys, all []string
	for name, err := range m.Keys(m.t.Context()) {
		if keys = append(keys, string(name)); err != nil {
			m.errorf("keys: %v", err)
		}
	}
	for _, info := range m.All() {
		all = append(all, string(info.Name))
	}
	equal(m, "keys", keys, names)
	equal(m, "all services", all, names)
	usage := map[string]datapath.Usage{}
	m.Usage(usage, testtables.Small)
	if want := map[string]datapath.Usage{
		"services": {Used: frontends, Size: 64}, "backends": {Used: backends, Size: 256}, "ranges": {Used: ranges, Size: 256},
	}; !maps.Equal(usage, want) {
		m.errorf("usage %+v, want %+v", usage, want)
	}
	if m.HasFrontends() != (frontends > 0) || len(m.Taken()) > 0 || len(m.IdleTimes()) != len(names) {
		m.errorf("has frontends: %t, taken %v, idle times %v", m.HasFrontends(), m.Taken(), m.IdleTimes())
	}
}

// equal compares lists regardless of their order.
func equal[V string | uint16](m *model, what string, have, want []V) {
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		m.errorf("%s: %v, want %v", what, have, want)
	}
}
