// SPDX-License-Identifier: Apache-2.0

// Package lb maintains the table of services: frontends, backends, and the tables with which the
// programs select a backend.
package lb

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Table is the table of services. A service is written bottom-up: name and counters, backends,
// selection tables and source ranges under unused ids, and then its frontends, each of which is
// switched by a single write. Entries to which the frontends referred before are deleted a moment
// later.
type Table struct {
	tables    *kernel.Tables
	log       *slog.Logger
	announcer Announcer
	targets   Targets
	sweep     Sweep
	// changedFrontends is called after each update.
	changedFrontends func()
	backends         *backendIDs

	closed map[uint32]*traffic // of deleted connections, not in a table yet; used by passes only
	loaded map[uint32]bool     // backends whose load may not be 0; used by passes only
	liveMu sync.Mutex
	live   map[uint32]traffic // of backends, as of the last pass

	mu     sync.RWMutex // guards the fields below; written by Update and Delete only
	byName map[datapath.ServiceName]*service
	byID   map[uint32]*service
	owner  map[datapath.Frontend]*service
	lastID uint32 // highest id of services, selection tables and sets of source ranges
	old    []oldTable
	// selected is the table that is being written.
	selected selected
	// diverted counts, for each service to which others divert clients, the diverting services.
	diverted map[datapath.ServiceName]int
	taken    map[datapath.Frontend]uint64 // moved to their owners, with the first sweep that handles the move
	addrs    serviceAddrs
}

// Announcer announces addresses of services.
type Announcer interface {
	// Announce replaces the addresses that are announced.
	Announce(addrs []netip.Addr) error
	// Seed records, at startup, the addresses that an earlier run announced, without changing
	// anything.
	Seed(addrs []netip.Addr)
	// Announced returns the addresses that an earlier run announced.
	Announced() map[netip.Addr]bool
}

// Targets are the ports to which services lead: connections between the node and these ports are
// tracked.
type Targets interface {
	Add(port uint16) error // once for each backend, before it is used
	Remove(port uint16)
}

// Sweep ends connections.
type Sweep interface {
	NextPass() uint64 // number of the first pass that handles what is marked now
	Kick()            // requests a pass
}

// service is the state of one service in the kernel.
type service struct {
	name      datapath.ServiceName
	id        uint32
	current   bool             // written by this run
	suspect   bool             // the kernel may hold something else: write everything
	mixed     bool             // the entries of frontends may differ from entries
	value     datapath.Service // as written by this run
	frontends []datapath.Frontend
	entries   [2]kernel.Service // referred to by frontends, by family
	tables    [2]table
	backends  []backend      // sorted by address
	ranges    []netip.Prefix // sorted
	rangeSet  uint32
	diverts   []divert // sorted
	divertSet uint32
	// Entries to which frontends may still refer, and backends whose connections must end. Both are
	// handled once an update succeeds, possibly a later one, or one of a later run.
	stray   []oldTable
	changed changes
}

// backend is one entry of ll_backend.
type backend struct {
	addr   datapath.BackendAddr
	id     uint32
	weight uint16
	flags  uint16
}

// newID returns an id that is not in use in the kernel.
func (s *Table) newID() uint32 {
	s.lastID++
	return s.lastID
}

var _ datapath.ExclusiveTable[datapath.ServiceName, datapath.Service] = (*Table)(nil)

// Update implements [datapath.Table].
func (s *Table) Update(_ context.Context, name datapath.ServiceName, value datapath.Service) error {
	_, err := s.update(name, value, true)
	return err
}

// Begin implements [datapath.ExclusiveTable]: a service is about to release frontends.
func (s *Table) Begin(_ context.Context, name datapath.ServiceName, value datapath.Service) (whole bool, err error) {
	return s.update(name, value, false)
}

// update implements Update. Without giveUp it implements Begin: a frontend that is to be removed
// still leads to its old tables.
func (s *Table) update(name datapath.ServiceName, value datapath.Service, giveUp bool) (whole bool, err error) {
	s.DropOld()
	if whole, err = s.write(name, value, giveUp); whole {
		s.changedFrontends()
	}
	return whole, err
}

