// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Adopt takes over the services that an earlier run wrote. Call [Table.Start] before the first
// update.
func Adopt(t *kernel.Tables, a Announcer, targets Targets, log *slog.Logger) (*Table, error) {
	s := &Table{
		tables:    t,
		log:       log,
		announcer: a,
		targets:   targets,
		backends:  newBackendIDs(t),
		byName:    make(map[datapath.ServiceName]*service),
		byID:      make(map[uint32]*service),
		owner:     make(map[datapath.Frontend]*service),
		taken:     make(map[datapath.Frontend]uint64),
		diverted:  make(map[datapath.ServiceName]int),
		addrs:     newServiceAddrs(),
		closed:    make(map[uint32]*traffic),
		loaded:    make(map[uint32]bool),
	}
	for _, adopt := range []func() error{s.adoptNames, s.adoptFrontends, s.adoptBackends, s.adoptLoads, s.adoptTables, s.adoptRanges, s.adoptDiverts, s.adoptAddrs} {
		if err := adopt(); err != nil {
			return nil, fmt.Errorf("take over the services of an earlier run: %w", err)
		}
	}
	return s, nil
}

// Start sets the sweep that ends connections, and the function that is called after each update.
func (s *Table) Start(sweep Sweep, changedFrontends func()) {
	s.sweep, s.changedFrontends = sweep, changedFrontends
}

func (s *Table) adoptNames() error {
	var left []uint32
	err := s.tables.ServiceName.Batches(func(ids []uint32, names []kernel.ServiceName) error {
		for i, id := range ids {
			v := &service{name: names[i].Text(), id: id}
			s.lastID = max(s.lastID, id)
			// Of two entries with the same name, the newer is in use: the other is from a failed
			// update.
			if twin := s.byName[v.name]; twin != nil {
				left = append(left, min(twin.id, id))
				if twin.id > id {
					continue
				}
				delete(s.byID, twin.id)
			}
			s.byName[v.name], s.byID[id] = v, v
		}
		return nil
	})
	for _, id := range left {
		err = errors.Join(err, s.deleteID(id))
	}
	for id := range s.byID {
		err = errors.Join(err, s.adoptStats(id))
	}
	return err
}

// adoptStats creates the counters of a service, if an earlier run ended after it had written the
// name.
func (s *Table) adoptStats(id uint32) error {
	var stats []kernel.ServiceStats
	if ok, err := s.tables.ServiceStats.Find(id, &stats); ok || err != nil {
		return err
	}
	return s.zeroStats(id)
}

func (s *Table) adoptFrontends() error {
	var unnamed []kernel.ServiceKey
	referred := make(map[*service][]kernel.Service)
	err := s.tables.Service.Batches(func(keys []kernel.ServiceKey, entries []kernel.Service) error {
		for i, key := range keys {
			v, e := s.byID[entries[i].Id], entries[i]
			if v == nil {
				unnamed = append(unnamed, key)
				continue
			}
			f := key.Frontend()
			fam := kernel.FamilyOf(f.Addr.Addr())
			v.frontends = append(v.frontends, f)
			s.owner[f] = v
			// A run that ended between writing two frontends of a service left them with different
			// entries.
			if last := v.entries[fam]; last.Id != 0 && last != e {
				v.mixed = true
			}
			referred[v] = append(referred[v], e)
			v.divertSet = e.DivertSetId
			v.entries[fam] = e
			v.tables[fam] = table{id: e.TableId, count: e.SlotCount, members: e.MemberCount, source: e.TableSource}
			v.rangeSet = e.RangeSetId
			s.lastID = max(s.lastID, e.TableId, e.RangeSetId, e.DivertSetId)
		}
		return nil
	})
	// A run that ended between writing an entry by id and the frontends left different ones.
	err = errors.Join(err, s.tables.ServiceId.Batches(func(_ []kernel.ServiceIdKey, entries []kernel.Service) error {
		for _, e := range entries {
			if v := s.byID[e.Id]; v != nil {
				referred[v] = append(referred[v], e)
				s.lastID = max(s.lastID, e.TableId, e.RangeSetId, e.DivertSetId)
			}
		}
		return nil
	}))
	for v, entries := range referred {
		v.adoptStrays(entries)
	}
	for _, key := range unnamed {
		err = errors.Join(err, s.tables.Service.Delete(key))
	}
	return err
}

// adoptStrays records the tables and sets to which entries of v refer, except the current ones of
// v.
func (v *service) adoptStrays(entries []kernel.Service) {
	noted := map[uint32]bool{0: true, v.tables[0].id: true, v.tables[1].id: true, v.rangeSet: true, v.divertSet: true}
	for i := range entries {
		e := &entries[i]
		if !noted[e.TableId] {
			v.strays(oldTable{table: table{id: e.TableId, count: e.SlotCount, members: e.MemberCount}})
		}
		if !noted[e.RangeSetId] {
			v.strays(oldTable{rangeSet: e.RangeSetId})
		}
		if !noted[e.DivertSetId] {
			v.strays(oldTable{divertSet: e.DivertSetId})
		}
		noted[e.TableId], noted[e.RangeSetId], noted[e.DivertSetId] = true, true, true // ids are unique across all
	}
}

