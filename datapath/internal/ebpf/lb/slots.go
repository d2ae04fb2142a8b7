// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/selection"
)

// table is one selection table in ll_slot, which selects a backend id for each of count slots. Its
// format is described in types_service.h.
type table struct {
	id, count uint32
	members   uint32 // length of its list; 0: no list
	sum       uint32 // of its words, see sumOf
	source    uint64 // hash of all that determines the table, see sourceOf; 0: unknown
}

// selected is the content of a selection table.
type selected struct {
	usable  []selection.Weighted // backends that get connections, by address
	members []uint32             // their ids
	all     int                  // number of backends, usable or not
	indexes []uint32             // of members, for each slot
	words   []uint32             // the encoded table
	bytes   []byte               // a buffer
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
		x := &s.selected
		x.choose(v, value, f)
		old, source := v.tables[f], x.sourceOf(value.Algorithm)
		if v.suspect {
			sum, err := s.readTable(old)
			if err != nil {
				return err
			}
			old.sum = sum
		} else if old.source == source {
			continue
		}
		x.fill(value.Algorithm)
		t := x.encode()
		t.source = source
		if old.count == t.count && old.members == t.members && (t.count == 0 || old.sum == t.sum) {
			v.tables[f].sum, v.tables[f].source = t.sum, source
			continue
		}
		t.id = s.newID()
		if err := s.writeTable(t, x.words); err != nil {
			return err
		}
		v.strays(oldTable{table: old})
		v.tables[f] = t
	}
	return nil
}

// choose sets the backends of the selection table of v for family f. Their order in value does not
// matter.
func (x *selected) choose(v *service, value *datapath.Service, f int) {
	x.usable, x.members, x.all = x.usable[:0], x.members[:0], 0
	if !slices.ContainsFunc(value.Frontends, func(x datapath.Frontend) bool { return kernel.FamilyOf(x.Addr.Addr()) == f }) {
		return
	}
	x.usable, x.all = usableOf(x.usable, value, f)
	slices.SortFunc(x.usable, func(a, b selection.Weighted) int { return a.Addr.Compare(b.Addr) })
	for i := range x.usable {
		j, _ := findBackend(v.backends, x.usable[i].Addr)
		x.members = append(x.members, v.backends[j].id)
	}
}

// sourceOf returns a hash of the chosen backends and all else on which the selection table depends:
// FNV-1a. It is pinned, so it must change with the meaning of tables.
func (x *selected) sourceOf(a datapath.Algorithm) uint64 {
	h := fnv.New64a()
	b := x.bytes[:0]
	b = append(b, tableFormat, byte(a))
	b = binary.LittleEndian.AppendUint32(b, uint32(x.all))
	for i, u := range x.usable {
		addr := u.Addr.Addr().As16()
		b = append(b, addr[:]...)
		b = binary.LittleEndian.AppendUint16(b, u.Addr.Port())
		b = binary.LittleEndian.AppendUint16(b, u.Weight)
		b = binary.LittleEndian.AppendUint32(b, x.members[i])
	}
	_, _ = h.Write(b) // never fails
	x.bytes = b
	return h.Sum64() | 1
}

// tableFormat changes with the format of selection tables, and with the way in which they are made.
const tableFormat = 1

