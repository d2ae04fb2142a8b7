// SPDX-License-Identifier: Apache-2.0

package lb

import "github.com/loxilight/loxilight/datapath"

// Info identifies a service and its backends in the tables.
type Info struct {
	Name     datapath.ServiceName
	ID       uint32
	Backends []BackendInfo
}

// BackendInfo identifies a backend in the tables.
type BackendInfo struct {
	ID   uint32
	Addr datapath.BackendAddr
}

func (v *service) info() Info {
	i := Info{Name: v.name, ID: v.id, Backends: make([]BackendInfo, len(v.backends))}
	for n, b := range v.backends {
		i.Backends[n] = BackendInfo{b.id, b.addr}
	}
	return i
}

// All returns all services, in no particular order.
func (s *Table) All() []Info {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]Info, 0, len(s.byName))
	for _, v := range s.byName {
		all = append(all, v.info())
	}
	return all
}

// Get returns the service called name, and false if it does not exist.
func (s *Table) Get(name datapath.ServiceName) (Info, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v := s.byName[name]
	if v == nil {
		return Info{}, false
	}
	return v.info(), true
}

// Name returns the name of the service with this id, or "".
func (s *Table) Name(id uint32) datapath.ServiceName {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if v := s.byID[id]; v != nil {
		return v.name
	}
	return ""
}

// FrontendPorts returns the ports of all frontends.
func (s *Table) FrontendPorts() []uint16 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	ports := make([]uint16, 0, len(s.owner))
	for f := range s.owner {
		ports = append(ports, f.Addr.Port())
	}
	return ports
}

// HasFrontends reports whether any service has a frontend.
func (s *Table) HasFrontends() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.owner) > 0
}

// Usage adds to u how full the service tables are. t contains their sizes.
func (s *Table) Usage(u map[string]datapath.Usage, t datapath.Tables) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var ranges, backends uint64
	for _, v := range s.byName {
		ranges += uint64(len(v.ranges))
		backends += uint64(len(v.backends))
	}
	u["services"] = datapath.Usage{Used: uint64(len(s.owner)), Size: uint64(t.Services)}
	u["backends"] = datapath.Usage{Used: backends, Size: uint64(t.Backends)}
	u["ranges"] = datapath.Usage{Used: ranges, Size: uint64(t.Ranges)}
}
