// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/selection"
)

// table is one selection table in ll_slot: count backend ids, in chunks.
type table struct {
	id, count uint32
	sum       uint64 // hash of the ids; 0: unknown, from an earlier run
}

// oldTable is a table (or a set, or entries) to which no frontend refers now, but which
// packets that are being processed may still use. It is deleted a moment later.
type oldTable struct {
	at        time.Time
	table     table
	rangeSet  uint32 // or one of these sets
	divertSet uint32
	ranges    []netip.Prefix                // of rangeSet or divertSet
	targets   map[datapath.ServiceName]bool // of divertSet
	byID      uint32                        // or: the entries in the by-id table for the service with this id
	service   uint32                        // or: name and counters of the deleted service with this id
}

// writeTables writes the selection table of each family for which v has a frontend, if it has
// changed.
func (s *Table) writeTables(v *service, value *datapath.Service) error {
	for f := range v.tables {
		var ids []uint32
		if slices.ContainsFunc(value.Frontends, func(x datapath.Frontend) bool { return kernel.FamilyOf(x.Addr.Addr()) == f }) {
			ids = v.slots(value, f)
		}
		t := table{count: uint32(len(ids)), sum: sumOf(ids)}
		old := v.tables[f]
		if old.count == t.count && (old.sum == 0 || v.suspect) {
			sum, err := s.readTable(old)
			if err != nil {
				return err
			}
			old.sum = sum
		}
		if old.count == t.count && old.sum == t.sum {
			v.tables[f].sum = t.sum
			continue
		}
		t.id = s.newID()
		if err := s.writeTable(t.id, ids); err != nil {
			return err
		}
		v.strays(oldTable{table: old})
		v.tables[f] = t
	}
	return nil
}

// slots returns the backend ids for the selection table of family f.
func (v *service) slots(value *datapath.Service, f int) []uint32 {
	usable, all := usableOf(value, f)
	if len(usable) == 0 {
		return nil
	}
	ids := make([]uint32, slotCount(value.Algorithm, usable, all))
	switch value.Algorithm {
	case datapath.LeastConnections:
		for i := range ids {
			ids[i] = uint32(i)
		}
	case datapath.Random, datapath.RoundRobin:
		selection.Proportional(ids, usable)
	default:
		selection.Maglev(ids, usable)
	}
	byIndex := make([]uint32, len(usable))
	for i := range usable {
		j, _ := findBackend(v.backends, usable[i].Addr)
		byIndex[i] = v.backends[j].id
	}
	for i, index := range ids {
		ids[i] = byIndex[index]
	}
	return ids
}

// servedFamilies reports for each family whether a backend gets new connections. If none does,
// connections of a backend that is down cannot move to another one.
func servedFamilies(value *datapath.Service) (serves [2]bool) {
	for _, b := range value.Backends {
		if b.State != datapath.BackendDown {
			serves[kernel.FamilyOf(b.Addr.Addr())] = true
		}
	}
	return serves
}

// fallingBack reports for each family whether no active backend has a weight above 0: then backends
// that are draining or have weight 0 get the new connections.
func fallingBack(value *datapath.Service) (falls [2]bool) {
	falls = [2]bool{true, true}
	for _, b := range value.Backends {
		if shareOf(b, false) > 0 {
			falls[kernel.FamilyOf(b.Addr.Addr())] = false
		}
	}
	return falls
}

// shareOf returns the weight of b for new connections, given whether its family is falling back. It
// returns 0 if b gets no new connections.
func shareOf(b datapath.Backend, falls bool) uint16 {
	switch {
	case b.State == datapath.BackendDown:
		return 0
	case falls:
		return max(b.Weight, 1)
	case b.State != datapath.BackendActive:
		return 0
	}
	return b.Weight
}

// usableOf returns the backends of family f that may get connections, and the number of all
// backends of that family.
func usableOf(value *datapath.Service, f int) (usable []selection.Weighted, all int) {
	falls := fallingBack(value)[f]
	for _, b := range value.Backends {
		if kernel.FamilyOf(b.Addr.Addr()) != f {
			continue
		}
		all++
		if share := shareOf(b, falls); share > 0 {
			usable = append(usable, selection.Weighted{Addr: b.Addr, Weight: share})
		}
	}
	return usable, all
}