func (s *Table) adoptBackends() error {
	var used []bool // by id
	err := s.tables.Backend.Batches(func(ids []uint32, entries []kernel.Backend) error {
		for i, id := range ids {
			e := &entries[i]
			if e.ServiceId == 0 || id == 0 {
				continue
			}
			used = append(used, make([]bool, int(id)+1-len(used))...) // ids are in ascending order
			used[id] = true
			s.lastID = max(s.lastID, e.ServiceId) // perhaps of a deleted service
			s.adoptBackend(id, e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, v := range s.byID {
		slices.SortFunc(v.backends, compareBackends)
		for _, b := range v.backends {
			err = errors.Join(err, s.targets.Add(b.addr.Port()))
		}
	}
	if err != nil {
		return err
	}
	// An id that was once in use has non-zero counters, even if it is free now.
	last := uint32(max(len(used), 1) - 1)
	err = s.tables.BackendTotal.Batches(func(ids []uint32, totals []kernel.BackendTotal) error {
		for i, id := range ids {
			if totals[i].ConnectionCount != 0 {
				last = max(last, id)
			}
		}
		return nil
	})
	for id := uint32(1); id <= last; id++ {
		if int(id) >= len(used) || !used[id] {
			s.backends.free = append(s.backends.free, id)
		}
	}
	s.backends.next = last + 1
	return err
}

func (s *Table) adoptBackend(id uint32, e *kernel.Backend) {
	s.backends.service[id].Store(e.ServiceId)
	v := s.byID[e.ServiceId]
	if v == nil {
		s.backends.dead[id] = deadBackend{service: e.ServiceId, pass: 1, gone: true}
		return
	}
	b := backend{addr: e.BackendAddr(), id: id, weight: uint16(e.Weight), flags: e.Flags}
	// A backend that was removed and added again has two ids for a while. The table in force may
	// refer to either, so the other id is not dead until v is written.
	if i := slices.IndexFunc(v.backends, func(o backend) bool { return o.addr == b.addr }); i >= 0 {
		if b.flags > v.backends[i].flags || b.weight > v.backends[i].weight {
			b, v.backends[i] = v.backends[i], b
		}
		v.changed.gone = append(v.changed.gone, b.id)
		return
	}
	v.backends = append(v.backends, b)
}

// adoptTables reads the selection tables, and schedules the deletion of those to which no frontend
// refers because an earlier run ended before it could delete or use them.
func (s *Table) adoptTables() error {
	referred := make(map[uint32]*table)
	for _, v := range s.byID {
		for i := range v.tables {
			referred[v.tables[i].id] = &v.tables[i]
		}
		for i := range v.stray {
			referred[v.stray[i].table.id] = &v.stray[i].table
		}
	}
	left := make(map[uint32]uint32) // number of chunks, by table id
	err := s.tables.Slot.Batches(func(keys []kernel.SlotKey, chunks []kernel.SlotChunk) error {
		for i, key := range keys {
			s.lastID = max(s.lastID, key.TableId)
			if t := referred[key.TableId]; t != nil {
				t.sum += sumOfChunk(key.Chunk, &chunks[i])
			} else {
				left[key.TableId] = max(left[key.TableId], key.Chunk+1)
			}
		}
		return nil
	})
	for _, v := range s.byID {
		for i := range v.tables {
			if t := &v.tables[i]; t.sum != v.entries[i].TableSum {
				t.source = 0 // it is not the table that was made
			}
		}
	}
	for id, chunks := range left {
		s.putAside(oldTable{table: table{id: id, count: chunks * kernel.WordsPerChunk}})
	}
	return err
}

func (s *Table) adoptRanges() error {
	sets := make(map[uint32][]netip.Prefix)
	var key kernel.SourceRangeKey
	var one uint8
	it := s.tables.SourceRange.Iterate()
	for it.Next(&key, &one) {
		sets[key.SetId] = append(sets[key.SetId], key.Prefix())
		s.lastID = max(s.lastID, key.SetId)
	}
	for _, v := range s.byID {
		v.ranges = sets[v.rangeSet]
		slices.SortFunc(v.ranges, netip.Prefix.Compare)
		v.suspect = len(v.stray) > 0
		delete(sets, v.rangeSet)
		for i := range v.stray {
			if v.stray[i].rangeSet == 0 {
				continue
			}
			v.stray[i].ranges = sets[v.stray[i].rangeSet]
			delete(sets, v.stray[i].rangeSet)
		}
	}
	for set, ranges := range sets {
		s.putAside(oldTable{rangeSet: set, ranges: ranges})
	}
	return it.Err()
}
