// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"iter"
)

// refersTo yields the objects that must exist because a value refers to them, each with the field
// that names it.
func refersTo(v Value) iter.Seq2[Key, string] {
	return func(yield func(Key, string) bool) {
		for group, field := range groupsOf(v) {
			if !yield(Key{KindAddressGroup, string(group)}, field) {
				return
			}
		}
		s, ok := v.(*Service)
		if !ok {
			return
		}
		for i := range s.Diverts {
			if !yield(Key{KindService, string(s.Diverts[i].Service)}, fmt.Sprintf("spec.divert[%d].service", i)) {
				return
			}
		}
	}
}

// checkDiverts rejects a plan in which a service diverts clients to a service that does not exist.
func (p *plan) checkDiverts() error {
	deleted := map[Key]struct{}{}
	for _, o := range p.dropped {
		if o.Kind == KindService && p.edit.get(o.Key) == nil {
			deleted[o.Key] = struct{}{}
		}
	}
	for _, o := range p.puts {
		if o.Kind != KindService {
			continue
		}
		for k, field := range refersTo(o.Value) {
			if _, isDropped := deleted[k]; isDropped || !p.has(k) {
				return refuse(Invalid, o.Key, field, "there is no %s: create it first, or in the same change", k)
			}
		}
	}
	if len(deleted) == 0 {
		return nil
	}
	for o := range p.each(KindService) {
		for k, field := range refersTo(o.Value) {
			if _, ok := deleted[k]; ok {
				return refuse(Conflict, k, "", "%s diverts clients to it in %s: change or delete that first, or in the same change", o.Key, field)
			}
		}
	}
	return nil
}
