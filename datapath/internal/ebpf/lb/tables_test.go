// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// tablesOfSite reads the tables of services.
type tablesOfSite struct{ *kernel.Tables }

// slotsOf returns the backend ids of a selection table; complete is false if a chunk is missing.
func (r *tablesOfSite) slotsOf(e *kernel.Service) (ids []uint32, complete bool) {
	for chunk := range chunksOf(e.SlotCount) {
		var c kernel.SlotChunk
		if ok, _ := r.Slot.Find(kernel.SlotKey{TableId: e.TableId, Chunk: chunk}, &c); !ok {
			return nil, false
		}
		ids = append(ids, c.BackendId[:]...)
	}
	return ids[:e.SlotCount], true
}

// entries returns the entries of the frontends.
func (r *tablesOfSite) entries() map[datapath.Frontend]kernel.Service {
	list := map[datapath.Frontend]kernel.Service{}
	_ = r.Service.Batches(func(keys []kernel.ServiceKey, values []kernel.Service) error {
		for i, k := range keys {
			list[k.Frontend()] = values[i]
		}
		return nil
	})
	return list
}

// sets returns the prefixes of source ranges and of diverts by set.
func (r *tablesOfSite) sets() (ranges map[uint32][]string, diverts map[uint32][]string) {
	ranges, diverts = map[uint32][]string{}, map[uint32][]string{}
	var key kernel.SourceRangeKey
	var family uint8
	for it := r.SourceRange.Iterate(); it.Next(&key, &family); {
		ranges[key.SetId] = append(ranges[key.SetId], key.Prefix().String())
	}
	var d kernel.Divert
	for it := r.Divert.Iterate(); it.Next(&key, &d); {
		diverts[key.SetId] = append(diverts[key.SetId], fmt.Sprintf("%s to %s", key.Prefix(), r.nameOf(d.ServiceId)))
	}
	return ranges, diverts
}

func (r *tablesOfSite) nameOf(id uint32) datapath.ServiceName {
	var name kernel.ServiceName
	if ok, _ := r.ServiceName.Find(id, &name); !ok {
		return "?"
	}
	return name.Text()
}

// wrongReference describes an error that a packet arriving now would encounter: a frontend that
// refers to a table, backend or set that does not exist, or to a backend of another service; empty:
// none.
func wrongReference(r *tablesOfSite) string {
	ranges, diverts := r.sets()
	for f, e := range r.entries() {
		ids, complete := r.slotsOf(&e)
		if !complete {
			return fmt.Sprintf("frontend %s: selection table %d is incomplete", f, e.TableId)
		}
		for _, id := range ids {
			var b kernel.Backend
			if _ = r.Backend.Lookup(id, &b); b.ServiceId != e.Id || kernel.FamilyOf(b.BackendAddr().Addr()) != kernel.FamilyOf(f.Addr.Addr()) {
				return fmt.Sprintf("frontend %s: backend %d is %+v", f, id, b)
			}
		}
		if e.RangeSetId != 0 && len(ranges[e.RangeSetId]) == 0 {
			return fmt.Sprintf("frontend %s: set of source ranges %d does not exist, so it is open to all or to none", f, e.RangeSetId)
		}
		if e.DivertSetId != 0 && len(diverts[e.DivertSetId]) == 0 {
			return fmt.Sprintf("frontend %s: set of diverts %d does not exist", f, e.DivertSetId)
		}
		if r.nameOf(e.Id) == "?" {
			return fmt.Sprintf("frontend %s: service %d does not exist", f, e.Id)
		}
	}
	return ""
}

// meaning returns the effect of the tables on packets, independently of ids.
func (r *tablesOfSite) meaning() map[string]string {
	out := map[string]string{}
	ranges, diverts := r.sets()
	describe := func(e kernel.Service) string {
		ids, complete := r.slotsOf(&e)
		var b strings.Builder
		fmt.Fprintf(&b, "%s: algorithm %d, source %d, affinity %d, flags %d, complete %t", r.nameOf(e.Id), e.Algorithm, e.Source, e.AffinityTicks, e.Flags, complete)
		for _, id := range ids {
			var v kernel.Backend
			_ = r.Backend.Lookup(id, &v)
			fmt.Fprintf(&b, " %s*%d/%d", v.BackendAddr(), v.Weight, v.Flags)
		}
		slices.Sort(ranges[e.RangeSetId])
		slices.Sort(diverts[e.DivertSetId])
		fmt.Fprintf(&b, "; ranges %v, diverts %v", ranges[e.RangeSetId], diverts[e.DivertSetId])
		return b.String()
	}
	for f, e := range r.entries() {
		out["frontend "+f.String()] = describe(e)
	}
	_ = r.ServiceId.Batches(func(keys []kernel.ServiceIdKey, values []kernel.Service) error {
		for i, k := range keys {
			out[fmt.Sprintf("by id %s/%d", r.nameOf(k.Id), k.Family)] = describe(values[i])
		}
		return nil
	})
	_ = r.ServiceAddr.Batches(func(keys []kernel.Addr, values []uint32) error {
		for i, k := range keys {
			out["address "+k.Addr().String()] = fmt.Sprint(values[i])
		}
		return nil
	})
	_ = r.ServiceName.Batches(func(ids []uint32, names []kernel.ServiceName) error {
		for i := range ids {
			out["name "+string(names[i].Text())] = ""
		}
		return nil
	})
	return out
}

// garbage returns an entry to which no frontend refers; empty: none exists.
func (r *tablesOfSite) garbage() string {
	tables, sets, ids := map[uint32]bool{}, map[uint32]bool{}, map[uint32]bool{}
	for _, e := range r.entries() {
		tables[e.TableId], sets[e.RangeSetId], sets[e.DivertSetId], ids[e.Id] = true, true, true, true
	}
	found := ""
	_ = r.Slot.Batches(func(keys []kernel.SlotKey, _ []kernel.SlotChunk) error {
		for _, k := range keys {
			if !tables[k.TableId] {
				found = fmt.Sprintf("selection table %d", k.TableId)
			}
		}
		return nil
	})
	ranges, diverts := r.sets()
	for _, list := range []map[uint32][]string{ranges, diverts} {
		for set := range list {
			if !sets[set] {
				found = fmt.Sprintf("set %d: %v", set, list[set])
			}
		}
	}
	_ = r.Backend.Batches(func(keys []uint32, values []kernel.Backend) error {
		for i, b := range values {
			if b.ServiceId != 0 && r.nameOf(b.ServiceId) == "?" {
				found = fmt.Sprintf("backend %d of service %d", keys[i], b.ServiceId)
			}
		}
		return nil
	})
	return found
}
