// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// IdleTimes returns the idle times of the services by id. A service that has not been written since
// the daemon started has the zero value.
func (s *Table) IdleTimes() map[uint32]datapath.IdleTimeout {
	s.mu.RLock()
	defer s.mu.RUnlock()
	times := make(map[uint32]datapath.IdleTimeout, len(s.byID))
	for id, v := range s.byID {
		times[id] = datapath.IdleTimeout{}
		if v.current {
			times[id] = v.value.IdleTimeout
		}
	}
	return times
}

// Pass is the services' part in a pass over all connections: it ends connections to dead backends,
// and UDP connections through frontends that now belong to other services, and adds up the traffic
// of backends.
type Pass struct {
	table  *Table
	number uint64
	dead   map[uint32]bool // backends whose connections end: all (true), or only UDP
	taken  map[datapath.Frontend]uint64
	live   map[uint32]*traffic // of the entries seen
	closed map[uint32]*traffic // of deleted connections, not in a table yet
}

// PassBegins implements [conn.Judge].
func (s *Table) PassBegins(number uint64) conn.Part {
	return &Pass{table: s, number: number, dead: s.Dead(), taken: s.Taken(), live: make(map[uint32]*traffic), closed: s.closed}
}

// Dead returns the backends whose connections end: for all protocols (true), or only for UDP.
func (s *Table) Dead() map[uint32]bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	dead := make(map[uint32]bool, len(s.backends.dead))
	for id, b := range s.backends.dead {
		dead[id] = b.gone
	}
	return dead
}

// Resumed implements [conn.Part]: backends may be alive again.
func (p *Pass) Resumed() {
	p.table.mu.RLock()
	defer p.table.mu.RUnlock()
	for id := range p.dead {
		if _, ok := p.table.backends.dead[id]; !ok {
			delete(p.dead, id)
		}
	}
}

// Seen implements [conn.Part].
func (p *Pass) Seen(e conn.Entry) { p.count(e.Meta()) }

// Ends implements [conn.Part].
func (p *Pass) Ends(e conn.Entry) bool {
	m, isUDP := e.Meta(), e.Protocol() == datapath.UDP
	if gone, dead := p.dead[m.BackendId]; gone || dead && isUDP {
		return true
	}
	return len(p.taken) > 0 && isUDP && m.Flags&kernel.CtService != 0 && p.isTaken(e)
}

// isTaken reports whether the UDP connection of an entry came through a frontend that now belongs
// to another service.
func (p *Pass) isTaken(e conn.Entry) bool {
	m := e.Meta()
	comes, leaves := e.Tuples()
	frontend, backend := comes.Destination, leaves.Destination
	if m.Flags&kernel.CtReply != 0 {
		frontend, backend = leaves.Source, comes.Source
	}
	f := datapath.Frontend{Addr: frontend, Protocol: datapath.UDP}
	_, taken := p.taken[f]
	return taken && !p.table.Keeps(f, p.table.ServiceOf(m.BackendId), backend)
}

// Deleted implements [conn.Part].
func (p *Pass) Deleted(e conn.Entry) { p.close(e.Meta()) }

// PassEnded implements [conn.Part].
func (p *Pass) PassEnded() error {
	s := p.table
	err := s.addClosed()
	totals := make(map[uint32]traffic, len(p.live))
	for id, t := range p.live {
		reused, failed := s.reused(id)
		err = errors.Join(err, failed)
		totals[id] = traffic{active: t.active, packets: t.packets + reused.PacketCount, bytes: t.bytes + reused.ByteCount}
	}
	s.liveMu.Lock()
	s.live = totals
	s.liveMu.Unlock()
	return errors.Join(err, s.writeLoads(totals), s.passEnded(p.number, p.isUsed))
}

// passEnded frees whatever was waiting for a complete pass; number is the number of that pass. used
// reports whether a backend is still used.
func (s *Table) passEnded(number uint64, used func(id uint32) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handedOver(number)
	return s.freeDead(number, used)
}