// fill sets the slots for the chosen backends.
func (x *selected) fill(a datapath.Algorithm) {
	x.indexes = x.indexes[:0]
	if len(x.usable) == 0 {
		return
	}
	n := slotCount(a, x.usable, x.all)
	x.indexes = slices.Grow(x.indexes, n)[:n]
	switch a {
	case datapath.LeastConnections:
		for i := range x.indexes {
			x.indexes[i] = uint32(i)
		}
	case datapath.Random, datapath.RoundRobin:
		selection.Proportional(x.indexes, x.usable)
	default:
		selection.Maglev(x.indexes, x.usable)
	}
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

// usableOf appends to usable the backends of family f that may get connections, and returns the number
// of all backends of that family.
func usableOf(usable []selection.Weighted, value *datapath.Service, f int) (_ []selection.Weighted, all int) {
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
		sum, divisor := 0, 0
		for _, u := range usable {
			sum += int(u.Weight)
			divisor = gcd(int(u.Weight), divisor)
		}
		if sum /= max(divisor, 1); sum <= size {
			return sum // every pass over the table gives each backend its exact share
		}
	}
	return size
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// sumOf returns the checksum of a table: the sum of the checksums of its chunks, which are read in any
// order.
func sumOf(words []uint32) (sum uint32) {
	var chunk kernel.SlotChunk
	for i := 0; i < len(words); i += len(chunk.Word) {
		clear(chunk.Word[copy(chunk.Word[:], words[i:]):])
		sum += sumOfChunk(uint32(i/len(chunk.Word)), &chunk)
	}
	return sum
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOfChunk returns the checksum of a chunk, which depends on its number.
func sumOfChunk(number uint32, c *kernel.SlotChunk) uint32 {
	const size = unsafe.Sizeof(c.Word)
	return crc32.Checksum((*[size]byte)(unsafe.Pointer(&c.Word))[:], castagnoli) * (2*number + 1)
}

func chunksOf(words uint32) uint32 { return (words + kernel.WordsPerChunk - 1) / kernel.WordsPerChunk }

// slotBytes returns the size of a slot.
func (t *table) slotBytes() uint32 {
	switch {
	case t.members == 0:
		return 4
	case t.members > kernel.MembersPerByte:
		return 2
	}
	return 1
}

// words returns the length of the table.
func (t *table) words() uint32 { return t.members + (t.count*t.slotBytes()+3)/4 }

// encode sets the words, and returns the table without an id. The table has a list if it takes fewer
// chunks then.
func (x *selected) encode() table {
	t := table{count: uint32(len(x.indexes))}
	direct := chunksOf(t.words())
	if t.members = uint32(len(x.members)); t.members > math.MaxUint16+1 || chunksOf(t.words()) >= direct {
		t.members = 0
	}
	n := int(t.words())
	x.words = slices.Grow(x.words[:0], n)[:n]
	if t.members == 0 {
		for slot, i := range x.indexes {
			x.words[slot] = x.members[i]
		}
	} else {
		slots := x.words[copy(x.words, x.members):]
		clear(slots)
		size := t.slotBytes()
		for slot, i := range x.indexes {
			at := uint32(slot) * size
			slots[at/4] |= i << (8 * (at % 4))
		}
	}
	t.sum = sumOf(x.words)
	return t
}

// writeTable writes the words of a selection table.
func (s *Table) writeTable(t table, words []uint32) error {
	keys := make([]kernel.SlotKey, chunksOf(uint32(len(words))))
	if len(keys) == 0 {
		return nil
	}
	chunks := make([]kernel.SlotChunk, len(keys))
	for i := range keys {
		keys[i] = kernel.SlotKey{TableId: t.id, Chunk: uint32(i)}
		copy(chunks[i].Word[:], words[i*kernel.WordsPerChunk:])
	}
	if err := s.tables.Slot.PutBatch(keys, chunks); err != nil {
		s.discard(oldTable{table: t})
		return kernel.TableError("backends", err)
	}
	return nil
}

func (s *Table) deleteTable(t table) error {
	var errs error
	for chunk := range chunksOf(t.words()) {
		key := kernel.SlotKey{TableId: t.id, Chunk: chunk}
		if err := s.tables.Slot.Delete(key); err != nil {
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

// readTable returns the checksum of t in the kernel.
func (s *Table) readTable(t table) (sum uint32, err error) {
	for chunk := range chunksOf(t.words()) {
		var c kernel.SlotChunk
		if _, err := s.tables.Slot.Find(kernel.SlotKey{TableId: t.id, Chunk: chunk}, &c); err != nil {
			return 0, err
		}
		sum += sumOfChunk(chunk, &c)
	}
	return sum, nil
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
