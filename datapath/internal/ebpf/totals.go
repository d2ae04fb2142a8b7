// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/lb"
)

// backendTotals is the traffic of a backend's live connections. Connections without a service are
// counted for backend 0.
type backendTotals struct{ active, packets, bytes uint64 }

// addClosed adds the traffic of ended connections to the totals of their backends.
func (w *sweeper) addClosed(p *pass) error {
	table := &w.d.tables.BackendTraffic
	for id, c := range p.closed {
		var t kernel.Traffic
		if err := table.Lookup(id, &t); err != nil {
			return fmt.Errorf("totals of backend %d: %w", id, err)
		}
		t.PacketCount += c.packets
		t.ByteCount += c.bytes
		if err := table.Replace(id, t); err != nil {
			return fmt.Errorf("totals of backend %d: %w", id, err)
		}
	}
	return nil
}

// writeLoads sets the number of connections of each backend, which the programs only increase.
func (w *sweeper) writeLoads(before, now map[uint32]backendTotals) error {
	table := &w.d.tables.BackendLoad
	for id := range before {
		if _, ok := now[id]; !ok {
			if err := table.Replace(id, 0); err != nil {
				return fmt.Errorf("load of backend %d: %w", id, err)
			}
		}
	}
	for id, t := range now {
		if err := table.Replace(id, uint32(t.active)); err != nil {
			return fmt.Errorf("load of backend %d: %w", id, err)
		}
	}
	return nil
}

// backend returns the traffic of a backend's connections as of the last pass, except connections
// that had ended by then.
func (w *sweeper) backend(id uint32) (backendTotals, error) {
	w.numbers.Lock()
	t, live := w.totals[id]
	w.numbers.Unlock()
	if live {
		return t, nil
	}
	reused, err := lb.Reused(w.d.tables, id)
	return backendTotals{packets: reused.PacketCount, bytes: reused.ByteCount}, err
}

// count adds the traffic of an entry to the totals of live connections.
func (p *pass) count(m *kernel.CtMeta) {
	p.seen[p.table]++
	if m.Nexthop < kernel.NexthopCount {
		p.used[m.Nexthop] = true
	}
	p.nat.Carry(m)
	t := totalsOf(p.live, m.BackendId)
	t.packets += m.PacketCount
	t.bytes += m.ByteCount
	if isActive(m) {
		t.active++
	}
}

// isActive reports whether an entry counts as a connection that its backend still serves.
func isActive(m *kernel.CtMeta) bool {
	return m.Flags&kernel.CtReply == 0 && kernel.CtState(m.State) < kernel.CtStateCT_TIME_WAIT
}

// close moves the traffic of a deleted direction from the live to the closed totals. The sum of
// both is exact; the live total is too low by the traffic since the entry was counted.
func (p *pass) close(m *kernel.CtMeta) {
	p.nat.Drop(m)
	live, closed := totalsOf(p.live, m.BackendId), totalsOf(p.closed, m.BackendId)
	live.packets -= m.PacketCount
	live.bytes -= m.ByteCount
	closed.packets += m.PacketCount
	closed.bytes += m.ByteCount
	if isActive(m) && live.active > 0 {
		live.active--
	}
}

func totalsOf(m map[uint32]*backendTotals, id uint32) *backendTotals {
	t := m[id]
	if t == nil {
		t = new(backendTotals)
		m[id] = t
	}
	return t
}
