// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"maps"

	"github.com/loxilight/loxilight/datapath"
)

// takes records that frontend f now belongs to v. UDP connections through f to another service must
// move to v, because their clients may never stop sending; the next sweep ends these connections.
// s.mu is held.
func (s *Table) takes(v *service, f datapath.Frontend) {
	before := s.owner[f]
	s.owner[f] = v
	if before == v || f.Protocol != datapath.UDP {
		return
	}
	s.taken[f] = s.sweep.NextPass()
	if before != nil {
		s.sweep.Kick()
	}
}

// Taken returns the frontends whose connections a pass must check.
func (s *Table) Taken() map[datapath.Frontend]uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.taken)
}

// handedOver removes the frontends that a complete sweep has checked; pass is the number of that
// sweep. s.mu is held.
func (s *Table) handedOver(pass uint64) {
	maps.DeleteFunc(s.taken, func(_ datapath.Frontend, first uint64) bool { return pass >= first })
}

// Keeps reports whether connections through f to the given service and backend may stay: f still
// leads to that service or backend, or has no owner.
func (s *Table) Keeps(f datapath.Frontend, service uint32, backend datapath.BackendAddr) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v := s.owner[f]
	if v == nil || s.has(v, service, backend) {
		return true
	}
	for name := range targetsOf(v.diverts) {
		if other := s.byName[name]; other != nil && s.has(other, service, backend) {
			return true
		}
	}
	return false
}

// has reports whether v is the service with the given id, or has a backend at addr that keeps its
// UDP connections.
func (s *Table) has(v *service, service uint32, addr datapath.BackendAddr) bool {
	if v.id == service {
		return true
	}
	i, ok := findBackend(v.backends, addr)
	if !ok {
		return false
	}
	_, dead := s.backends.dead[v.backends[i].id]
	return !dead
}
