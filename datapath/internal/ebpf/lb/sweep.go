// SPDX-License-Identifier: Apache-2.0

package lb

import "github.com/loxilight/loxilight/datapath"

// IdleTimes returns the idle times of the services by id, and the dead backends: for all protocols
// (true), or only for UDP. A service that this run has not written yet has the zero value.
func (s *Table) IdleTimes() (times map[uint32]datapath.IdleTimeout, dead map[uint32]bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	times = make(map[uint32]datapath.IdleTimeout, len(s.byID))
	for id, v := range s.byID {
		times[id] = datapath.IdleTimeout{}
		if v.current {
			times[id] = v.value.IdleTimeout
		}
	}
	dead = make(map[uint32]bool, len(s.backends.dead))
	for id, b := range s.backends.dead {
		dead[id] = b.gone
	}
	return times, dead
}

// StillDead removes from dead the backends that are alive again.
func (s *Table) StillDead(dead map[uint32]bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id := range dead {
		if _, ok := s.backends.dead[id]; !ok {
			delete(dead, id)
		}
	}
}

// PassEnded handles the end of the complete sweep number pass. live reports whether the sweep found
// live connections of a backend.
func (s *Table) PassEnded(pass uint64, live func(id uint32) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handedOver(pass)
	return s.freeDead(pass, live)
}
