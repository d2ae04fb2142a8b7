// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"errors"
	"fmt"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// idleOf returns the idle times of the connections of a service, by protocol.
func idleOf(value *datapath.Service) [3]uint16 {
	t := value.IdleTimeout
	return [...]uint16{kernel.IdleUnits(t.TCP), kernel.IdleUnits(t.UDP), kernel.IdleUnits(t.SCTP)}
}

// writeFrontends makes the frontends refer to the tables, which have already been written.
func (s *Table) writeFrontends(v *service, value *datapath.Service) error {
	var entries [2]kernel.Service
	for f := range entries {
		entries[f] = kernel.Service{
			Id:            v.id,
			TableId:       v.tables[f].id,
			SlotCount:     v.tables[f].count,
			MemberCount:   v.tables[f].members,
			TableSum:      v.tables[f].sum,
			TableSource:   v.tables[f].source,
			AffinityTicks: kernel.TicksOf(value.Affinity),
			Algorithm:     kernel.Algorithms[value.Algorithm],
			Source:        kernel.SourceModes[value.Source],
			RangeSetId:    v.rangeSet,
			DivertSetId:   v.divertSet,
			Idle:          idleOf(value),
		}
		if value.Silent {
			entries[f].Flags = kernel.ServiceSilent
		}
	}
	if err := s.writeByID(v, entries); err != nil {
		return err
	}
	added := false
	for _, f := range value.Frontends {
		fam := kernel.FamilyOf(f.Addr.Addr())
		ours := s.owner[f] == v
		if ours && v.entries[fam] == entries[fam] && !v.suspect && !v.mixed {
			continue
		}
		key := kernel.ServiceKeyOf(f)
		if err := s.tables.Service.Put(key, entries[fam]); err != nil {
			v.suspect = true // frontends are inconsistent: the next update writes everything
			return fmt.Errorf("frontend %s: %w", f, kernel.TableError("services", err))
		}
		if v.entries[fam].Id == 0 {
			v.entries[fam] = entries[fam] // for services that divert to v in the meantime
		}
		added = added || !ours
		s.takes(v, f)
		if !slices.Contains(v.frontends, f) {
			v.frontends = append(v.frontends, f)
		}
	}
	v.entries = entries
	if added {
		return s.raiseEpoch()
	}
	return nil
}

// raiseEpoch makes connections in one direction that have no service look for one again.
func (s *Table) raiseEpoch() error {
	of := uint32(kernel.EpochOfEPOCH_SERVICES)
	var epoch kernel.Epoch
	if err := s.tables.Epoch.Lookup(of, &epoch); err != nil {
		return fmt.Errorf("epoch of the services: %w", err)
	}
	epoch.Count++
	epoch.ChangedTick = kernel.NowTick()
	if err := s.tables.Epoch.Put(of, epoch); err != nil {
		return fmt.Errorf("epoch of the services: %w", err)
	}
	return nil
}

// gives reports whether v has a frontend to release that no other service has taken.
func (s *Table) gives(v *service, value *datapath.Service) bool {
	return slices.ContainsFunc(v.frontends, func(f datapath.Frontend) bool {
		return s.owner[f] == v && !slices.Contains(value.Frontends, f)
	})
}

// giveUp removes the frontends that value no longer contains.
func (s *Table) giveUp(v *service, value *datapath.Service) (err error) {
	v.frontends = slices.DeleteFunc(v.frontends, func(f datapath.Frontend) bool {
		if slices.Contains(value.Frontends, f) {
			return false
		}
		e := s.deleteFrontend(v, f)
		err = errors.Join(err, e)
		return e == nil
	})
	return err
}

// deleteFrontend removes f unless another service has taken it.
func (s *Table) deleteFrontend(v *service, f datapath.Frontend) error {
	if s.owner[f] != v {
		return nil
	}
	key := kernel.ServiceKeyOf(f)
	if err := s.tables.Service.Delete(key); err != nil {
		return fmt.Errorf("frontend %s: %w", f, err)
	}
	delete(s.owner, f)
	return nil
}
