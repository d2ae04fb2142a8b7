// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"hash/maphash"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/selection"
)

// table is one selection table in ll_slot: count backend ids, in chunks.
type table struct {
	id, count uint32
	sum       uint64 // of the ids; 0: not known, of an earlier run
}

// oldTable is what no frontend refers to any more, but a packet that is on its
// way may: it is deleted a moment later.
type oldTable struct {
	at        time.Time
	table     table
	rangeSet  uint32 // or
	divertSet uint32
	ranges    []netip.Prefix // of either
}

// grace is longer than any program runs.
const grace = 100 * time.Millisecond

// writeTables fills the selection table of each family that v has a frontend of. A
// table that would be the same stays.
func (s *services) writeTables(v *service, value *datapath.Service) error {
	for f := range v.tables {
		var ids []uint32
		if slices.ContainsFunc(value.Frontends, func(x datapath.Frontend) bool { return familyOf(x.Addr.Addr()) == f }) {
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

// servedFamilies says of each family whether there is a backend that new connections go to.
// Where there is none, those of one that is down have nowhere else to go.
func servedFamilies(value *datapath.Service) (serves [2]bool) {
	for _, b := range value.Backends {
		if b.State != datapath.BackendDown {
			serves[familyOf(b.Addr.Addr())] = true
		}
	}
	return serves
}

// fallingBack says of each family whether no backend is active with a weight: then those
// that are draining or of weight 0 get the new connections, rather than nobody.
func fallingBack(value *datapath.Service) (falls [2]bool) {
	falls = [2]bool{true, true}
	for _, b := range value.Backends {
		if shareOf(b, false) > 0 {
			falls[familyOf(b.Addr.Addr())] = false
		}
	}
	return falls
}

// shareOf returns the weight that b gets new connections by, where its family is falling
// back or is not; 0: it gets none.
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

// usableOf returns the backends of family f that may get connections, and how many
// backends of that family there are in all.
func usableOf(value *datapath.Service, f int) (usable []selection.Weighted, all int) {
	falls := fallingBack(value)[f]
	for _, b := range value.Backends {
		if familyOf(b.Addr.Addr()) != f {
			continue
		}
		all++
		if share := shareOf(b, falls); share > 0 {
			usable = append(usable, selection.Weighted{Addr: b.Addr, Weight: share})
		}
	}
	return usable, all
}

// slotCount returns how long a table is best. Maglev's length depends on all
// backends, so that it stays the same when one of them stops taking connections.
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
			return size - size%sum // every round gives each its exact share
		}
	}
	return size
}

var seed = maphash.MakeSeed()

// sumOf returns a sum of ids that is not 0.
func sumOf(ids []uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, id := range ids {
		maphash.WriteComparable(&h, id)
	}
	return h.Sum64() | 1
}

func chunksOf(slots uint32) uint32 { return (slots + slotsPerChunk - 1) / slotsPerChunk }

// writeTable enters ids as selection table id, whole or not at all.
func (s *services) writeTable(id uint32, ids []uint32) error {
	keys := make([]kernelSlotKey, chunksOf(uint32(len(ids))))
	if len(keys) == 0 {
		return nil
	}
	chunks := make([]kernelSlotChunk, len(keys))
	for i := range keys {
		keys[i] = kernelSlotKey{TableId: id, Chunk: uint32(i)}
		copy(chunks[i].BackendId[:], ids[i*slotsPerChunk:])
	}
	if _, err := s.d.maps[kernelMapLlSlot].BatchUpdate(keys, chunks, nil); err != nil {
		return errors.Join(tableError("slots", err), s.deleteTable(table{id: id, count: uint32(len(ids))}))
	}
	return nil
}

func (s *services) deleteTable(t table) error {
	var errs error
	for chunk := range chunksOf(t.count) {
		key := kernelSlotKey{TableId: t.id, Chunk: chunk}
		if err := s.d.maps[kernelMapLlSlot].Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// readTable returns the sum of what the kernel holds for t.
func (s *services) readTable(t table) (uint64, error) {
	ids := make([]uint32, 0, t.count+slotsPerChunk)
	for chunk := range chunksOf(t.count) {
		key := kernelSlotKey{TableId: t.id, Chunk: chunk}
		var c kernelSlotChunk
		if _, err := lookup(s.d.maps[kernelMapLlSlot], &key, &c); err != nil {
			return 0, err
		}
		ids = append(ids, c.BackendId[:]...)
	}
	return sumOf(ids[:t.count]), nil
}

// strays keeps what a change takes away from the frontends of v, until they have
// been told. What was never there is none.
func (v *service) strays(o oldTable) {
	if o.table.id != 0 || o.rangeSet != 0 || o.divertSet != 0 {
		v.stray = append(v.stray, o)
	}
}

func (s *services) putAside(o oldTable) {
	o.at = time.Now()
	s.old = append(s.old, o)
}

// dropOld deletes what was put aside long enough ago.
func (s *services) dropOld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, o := range s.old {
		if time.Since(o.at) < grace {
			break
		}
		if err := errors.Join(s.deleteTable(o.table), s.deleteRanges(kernelMapLlSourceRange, o.rangeSet, o.ranges), s.deleteRanges(kernelMapLlDivert, o.divertSet, o.ranges)); err != nil {
			s.d.log.Warn("cannot delete an old selection table; trying again", "error", err)
			break
		}
		n++
	}
	s.old = slices.Delete(s.old, 0, n)
}
