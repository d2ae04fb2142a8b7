// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// backendIDs allocates the ids of backends. The id of a deleted backend is dead: its connections
// are deleted, and once a complete sweep has found none of them, the id is free again. A backend
// that is down is dead only for UDP, which has no other way to detect the failure. The lock of
// [Table] guards it.
type backendIDs struct {
	tables *kernel.Tables
	next   uint32 // this id and higher ones were never allocated
	free   []uint32
	dead   map[uint32]deadBackend
	total  uint32 // ids that may be allocated, with the unused id 0
	// service is the service of each id that is in use or dead, else 0. Read without the lock, for
	// each connection.
	service []atomic.Uint32
}

type deadBackend struct {
	service uint32 // service to whose totals its counters are added
	pass    uint64 // number of the first sweep that counts
	gone    bool   // all its connections end, then the id is freed; else only the UDP ones end
}

func newBackendIDs(t *kernel.Tables) *backendIDs {
	return &backendIDs{
		tables: t, next: 1,
		dead:  make(map[uint32]deadBackend),
		total: t.Backend.MaxEntries(), service: make([]atomic.Uint32, t.Backend.MaxEntries()),
	}
}

// take returns a free id for a backend of a service, with its counters at zero.
func (b *backendIDs) take(service uint32) (id uint32, err error) {
	defer func() {
		if err == nil {
			b.service[id].Store(service)
		}
	}()
	switch n := len(b.free); {
	case n > 0:
		id = b.free[n-1]
		b.free = b.free[:n-1]
	case b.next < b.total:
		id = b.next
		b.next++
		return id, nil // never used: its counters are zero
	default:
		return 0, fmt.Errorf("%w: raise tables.backends in the configuration", datapath.ErrCapacity)
	}
	if err = b.zero(id); err != nil {
		b.free = append(b.free, id)
		return 0, err
	}
	return id, nil
}

// zero sets the counters of id to zero: the number of connections last, because without it the next
// run considers the id as never used.
func (b *backendIDs) zero(id uint32) error {
	if err := b.tables.BackendLoad.Put(id, uint32(0)); err != nil {
		return err
	}
	if err := b.tables.BackendTraffic.Put(id, kernel.Traffic{}); err != nil {
		return err
	}
	return b.tables.BackendTotal.Put(id, kernel.BackendTotal{})
}

// takeBackend returns a free id for a backend of v, whose port is recorded.
func (s *Table) takeBackend(v *service, addr datapath.BackendAddr) (uint32, error) {
	if err := s.targets.Add(addr.Port()); err != nil {
		return 0, err
	}
	id, err := s.backends.take(v.id)
	if err != nil {
		s.targets.Remove(addr.Port())
	}
	return id, err
}

// end marks backends that are down or deleted, so that their connections end.
func (s *Table) end(service uint32, c changes) {
	if len(c.down)+len(c.gone) == 0 {
		return
	}
	pass := s.sweep.NextPass()
	for _, id := range c.down {
		s.backends.dead[id] = deadBackend{service: service, pass: pass}
	}
	for _, id := range c.gone {
		s.backends.dead[id] = deadBackend{service: service, pass: pass, gone: true}
	}
	s.sweep.Kick()
}

// revive marks id as alive: its backend is up again.
func (b *backendIDs) revive(id uint32) {
	delete(b.dead, id)
}

// freeDead frees the dead ids that are not used, after the complete sweep with this number.
func (s *Table) freeDead(pass uint64, used func(id uint32) bool) error {
	b := s.backends
	for id, dead := range b.dead {
		if !dead.gone || pass < dead.pass || used(id) {
			continue
		}
		if err := s.bury(id, dead.service); err != nil {
			return fmt.Errorf("free backend id %d: %w", id, err)
		}
		delete(b.dead, id)
		b.service[id].Store(0)
		b.free = append(b.free, id)
	}
	return nil
}

// ServiceOf returns the id of the service of a backend, of a deleted one until its connections have
// ended; 0: there is no such backend.
func (s *Table) ServiceOf(backend uint32) uint32 {
	if int(backend) >= len(s.backends.service) {
		return 0
	}
	return s.backends.service[backend].Load()
}

// bury adds the traffic counters of id to the totals of its service.
func (s *Table) bury(id, service uint32) error {
	if err := s.tables.Backend.Put(id, kernel.Backend{}); err != nil {
		return err
	}
	if s.byID[service] == nil {
		return nil
	}
	var carried, total kernel.Traffic
	if err := s.tables.BackendTraffic.Lookup(id, &carried); err != nil {
		return err
	}
	if _, err := s.tables.ServiceTraffic.Find(service, &total); err != nil {
		return err
	}
	reused, err := s.reused(id)
	if err != nil {
		return err
	}
	total.PacketCount += carried.PacketCount + reused.PacketCount
	total.ByteCount += carried.ByteCount + reused.ByteCount
	return s.tables.ServiceTraffic.Put(service, total)
}

// OutOfUse implements [datapath.ServiceTable].
func (s *Table) OutOfUse() iter.Seq2[datapath.ServiceName, datapath.BackendAddr] {
	return func(yield func(datapath.ServiceName, datapath.BackendAddr) bool) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		for name, v := range s.byName {
			for _, b := range v.backends {
				if b.weight > 0 && b.flags&kernel.BackendUsable == 0 && !yield(name, b.addr) {
					return
				}
			}
		}
	}
}
