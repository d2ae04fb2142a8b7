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
		if p, ok := v.(*Policy); ok {
			yield(Key{KindTier, p.Tier}, "spec.tier")
			return
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

// checkReferences rejects a plan in which a Service diverts clients to a Service that does not
// exist, or a Policy refers to a Tier that does not exist.
func (p *plan) checkReferences() error {
	deleted := map[Key]struct{}{}
	for _, o := range p.dropped {
		if (o.Kind == KindService || o.Kind == KindTier) && p.edit.get(o.Key) == nil {
			deleted[o.Key] = struct{}{}
		}
	}
	for _, o := range p.puts {
		if o.Kind != KindService && o.Kind != KindPolicy {
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
	for kind, effect := range map[string]string{KindService: "diverts clients to it", KindPolicy: "refers to it"} {
		for o := range p.each(kind) {
			for k, field := range refersTo(o.Value) {
				if _, ok := deleted[k]; ok {
					return refuse(Conflict, k, "", "%s %s in %s: change or delete that first, or in the same change", o.Key, effect, field)
				}
			}
		}
	}
	return nil
}
