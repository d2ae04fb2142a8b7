// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// traffic is the traffic of a backend's connections, and how many of them it still serves.
// Connections without a service are counted for backend 0.
type traffic struct{ active, packets, bytes uint64 }

func trafficOf(m map[uint32]*traffic, id uint32) *traffic {
	t := m[id]
	if t == nil {
		t = new(traffic)
		m[id] = t
	}
	return t
}

// count adds the traffic of an entry to the totals of live connections.
func (p *Pass) count(m *kernel.CtMeta) {
	t := trafficOf(p.live, m.BackendId)
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

// close moves the traffic of a deleted direction from the live to the closed totals. The sum of the
// two totals is exact; the live total is too low by the traffic since the entry was counted.
func (p *Pass) close(m *kernel.CtMeta) {
	live, closed := trafficOf(p.live, m.BackendId), trafficOf(p.closed, m.BackendId)
	live.packets -= m.PacketCount
	live.bytes -= m.ByteCount
	closed.packets += m.PacketCount
	closed.bytes += m.ByteCount
	if isActive(m) && live.active > 0 {
		live.active--
	}
}

// isUsed reports whether a backend has connections that it still serves, or traffic that is not in
// a table yet.
func (p *Pass) isUsed(id uint32) bool {
	t := p.live[id]
	return t != nil && t.active > 0 || p.closed[id] != nil
}

// addClosed adds the traffic of ended connections to the totals of their backends. What could not
// be added stays for the next pass.
func (s *Table) addClosed() (err error) {
	for id, c := range s.closed {
		if e := s.addTraffic(id, c); e != nil {
			err = errors.Join(err, fmt.Errorf("totals of backend %d: %w", id, e))
			continue
		}
		delete(s.closed, id)
	}
	return err
}

func (s *Table) addTraffic(id uint32, c *traffic) error {
	var t kernel.Traffic
	err := s.tables.BackendTraffic.Lookup(id, &t)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil // an id of an earlier run with a larger table
	}
	if err != nil {
		return err
	}
	t.PacketCount += c.packets
	t.ByteCount += c.bytes
	return s.tables.BackendTraffic.Replace(id, t)
}

// writeLoads sets the number of connections of each backend, which the programs only increase. A
// failed write is repeated after the next pass.
func (s *Table) writeLoads(now map[uint32]traffic) (err error) {
	for id := range now {
		s.loaded[id] = true
	}
	for id := range s.loaded {
		e := s.tables.BackendLoad.Replace(id, uint32(now[id].active))
		if errors.Is(e, ebpf.ErrKeyNotExist) {
			delete(s.loaded, id) // an id of an earlier run with a larger table
			continue
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("load of backend %d: %w", id, e))
			continue
		}
		if _, ok := now[id]; !ok {
			delete(s.loaded, id)
		}
	}
	return err
}

// adoptLoads records the backends to which the earlier run, or a program since, counted
// connections.
func (s *Table) adoptLoads() error {
	return s.tables.BackendLoad.Batches(func(ids []uint32, loads []uint32) error {
		for i, id := range ids {
			if loads[i] != 0 {
				s.loaded[id] = true
			}
		}
		return nil
	})
}

// Traffic returns the number of a backend's connections as of the last pass, and the traffic of all
// connections that the backend has had until then.
func (s *Table) Traffic(id uint32) (active uint64, t kernel.Traffic, err error) {
	s.liveMu.Lock()
	live, ok := s.live[id]
	s.liveMu.Unlock()
	if !ok {
		reused, err := s.reused(id)
		if err != nil {
			return 0, t, err
		}
		live.packets, live.bytes = reused.PacketCount, reused.ByteCount
	}
	if err := s.tables.BackendTraffic.Lookup(id, &t); err != nil {
		return 0, t, fmt.Errorf("totals of backend %d: %w", id, err)
	}
	t.PacketCount += live.packets
	t.ByteCount += live.bytes
	return live.active, t, nil
}

// reused returns the traffic of a backend's connections whose entries have since been reused for
// other connections.
func (s *Table) reused(id uint32) (kernel.Traffic, error) {
	var total kernel.BackendTotal
	if err := s.tables.BackendTotal.Lookup(id, &total); err != nil {
		return kernel.Traffic{}, fmt.Errorf("totals of backend %d: %w", id, err)
	}
	return kernel.Traffic(total.Reused), nil
}