// slotCount returns the best length for a table. For Maglev the length depends on all backends, so
// that it does not change when one of them stops getting new connections.
func slotCount(a datapath.Algorithm, usable []selection.Weighted, all int) int {
	size := datapath.SlotCount(all)
	switch a {
	case datapath.LeastConnections:
		return min(len(usable), size)
	case datapath.Random, datapath.RoundRobin:
		sum := 0
		for _, u := range usable {
			sum += int(u.Weight)
		}
		if sum <= size {
			return size - size%sum // every pass over the table gives each backend its exact share
		}
	}
	return size
}

var seed = maphash.MakeSeed()

// sumOf returns a non-zero hash of ids.
func sumOf(ids []uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, id := range ids {
		maphash.WriteComparable(&h, id)
	}
	return h.Sum64() | 1
}

func chunksOf(slots uint32) uint32 { return (slots + kernel.SlotsPerChunk - 1) / kernel.SlotsPerChunk }

// writeTable writes ids to the selection table with the given id.
func (s *Table) writeTable(id uint32, ids []uint32) error {
	keys := make([]kernel.SlotKey, chunksOf(uint32(len(ids))))
	if len(keys) == 0 {
		return nil
	}
	chunks := make([]kernel.SlotChunk, len(keys))
	for i := range keys {
		keys[i] = kernel.SlotKey{TableId: id, Chunk: uint32(i)}
		copy(chunks[i].BackendId[:], ids[i*kernel.SlotsPerChunk:])
	}
	if err := s.tables.Slot.PutBatch(keys, chunks); err != nil {
		s.discard(oldTable{table: table{id: id, count: uint32(len(ids))}})
		return kernel.TableError("slots", err)
	}
	return nil
}

func (s *Table) deleteTable(t table) error {
	var errs error
	for chunk := range chunksOf(t.count) {
		key := kernel.SlotKey{TableId: t.id, Chunk: chunk}
		if err := s.tables.Slot.Delete(key); err != nil {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// readTable returns the hash of t's ids in the kernel.
func (s *Table) readTable(t table) (uint64, error) {
	ids := make([]uint32, 0, t.count+kernel.SlotsPerChunk)
	for chunk := range chunksOf(t.count) {
		key := kernel.SlotKey{TableId: t.id, Chunk: chunk}
		var c kernel.SlotChunk
		if _, err := s.tables.Slot.Find(key, &c); err != nil {
			return 0, err
		}
		ids = append(ids, c.BackendId[:]...)
	}
	return sumOf(ids[:t.count]), nil
}

// strays records a table that the frontends of v will no longer need once they have been written.
// An empty table is ignored.
func (v *service) strays(o oldTable) {
	if o.table.id != 0 || o.rangeSet != 0 || o.divertSet != 0 {
		v.stray = append(v.stray, o)
	}
}

func (s *Table) putAside(o oldTable) {
	o.at = time.Now()
	s.old = append(s.old, o)
}

// discard deletes a table to which no frontend has ever referred; if that fails, it is retried
// later.
func (s *Table) discard(o oldTable) {
	if s.deleteOld(o) != nil {
		s.putAside(o)
	}
}

// DropOld deletes tables whose deletion was deferred for long enough.
func (s *Table) DropOld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, o := range s.old {
		if time.Since(o.at) < kernel.Grace {
			break
		}
		if err := s.deleteOld(o); err != nil {
			s.log.Warn("cannot delete an old selection table; trying again", "error", err)
			break
		}
		n++
	}
	s.old = slices.Delete(s.old, 0, n)
}

func (s *Table) deleteOld(o oldTable) error {
	if o.service != 0 {
		return s.deleteID(o.service)
	}
	err := errors.Join(s.deleteTable(o.table), deleteRanges(&s.tables.SourceRange, o.rangeSet, o.ranges), deleteRanges(&s.tables.Divert, o.divertSet, o.ranges))
	if v := s.byID[o.byID]; o.byID == 0 || v != nil && s.diverted[v.name] > 0 {
		return err // a service diverts to it again
	}
	return errors.Join(err, s.deleteByID(o.byID))
}
