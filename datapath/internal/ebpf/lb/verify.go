// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"context"
	"iter"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Verify implements [datapath.Table].
func (s *Table) Verify(_ context.Context, name datapath.ServiceName) (bool, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v := s.byName[name]
	if v == nil || !v.current || v.suspect {
		return false, nil
	}
	ok, err := s.verify(v)
	if !ok {
		v.suspect = true
	}
	return ok, err
}

func (s *Table) verify(v *service) (bool, error) {
	for _, f := range v.frontends {
		if s.owner[f] != v {
			continue // it now belongs to another service, whose entry is correct
		}
		key := kernel.ServiceKeyOf(f)
		var entry kernel.Service
		if ok, err := s.tables.Service.Find(key, &entry); !ok || entry != v.entries[kernel.FamilyOf(f.Addr.Addr())] {
			return false, err
		}
	}
	if hidden, err := s.tables.RestoreBackends(v.backendIDs()); hidden || err != nil {
		return false, err
	}
	for _, b := range v.backends {
		var entry kernel.Backend
		if ok, err := s.tables.Backend.Find(b.id, &entry); !ok ||
			entry.BackendAddr() != b.addr || entry.ServiceId != v.id || entry.Flags != b.flags || entry.Weight != uint32(b.weight) {
			return false, err
		}
	}
	for _, p := range v.ranges {
		key := kernel.SourceRangeKeyOf(v.rangeSet, p)
		var f uint8
		if ok, err := s.tables.SourceRange.Find(key, &f); !ok || f != rangeFamily(p) {
			return false, err
		}
	}
	for _, verify := range []func(*service) (bool, error){s.verifyDiverts, s.verifyAddrs} {
		if ok, err := verify(v); !ok || err != nil {
			return false, err
		}
	}
	for _, t := range v.tables {
		if t.count == 0 {
			continue
		}
		if sum, err := s.readTable(t); err != nil || sum != t.sum {
			return false, err
		}
	}
	return true, nil
}

// backendIDs returns the ids of the backends.
func (v *service) backendIDs() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, b := range v.backends {
			if !yield(b.id) {
				return
			}
		}
	}
}
