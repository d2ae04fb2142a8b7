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
	var words wordsIn
	for chunk := range chunkCount(e) {
		var c kernel.SlotChunk
		if ok, _ := r.Slot.Find(kernel.SlotKey{TableId: e.TableId, Chunk: chunk}, &c); !ok {
			return nil, false
		}
		words = append(words, c.Word[:]...)
	}
	for slot := range int(e.SlotCount) {
		ids = append(ids, words.backend(e.MemberCount, slot))
	}
	return ids, true
}

// wordsIn are the words of a selection table.
type wordsIn []uint32

// backend returns the backend id in a slot, as the programs do.
func (w wordsIn) backend(members uint32, slot int) uint32 {
	switch {
	case members == 0:
		return w[slot]
	case members <= 256:
		return w[w[int(members)+slot/4]>>(8*(slot%4))&0xff]
	}
	return w[w[int(members)+slot/2]>>(16*(slot%2))&0xffff]
}

// chunkCount returns the number of chunks of a selection table.
func chunkCount(e *kernel.Service) uint32 {
	size := 4 * e.SlotCount
	switch {
	case e.MemberCount > 256:
		size = 4*e.MemberCount + 2*e.SlotCount
	case e.MemberCount > 0:
		size = 4*e.MemberCount + e.SlotCount
	}
	return (size + 447) / 448
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

// byID returns the entries of services to which others divert clients.
func (r *tablesOfSite) byID() map[kernel.ServiceIdKey]kernel.Service {
	list := map[kernel.ServiceIdKey]kernel.Service{}
	_ = r.ServiceId.Batches(func(keys []kernel.ServiceIdKey, values []kernel.Service) error {
		for i, k := range keys {
			list[k] = values[i]
		}
		return nil
	})
	return list
}

// diverted returns the ids of the services to which each set of diverts diverts clients.
func (r *tablesOfSite) diverted() map[uint32]map[uint32]bool {
	list := map[uint32]map[uint32]bool{}
	var key kernel.SourceRangeKey
	var d kernel.Divert
	for it := r.Divert.Iterate(); it.Next(&key, &d); {
		if list[key.SetId] == nil {
			list[key.SetId] = map[uint32]bool{}
		}
		list[key.SetId][d.ServiceId] = true
	}
	return list
}

// wrongReference describes an error that a packet arriving now would encounter: a frontend or a
// divert that refers to a table, backend, set or service that does not exist, or to a backend of
// another service; empty: none.
func wrongReference(r *tablesOfSite) string {
	ranges, _ := r.sets()
	diverted, byID, entries := r.diverted(), r.byID(), r.entries()
	has := map[kernel.ServiceIdKey]bool{} // services with a frontend of the family
	for f, e := range entries {
		has[idKey(e.Id, f)] = true
	}
	for f, e := range entries {
		what := "frontend " + f.String()
		if wrong := r.wrongEntry(what, kernel.FamilyOf(f.Addr.Addr()), &e, ranges); wrong != "" {
			return wrong
		}
		if e.DivertSetId != 0 && len(diverted[e.DivertSetId]) == 0 {
			return fmt.Sprintf("%s: set of diverts %d does not exist", what, e.DivertSetId)
		}
		for id := range diverted[e.DivertSetId] {
			other, ok := byID[idKey(id, f)]
			if !ok {
				if has[idKey(id, f)] {
					return fmt.Sprintf("%s: its clients are not diverted to service %d", what, id)
				}
				continue
			}
			if wrong := r.wrongEntry(fmt.Sprintf("%s, diverted to %d", what, id), kernel.FamilyOf(f.Addr.Addr()), &other, ranges); wrong != "" {
				return wrong
			}
		}
	}
	return ""
}

// idKey returns the key of a service for diverted clients of a frontend.
func idKey(id uint32, f datapath.Frontend) kernel.ServiceIdKey {
	if f.Addr.Addr().Is6() {
		return kernel.ServiceIdKey{Id: id, Family: 6}
	}
	return kernel.ServiceIdKey{Id: id, Family: 4}
}

// wrongEntry describes an error in the tables and sets to which an entry refers; empty: none.
func (r *tablesOfSite) wrongEntry(what string, family int, e *kernel.Service, ranges map[uint32][]string) string {
	ids, complete := r.slotsOf(e)
	if !complete {
		return fmt.Sprintf("%s: selection table %d is incomplete", what, e.TableId)
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		var b kernel.Backend
		if _ = r.Backend.Lookup(id, &b); b.ServiceId != e.Id || kernel.FamilyOf(b.BackendAddr().Addr()) != family {
			return fmt.Sprintf("%s: backend %d is %+v", what, id, b)
		}
	}
	if e.RangeSetId != 0 && len(ranges[e.RangeSetId]) == 0 {
		return fmt.Sprintf("%s: set of source ranges %d does not exist, so it is open to all or to none", what, e.RangeSetId)
	}
	if r.nameOf(e.Id) == "?" {
		return fmt.Sprintf("%s: service %d does not exist", what, e.Id)
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
	for k, e := range r.byID() {
		out[fmt.Sprintf("by id %s/%d", r.nameOf(k.Id), k.Family)] = describe(e)
	}
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