func (s *Table) write(name datapath.ServiceName, value datapath.Service, giveUp bool) (whole bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.named(name)
	if err != nil {
		return false, err
	}
	if err := s.writeBackends(v, &value); err != nil {
		return false, err
	}
	if err := s.writeTables(v, &value); err != nil {
		return false, err
	}
	if err := s.writeRanges(v, value.SourceRanges); err != nil {
		return false, err
	}
	if err := s.writeDiverts(v, value.Diverts); err != nil {
		return false, err
	}
	if err := s.writeFrontends(v, &value); err != nil {
		return false, err
	}
	if whole = giveUp || !s.gives(v, &value); whole {
		err = s.giveUp(v, &value)
	}
	if !whole || err != nil {
		v.mixed = true // frontends to be removed have other entries
		return false, err
	}
	if err := s.writeAddrs(v, &value); err != nil {
		return false, err
	}
	s.settle(v)
	v.value, v.current, v.suspect, v.mixed = value, true, false, false
	return true, nil
}

// named returns the service called name, and creates it if it does not exist. s.mu is held.
func (s *Table) named(name datapath.ServiceName) (*service, error) {
	if v := s.byName[name]; v != nil {
		return v, nil
	}
	if len(name) >= len(kernel.ServiceName{}.Name) {
		return nil, fmt.Errorf("service %q: name longer than %d bytes: %w", name, len(kernel.ServiceName{}.Name)-1, datapath.ErrUnsupported)
	}
	v := &service{name: name, id: s.newID()}
	key := kernel.ServiceNameOf(name)
	if err := s.tables.ServiceName.Put(v.id, key); err != nil {
		return nil, kernel.TableError("services", err)
	}
	if err := s.zeroStats(v.id); err != nil {
		// The next attempt uses a different id, and a name must not have two ids.
		s.discard(oldTable{service: v.id})
		return nil, err
	}
	s.byName[name], s.byID[v.id] = v, v
	return v, nil
}

func (s *Table) zeroStats(id uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	err = s.tables.ServiceStats.Put(id, make([]kernel.ServiceStats, cpus))
	return kernel.TableError("services", err)
}

// settle schedules the deletion of entries to which no frontend of v refers now.
func (s *Table) settle(v *service) {
	for _, o := range v.stray {
		s.putAside(o)
		s.undivert(o.targets)
	}
	s.end(v.id, v.changed)
	v.stray, v.changed = nil, changes{}
}

// changes are the backends whose connections end after an update.
type changes struct{ down, gone []uint32 }

// writeBackends writes the backends of value.
func (s *Table) writeBackends(v *service, value *datapath.Service) (err error) {
	v.changed.down = nil // only from this value, not from a failed update
	known := v.backends
	wanted := make([]backend, 0, len(value.Backends))
	serves, falls := servedFamilies(value), fallingBack(value)
	for _, b := range value.Backends {
		w := backend{addr: b.Addr, weight: b.Weight}
		if share := shareOf(b, falls[kernel.FamilyOf(b.Addr.Addr())]); share > 0 {
			w.weight, w.flags = share, kernel.BackendUsable
		}
		i, ok := findBackend(known, b.Addr)
		if ok {
			w.id = known[i].id
		} else if w.id, err = s.takeBackend(v, b.Addr); err != nil {
			break
		}
		wanted = append(wanted, w)
		if !ok || known[i] != w || v.suspect {
			if err = s.writeBackend(v, w); err != nil {
				break
			}
		}
		if b.State == datapath.BackendDown && serves[kernel.FamilyOf(b.Addr.Addr())] {
			v.changed.down = append(v.changed.down, w.id)
		} else {
			s.backends.revive(w.id)
		}
	}
	sorted := slices.Clone(wanted)
	slices.SortFunc(sorted, compareBackends)
	for _, b := range known {
		if _, ok := findBackend(sorted, b.addr); ok {
			continue
		}
		if err == nil {
			err = s.writeBackend(v, backend{addr: b.addr, id: b.id})
		}
		if err != nil {
			wanted = append(wanted, b) // kept for the next attempt
			continue
		}
		s.targets.Remove(b.addr.Port())
		v.changed.gone = append(v.changed.gone, b.id)
	}
	slices.SortFunc(wanted, compareBackends)
	v.backends = wanted
	return err
}

func compareBackends(a, b backend) int { return a.addr.Compare(b.addr) }

