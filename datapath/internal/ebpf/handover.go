// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"maps"

	"github.com/loxilight/loxilight/datapath"
)

// takes notes that v is given frontend f: what came by it to another service is to go to v,
// if it is UDP, whose client may never stop. The next sweep sees to that. s.mu is held.
func (s *services) takes(v *service, f datapath.Frontend) {
	before := s.owner[f]
	s.owner[f] = v
	if before == v || f.Protocol != datapath.UDP {
		return
	}
	s.taken[f] = s.d.sweeper.nextPass()
	if before != nil {
		s.d.sweeper.kick()
	}
}

// forHandover returns the frontends whose connections a pass is to look at.
func (s *services) forHandover() map[datapath.Frontend]uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.taken)
}

// handedOver forgets those that sweep number pass, whole, has looked at. s.mu is held.
func (s *services) handedOver(pass uint64) {
	maps.DeleteFunc(s.taken, func(_ datapath.Frontend, first uint64) bool { return pass >= first })
}

// keeps says whether connections by f to a backend of service may stay: f leads to that
// service, or that server, still, or to nobody.
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

// has says whether v is the service with id service, or has a backend at that address that
// keeps its UDP.
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

// isTaken says whether a direction is of a connection of UDP by a frontend that another
// service has now: comes is the tuple that it comes in with, back that of the other one.
func (p *pass) isTaken(s *services, m *kernelCtMeta, comes, back datapath.Tuple) bool {
	if m.Flags&ctReply != 0 {
		comes, back = back, comes
	}
	f := datapath.Frontend{Addr: comes.Destination, Protocol: datapath.UDP}
	_, taken := p.taken[f]
	return taken && !s.keeps(f, m.ServiceId, back.Source)
}
