// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"maps"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// takes records that frontend f now belongs to v. UDP connections by f to another service are to
// move to v, since their clients may never stop; the next sweep ends them. s.mu is held.
func (s *services) takes(v *service, f datapath.Frontend) {
	before := s.owner[f]
	s.owner[f] = v
	if before == v || f.Protocol != datapath.UDP {
		return
	}
	s.taken[f] = s.sweep.nextPass()
	if before != nil {
		s.sweep.kick()
	}
}

// forHandover returns the frontends whose connections a pass has to check.
func (s *services) forHandover() map[datapath.Frontend]uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.taken)
}

// handedOver removes the frontends that sweep number pass, a whole one, has checked. s.mu is held.
func (s *services) handedOver(pass uint64) {
	maps.DeleteFunc(s.taken, func(_ datapath.Frontend, first uint64) bool { return pass >= first })
}

// keeps reports whether connections by f to a backend of service may stay: f still leads to that
// service or server, or has no owner.
func (s *services) keeps(f datapath.Frontend, service uint32, backend datapath.BackendAddr) bool {
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

// has reports whether v is the service with id service, or has a backend at addr that keeps its UDP
// connections.
func (s *services) has(v *service, service uint32, addr datapath.BackendAddr) bool {
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

// isTaken reports whether a direction belongs to a UDP connection by a frontend that another
// service has now. comes is the tuple of its packets, back the tuple of the other direction.
func (p *pass) isTaken(s *services, m *kernel.CtMeta, comes, back datapath.Tuple) bool {
	if m.Flags&kernel.CtReply != 0 {
		comes, back = back, comes
	}
	f := datapath.Frontend{Addr: comes.Destination, Protocol: datapath.UDP}
	_, taken := p.taken[f]
	return taken && !s.keeps(f, m.ServiceId, back.Source)
}
