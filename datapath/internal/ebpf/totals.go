// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// backendTotals is what the connections carry that a backend has now. Connections that
// are no service's are those of backend 0.
type backendTotals struct{ active, packets, bytes uint64 }

// addClosed adds what ended connections carried to the totals of their backends.
func (w *sweeper) addClosed(p *pass) error {
	table := w.d.maps[kernelMapLlBackendTraffic]
	for id, c := range p.closed {
		var t kernelTraffic
		if err := table.Lookup(id, &t); err != nil {
			return fmt.Errorf("totals of backend %d: %w", id, err)
		}
		t.PacketCount += c.packets
		t.ByteCount += c.bytes
		if err := table.Update(id, &t, ebpf.UpdateExist); err != nil {
			return fmt.Errorf("totals of backend %d: %w", id, err)
		}
	}
	return nil
}

// writeLoads sets the number of connections of each backend, which the programs
// only raise.
func (w *sweeper) writeLoads(before, now map[uint32]backendTotals) error {
	table := w.d.maps[kernelMapLlBackendLoad]
	for id := range before {
		if _, ok := now[id]; !ok {
			if err := table.Update(id, uint32(0), ebpf.UpdateExist); err != nil {
				return fmt.Errorf("load of backend %d: %w", id, err)
			}
		}
	}
	for id, t := range now {
		if err := table.Update(id, uint32(t.active), ebpf.UpdateExist); err != nil {
			return fmt.Errorf("load of backend %d: %w", id, err)
		}
	}
	return nil
}

// backend returns what the connections of a backend carried as of the last pass;
// those that had ended by then left out.
func (w *sweeper) backend(id uint32) (backendTotals, error) {
	w.numbers.Lock()
	t, live := w.totals[id]
	w.numbers.Unlock()
	if live {
		return t, nil
	}
	reused, err := w.d.reused(id)
	return backendTotals{packets: reused.PacketCount, bytes: reused.ByteCount}, err
}

// reused returns what the connections of a backend carried whose entries others have
// taken over since.
func (d *DataPlane) reused(id uint32) (kernelTraffic, error) {
	var t kernelBackendTotal
	if err := d.maps[kernelMapLlBackendTotal].Lookup(id, &t); err != nil {
		return kernelTraffic{}, fmt.Errorf("totals of backend %d: %w", id, err)
	}
	return kernelTraffic(t.Reused), nil
}

// count adds an entry of a connection to the sums of existing connections.
func (p *pass) count(m *kernelCtMeta) {
	p.seen[p.table]++
	if m.Nexthop < nexthopCount {
		p.used[m.Nexthop] = true
	}
	p.nat.carry(p.nat.live, m)
	t := totalsOf(p.live, m.BackendId)
	t.packets += m.PacketCount
	t.bytes += m.ByteCount
	if isActive(m) {
		t.active++
	}
}

// isActive reports whether an entry stands for a connection that its backend still serves.
func isActive(m *kernelCtMeta) bool {
	return m.Flags&ctReply == 0 && kernelCtState(m.State) < kernelCtStateCT_TIME_WAIT
}

// close enters a connection's direction that is deleted: it moves from what there is to what
// has ended. The sums of both are right, though what it carried since it was counted makes the
// first less than it is.
func (p *pass) close(m *kernelCtMeta) {
	p.nat.drop(m)
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
