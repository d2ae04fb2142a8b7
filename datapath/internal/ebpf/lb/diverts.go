// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// divert is one entry of ll_divert: a prefix of clients that another service serves.
type divert struct {
	prefix  netip.Prefix
	service uint32 // id of the other service
	name    datapath.ServiceName
}

func compareDiverts(a, b divert) int {
	return cmp.Or(a.prefix.Compare(b.prefix), cmp.Compare(a.service, b.service), cmp.Compare(a.name, b.name))
}

func prefixesOf(list []divert) (prefixes []netip.Prefix) {
	for _, d := range list {
		prefixes = append(prefixes, d.prefix)
	}
	return prefixes
}

// oldDiverts returns a set of diverts to be deleted.
func oldDiverts(set uint32, list []divert) oldTable {
	return oldTable{divertSet: set, ranges: prefixesOf(list), targets: targetsOf(list)}
}

func (d divert) entry() kernel.Divert {
	return kernel.Divert{ServiceId: d.service, Family: uint32(rangeFamily(d.prefix))}
}

// writeDiverts writes which clients are served by which other services, under a new set id, if that
// has changed. A service that does not exist yet gets its id here; until it exists, v serves its
// clients.
func (s *Table) writeDiverts(v *service, diverts []datapath.Divert) error {
	var wanted []divert
	for _, d := range diverts {
		other, err := s.named(d.Service)
		if err != nil {
			return err
		}
		for _, p := range d.Sources {
			wanted = append(wanted, divert{p, other.id, d.Service})
		}
	}
	slices.SortFunc(wanted, compareDiverts)
	if !v.suspect && slices.Equal(v.diverts, wanted) {
		return nil
	}
	set := uint32(0)
	if len(wanted) > 0 {
		set = s.newID()
	}
	for i, d := range wanted {
		key, entry := kernel.SourceRangeKeyOf(set, d.prefix), d.entry()
		if err := s.tables.Divert.Put(key, entry); err != nil {
			s.discard(oldTable{divertSet: set, ranges: prefixesOf(wanted[:i+1])})
			return kernel.TableError("ranges", err)
		}
	}
	v.strays(oldDiverts(v.divertSet, v.diverts))
	v.diverts, v.divertSet = wanted, set
	for name := range targetsOf(wanted) {
		s.diverted[name]++
	}
	var errs error
	for name := range targetsOf(wanted) {
		if other := s.byName[name]; other.current || len(other.frontends) > 0 {
			errs = errors.Join(errs, s.writeByID(other, other.entries))
		}
	}
	v.suspect = v.suspect || errs != nil
	return errs
}

func targetsOf(list []divert) map[datapath.ServiceName]bool {
	names := make(map[datapath.ServiceName]bool)
	for _, d := range list {
		names[d.name] = true
	}
	return names
}

// undivert records that the frontends of one service have stopped diverting to the services in
// names.
func (s *Table) undivert(names map[datapath.ServiceName]bool) {
	for name := range names {
		if s.diverted[name]--; s.diverted[name] > 0 {
			continue
		}
		delete(s.diverted, name)
		if other := s.byName[name]; other != nil {
			s.putAside(oldTable{byID: other.id})
		}
	}
}

// forgetDiverts deletes the entries under the id of v, a service that is being deleted, and then
// the diverts of v.
func (s *Table) forgetDiverts(v *service) error {
	if err := s.deleteByID(v.id); err != nil {
		return err
	}
	v.strays(oldDiverts(v.divertSet, v.diverts))
	v.diverts, v.divertSet = nil, 0
	return nil
}

var divertFamilies = [2]uint32{4, 6}

// writeByID writes the entries of a service under its id, for services that divert clients to it.
func (s *Table) writeByID(v *service, entries [2]kernel.Service) error {
	if s.diverted[v.name] == 0 {
		return nil
	}
	for f := range entries {
		if entries[f].Id == 0 {
			continue // not written by this run yet: an entry that exists is better
		}
		key := kernel.ServiceIdKey{Id: v.id, Family: divertFamilies[f]}
		if err := s.tables.ServiceId.Put(key, entries[f]); err != nil {
			v.suspect = true // the next update writes everything
			return kernel.TableError("services", err)
		}
	}
	return nil
}

func (s *Table) deleteByID(id uint32) error {
	var errs error
	for _, family := range divertFamilies {
		key := kernel.ServiceIdKey{Id: id, Family: family}
		errs = errors.Join(errs, s.tables.ServiceId.Delete(key))
	}
	return errs
}

// adoptDiverts takes over the diverts of an earlier run.
func (s *Table) adoptDiverts() error {
	sets := make(map[uint32][]divert)
	var key kernel.SourceRangeKey
	var entry kernel.Divert
	it := s.tables.Divert.Iterate()
	for it.Next(&key, &entry) {
		d := divert{prefix: key.Prefix(), service: entry.ServiceId}
		if other := s.byID[entry.ServiceId]; other != nil {
			d.name = other.name
		}
		sets[key.SetId] = append(sets[key.SetId], d)
		s.lastID = max(s.lastID, key.SetId, entry.ServiceId)
	}
	if err := it.Err(); err != nil {
		return err
	}
	for _, v := range s.byID {
		v.diverts = sets[v.divertSet] // 0: no set
		slices.SortFunc(v.diverts, compareDiverts)
		delete(sets, v.divertSet)
		for i := range v.stray {
			if set := v.stray[i].divertSet; set != 0 {
				v.stray[i] = oldDiverts(set, sets[set])
				delete(sets, set)
			}
			for name := range v.stray[i].targets {
				s.diverted[name]++
			}
		}
		for name := range targetsOf(v.diverts) {
			s.diverted[name]++
		}
	}
	for set, list := range sets {
		s.putAside(oldTable{divertSet: set, ranges: prefixesOf(list)})
	}
	return s.adoptByID()
}

// adoptByID removes the by-id entries of services to which no other service diverts.
func (s *Table) adoptByID() error {
	var left []kernel.ServiceIdKey
	err := s.tables.ServiceId.Batches(func(keys []kernel.ServiceIdKey, _ []kernel.Service) error {
		for _, key := range keys {
			if v := s.byID[key.Id]; v == nil || s.diverted[v.name] == 0 {
				left = append(left, key)
			}
		}
		return nil
	})
	for _, key := range left {
		err = errors.Join(err, s.tables.ServiceId.Delete(key))
	}
	return err
}

// verifyDiverts reports whether the kernel holds the diverts of v as written, and the entries of v
// for services that divert to it.
func (s *Table) verifyDiverts(v *service) (bool, error) {
	for _, d := range v.diverts {
		key := kernel.SourceRangeKeyOf(v.divertSet, d.prefix)
		var entry kernel.Divert
		if ok, err := s.tables.Divert.Find(key, &entry); !ok || entry != d.entry() {
			return false, err
		}
		if other := s.byName[d.name]; other == nil || other.id != d.service {
			return false, nil
		}
	}
	if s.diverted[v.name] == 0 {
		return true, nil
	}
	for f := range v.entries {
		key := kernel.ServiceIdKey{Id: v.id, Family: divertFamilies[f]}
		var entry kernel.Service
		if ok, err := s.tables.ServiceId.Find(key, &entry); !ok || entry != v.entries[f] {
			return false, err
		}
	}
	return true, nil
}
