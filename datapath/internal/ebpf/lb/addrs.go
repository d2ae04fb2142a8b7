// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// The flags of ll_service_addr.
var otherPorts = [...]uint32{
	datapath.OtherPortsPass: 0, datapath.OtherPortsReject: kernel.ServiceAddrReject, datapath.OtherPortsDrop: kernel.ServiceAddrDrop,
}

// addrUse is what a service configures for the addresses of its frontends.
type addrUse struct {
	other    datapath.OtherPorts
	announce bool
}

// serviceAddrs contains the frontend addresses for which services configure something, those
// services, and the entries in the kernel.
type serviceAddrs struct {
	users   map[netip.Addr]map[datapath.ServiceName]addrUse
	byName  map[datapath.ServiceName]map[netip.Addr]bool
	written map[netip.Addr]datapath.OtherPorts
	// Addresses whose entry must be written, or is unknown because a write failed, with the service
	// that writes it.
	failed map[netip.Addr]datapath.ServiceName
}

func newServiceAddrs() serviceAddrs {
	return serviceAddrs{
		users: make(map[netip.Addr]map[datapath.ServiceName]addrUse), byName: make(map[datapath.ServiceName]map[netip.Addr]bool),
		written: make(map[netip.Addr]datapath.OtherPorts), failed: make(map[netip.Addr]datapath.ServiceName),
	}
}

// take replaces what a service configures for addresses, and returns the changed addresses.
func (a *serviceAddrs) take(name datapath.ServiceName, addrs map[netip.Addr]bool, use addrUse) (changed []netip.Addr) {
	if use == (addrUse{}) {
		addrs = nil
	}
	for addr := range a.byName[name] {
		if !addrs[addr] {
			if delete(a.users[addr], name); len(a.users[addr]) == 0 {
				delete(a.users, addr)
			}
			changed = append(changed, addr)
		}
	}
	for addr := range addrs {
		if a.users[addr][name] == use {
			continue
		}
		if a.users[addr] == nil {
			a.users[addr] = make(map[datapath.ServiceName]addrUse)
		}
		a.users[addr][name] = use
		changed = append(changed, addr)
	}
	if delete(a.byName, name); len(addrs) > 0 {
		a.byName[name] = addrs
	}
	return changed
}

// of returns the setting for an address: the strictest that any service configures.
func (a *serviceAddrs) of(addr netip.Addr) (use addrUse) {
	for _, u := range a.users[addr] {
		use.other = max(use.other, u.other)
		use.announce = use.announce || u.announce
	}
	return use
}

// announced returns the addresses to be announced.
func (a *serviceAddrs) announced() (list []netip.Addr) {
	for addr := range a.users {
		if a.of(addr).announce {
			list = append(list, addr)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

func frontendAddrs(frontends []datapath.Frontend) map[netip.Addr]bool {
	addrs := make(map[netip.Addr]bool)
	for _, f := range frontends {
		addrs[f.Addr.Addr()] = true
	}
	return addrs
}

// pending returns the addresses to write because of a service, those without a setting first: their
// entries are deleted, which makes room for the others.
func (a *serviceAddrs) pending(name datapath.ServiceName) (list []netip.Addr) {
	for addr, by := range a.failed {
		if by == name {
			list = append(list, addr)
		}
	}
	slices.SortFunc(list, func(x, y netip.Addr) int {
		return cmp.Or(cmp.Compare(min(a.of(x).other, 1), min(a.of(y).other, 1)), x.Compare(y))
	})
	return list
}

// writeAddrs applies the settings of v to the addresses of its frontends.
func (s *Table) writeAddrs(v *service, value *datapath.Service) error {
	before := make(map[netip.Addr]bool)
	for addr := range s.addrs.byName[v.name] {
		before[addr] = s.addrs.of(addr).announce
	}
	changed := s.addrs.take(v.name, frontendAddrs(value.Frontends), addrUse{value.OtherPorts, value.Announce})
	announce := false
	for _, addr := range changed {
		announce = announce || before[addr] != s.addrs.of(addr).announce
	}
	for _, addr := range changed {
		s.addrs.failed[addr] = v.name
	}
	if v.suspect || !v.current { // an earlier run may have failed to write one of the entries
		for addr := range s.addrs.byName[v.name] {
			if s.addrs.failed[addr] = v.name; v.suspect {
				delete(s.addrs.written, addr)
			}
		}
	}
	var errs error
	for _, addr := range s.addrs.pending(v.name) {
		errs = errors.Join(errs, s.writeAddr(addr))
	}
	if announce {
		errs = errors.Join(errs, s.announcer.Announce(s.addrs.announced()))
	}
	v.suspect = v.suspect || errs != nil
	return errs
}

// writeAddr writes how packets to addr that match no service are handled.
func (s *Table) writeAddr(addr netip.Addr) error {
	other, key := s.addrs.of(addr).other, kernel.AddrOf(addr)
	if s.addrs.written[addr] == other && other != datapath.OtherPortsPass {
		delete(s.addrs.failed, addr)
		return nil
	}
	delete(s.addrs.written, addr)
	if other == datapath.OtherPortsPass {
		if err := s.tables.ServiceAddr.Delete(key); err != nil {
			return err
		}
	} else {
		if err := s.tables.ServiceAddr.Put(key, otherPorts[other]); err != nil {
			return kernel.TableError("services", err)
		}
		s.addrs.written[addr] = other
	}
	delete(s.addrs.failed, addr)
	return nil
}

// adoptAddrs takes over the settings from an earlier run: an address keeps the setting in force
// until its service is updated.
func (s *Table) adoptAddrs() error {
	err := s.tables.ServiceAddr.Batches(func(keys []kernel.Addr, values []uint32) error {
		for i := range keys {
			s.addrs.written[keys[i].Addr()] = datapath.OtherPorts(max(0, slices.Index(otherPorts[:], values[i])))
		}
		return nil
	})
	if err != nil {
		return err
	}
	announced := s.announcer.Announced()
	for _, v := range s.byID {
		addrs := make(map[netip.Addr]bool)
		var use addrUse
		for addr := range frontendAddrs(v.frontends) {
			other, known := s.addrs.written[addr]
			if known || announced[addr] {
				addrs[addr] = true
				use = addrUse{max(use.other, other), use.announce || announced[addr]}
			}
		}
		s.addrs.take(v.name, addrs, use)
	}
	for addr := range maps.Clone(s.addrs.written) {
		if s.addrs.users[addr] == nil {
			err = errors.Join(err, s.writeAddr(addr))
		}
	}
	s.announcer.Seed(s.addrs.announced())
	return err
}

// verifyAddrs reports whether the kernel holds the addresses of v as written.
func (s *Table) verifyAddrs(v *service) (bool, error) {
	for addr := range s.addrs.byName[v.name] {
		other, written := s.addrs.written[addr]
		key := kernel.AddrOf(addr)
		var have uint32
		if ok, err := s.tables.ServiceAddr.Find(key, &have); err != nil || ok != written || have != otherPorts[other] {
			return false, err
		}
	}
	return true, nil
}