func findBackend(sorted []backend, addr datapath.BackendAddr) (int, bool) {
	return slices.BinarySearchFunc(sorted, addr, func(b backend, a datapath.BackendAddr) int { return b.addr.Compare(a) })
}

func (s *Table) writeBackend(v *service, b backend) error {
	entry := kernel.Backend{
		Addr:      kernel.AddrOf(b.addr.Addr()),
		Port:      kernel.Swap16(b.addr.Port()),
		Flags:     b.flags,
		ServiceId: v.id,
		Weight:    uint32(b.weight),
	}
	if err := s.tables.Backend.Put(b.id, entry); err != nil {
		v.suspect = true
		return fmt.Errorf("backend %s: %w", b.addr, err)
	}
	return nil
}

// writeRanges writes the source ranges under a new id, if they have changed.
func (s *Table) writeRanges(v *service, ranges []netip.Prefix) error {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, netip.Prefix.Compare)
	if !v.suspect && slices.Equal(v.ranges, ranges) {
		return nil
	}
	set := uint32(0)
	if len(ranges) > 0 {
		set = s.newID()
	}
	table := &s.tables.SourceRange
	for i, p := range ranges {
		if err := table.Put(kernel.SourceRangeKeyOf(set, p), rangeFamily(p)); err != nil {
			s.discard(oldTable{rangeSet: set, ranges: ranges[:i+1]})
			return kernel.TableError("ranges", err)
		}
	}
	v.strays(oldTable{rangeSet: v.rangeSet, ranges: v.ranges})
	v.ranges, v.rangeSet = ranges, set
	return nil
}

func rangeFamily(p netip.Prefix) uint8 {
	if p.Addr().Is4() {
		return 4
	}
	return 6
}

// deleteRanges deletes the prefixes of a set from a table of source ranges or diverts; set 0: no
// set.
func deleteRanges(table interface {
	Delete(kernel.SourceRangeKey) error
}, set uint32, ranges []netip.Prefix) error {
	var errs error
	for _, p := range ranges {
		if set == 0 {
			break
		}
		errs = errors.Join(errs, table.Delete(kernel.SourceRangeKeyOf(set, p)))
	}
	return errs
}

// Delete implements [datapath.Table].
func (s *Table) Delete(_ context.Context, name datapath.ServiceName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.byName[name]
	if v == nil {
		return nil
	}
	v.current, v.suspect = false, true // if it fails halfway, and the service is updated again
	for _, f := range slices.Clone(v.frontends) {
		if err := s.deleteFrontend(v, f); err != nil {
			return err
		}
	}
	v.frontends = nil
	for _, b := range v.backends {
		if err := s.writeBackend(v, backend{addr: b.addr, id: b.id}); err != nil {
			return err
		}
	}
	if err := errors.Join(s.forgetDiverts(v), s.writeAddrs(v, &datapath.Service{})); err != nil {
		return err
	}
	for _, b := range v.backends {
		s.targets.Remove(b.addr.Port())
		v.changed.gone = append(v.changed.gone, b.id)
	}
	for _, t := range v.tables {
		v.strays(oldTable{table: t})
	}
	v.strays(oldTable{rangeSet: v.rangeSet, ranges: v.ranges})
	v.backends, v.tables, v.ranges, v.rangeSet = nil, [2]table{}, nil, 0
	s.settle(v)
	delete(s.byName, name)
	delete(s.byID, v.id)
	s.discard(oldTable{service: v.id})
	return nil
}

// deleteID deletes the counters of a service, and then its name: as long as counters exist, the
// next run finds them by the name.
func (s *Table) deleteID(id uint32) error {
	if err := errors.Join(s.tables.ServiceStats.Delete(id), s.tables.ServiceTraffic.Delete(id)); err != nil {
		return err
	}
	return s.tables.ServiceName.Delete(id)
}

// Keys implements [datapath.Table].
func (s *Table) Keys(context.Context) iter.Seq2[datapath.ServiceName, error] {
	s.mu.RLock()
	names := make([]datapath.ServiceName, 0, len(s.byName))
	for name := range s.byName {
		names = append(names, name)
	}
	s.mu.RUnlock()
	return func(yield func(datapath.ServiceName, error) bool) {
		for _, name := range names {
			if !yield(name, nil) {
				return
			}
		}
	}
}
