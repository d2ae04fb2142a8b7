// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/state/timeline"
)

// loadPending reads the pending change. If it cannot be read, or if the history does not contain
// its revisions, the history counts as lost.
func (c *content) loadPending(record []byte) {
	if record == nil {
		return
	}
	var ok bool
	if c.pending, ok = timeline.DecodePending(record); ok {
		for _, revision := range c.pending.Revisions() {
			i, known := timeline.Find(c.history, revision)
			if ok = ok && known; ok {
				c.pending.Author = c.history[i].Author
			}
		}
	}
	if !ok && c.historyLost == "" {
		c.history, c.historyLost = nil, "the pending change is not in it"
	}
}

// waiting is a change that waits for confirmation, with the resources that it reserves until then
// so that it can be rolled back. It is immutable once it is in the store.
type waiting struct {
	Pending
	base   uint64          // the revision before its first revision
	keys   map[Key]bool    // the objects that it changed
	all    map[string]bool // owners of these objects
	owners map[string]bool // owners whose other objects must not change either
	claims map[claim]Key   // claims of its former objects

	// back is the state after a rollback: the state before the change, with the later changes of
	// other owners. A commit must be valid in both states.
	back     *table
	networks map[Key]*Object // pod networks that the change created or modified, in their current form
}

// machineOwners are owners that cannot wait for users: their objects may change while a change by
// another owner is pending.
var machineOwners = map[string]bool{OwnerFile: true, OwnerCNI: true, OwnerK8s: true}

func newWaiting(p *Pending, base uint64) *waiting {
	return &waiting{
		Pending: *p, base: base, keys: map[Key]bool{}, all: map[string]bool{}, owners: map[string]bool{}, claims: map[claim]Key{},
		networks: map[Key]*Object{},
	}
}

// extend returns w extended by one revision, p.
func (w *waiting) extend(p *Pending) *waiting {
	next := *w
	next.Pending = *p
	next.keys, next.all, next.owners = maps.Clone(w.keys), maps.Clone(w.all), maps.Clone(w.owners)
	next.claims, next.networks = maps.Clone(w.claims), maps.Clone(w.networks)
	return &next
}

// reserve records an object that a revision of the change touched, in its states before and after
// that revision. A rollback restores the object as it was before the first of these revisions.
func (w *waiting) reserve(k Key, before, after *Object) {
	again := w.keys[k]
	w.keys[k] = true
	for _, o := range []*Object{before, after} {
		if o == nil {
			continue
		}
		w.all[o.Owner] = true
		if !machineOwners[o.Owner] {
			w.owners[o.Owner] = true
		}
	}
	if before != nil && !again {
		before.Value.claims(func(c claim, _ func() string) { w.claims[c] = k })
	}
	delete(w.networks, k)
	if after != nil && k.Kind == KindPodNetwork && !after.isOpaque() {
		w.networks[k] = after
	}
}

// resumeWaiting restores the pending change of an earlier run.
func (s *Store) resumeWaiting(c *content) error {
	if c.pending == nil || c.historyLost != "" {
		return nil
	}
	revisions := c.pending.Revisions()
	i, _ := timeline.Find(c.history, revisions[0])
	w := newWaiting(c.pending, c.history[i].Previous)
	back := s.Snapshot().table.edit()
	for _, revision := range revisions {
		err := s.Diffs(revision, "", func(d Diff) bool {
			again := w.keys[d.Key]
			w.reserve(d.Key, d.Before, d.After)
			if again {
				return true
			}
			if back.remove(d.Key); d.Before != nil {
				back.put(d.Before)
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	w.back = back.done()
	s.waiting.Store(w)
	return nil
}

// Pending returns the pending change and the time that remains, or nil if no change is pending.
func (s *Store) Pending() (p *Pending, left time.Duration) {
	w := s.waiting.Load()
	if w == nil {
		return nil, 0
	}
	return &w.Pending, s.clock.Left(&w.Pending)
}

// checkConfirmed rejects a plan that requires confirmation and changes pods' objects: pods are
// created and deleted in the meantime, independently of the confirmation.
func (p *plan) checkConfirmed() error {
	for _, f := range p.formers {
		if belongsTo(f.object, OwnerCNI) || belongsTo(p.edit.find(f.Key), OwnerCNI) {
			return refuse(Conflict, f.Key, "owner", "belongs to a pod, and objects of pods cannot be part of a change with confirmation: omit it, or change it without confirm")
		}
	}
	return nil
}

// checkWaiting rejects a plan that would make a rollback of the waiting change impossible, or that
// changes objects that belong to the waiting change or to its owners. A plan that requires
// confirmation joins the waiting change instead.
func (s *Store) checkWaiting(p *plan, confirm time.Duration) error {
	w := s.waiting.Load()
	if w == nil {
		return nil
	}
	if confirm > 0 {
		switch {
		case len(p.formers) == 0:
		case s.clock.Left(&w.Pending) == 0:
			return refuse(Conflict, Key{}, "confirm", "the change of revision %d is being rolled back: try again", w.Revision)
		case len(w.Joined) >= timeline.MaxJoined:
			return refuse(Capacity, Key{}, "confirm", "%d changes are pending together, which is the maximum: confirm them (llcli confirm) or roll them back (llcli rollback --last), then try again", len(w.Joined)+1)
		}
		return nil
	}
	for _, f := range p.formers {
		if w.keys[f.Key] {
			return s.refuseWaiting(w, f.Key, "", "this object was changed by it")
		}
		if f.object != nil && w.owners[f.object.Owner] {
			return s.refuseWaiting(w, f.Key, "", "this object has the same owner ("+f.object.Owner+") as that change")
		}
	}
	for _, o := range p.puts {
		if w.owners[o.Owner] {
			return s.refuseWaiting(w, o.Key, "", "this object has the same owner ("+o.Owner+") as that change")
		}
	}
	p.back = w.plan(p)
	err := p.back.check(func(c claim) (Key, bool) {
		if k, held := w.claims[c]; held {
			return k, true
		}
		return s.holder(c)
	}, s.merged)
	if err == nil {
		err = p.back.checkStays(w)
	}
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return s.refuseWaiting(w, refusal.Key, refusal.Field, "this object conflicts with the state after the rollback: "+refusal.Message)
	}
	return err
}

// plan returns p as applied to the state after a rollback of w. p must not change any object that w
// has changed.
func (w *waiting) plan(p *plan) *plan {
	back := &plan{
		edit: w.back.edit(), puts: p.puts, replaced: p.replaced, dropped: p.dropped, formers: p.formers,
		isRollback: true,
	}
	for _, f := range p.formers {
		if o := p.edit.find(f.Key); o != nil {
			back.edit.put(o)
		} else {
			back.edit.remove(f.Key)
		}
	}
	return back
}

// checkStays rejects a plan with an Endpoint whose PodNetwork a rollback of w would delete, or
// whose address would no longer be in a subnet of that PodNetwork.
func (p *plan) checkStays(w *waiting) error {
	for _, o := range p.puts {
		e, ok := o.Value.(*Endpoint)
		if !ok {
			continue
		}
		for _, was := range w.networks {
			switch i, ends := e.livesIn(was, p.edit.get(was.Key)); {
			case !ends:
			case i < 0:
				return refuse(Conflict, o.Key, "spec.network", "%s would not exist", was.Key)
			default:
				return refuse(Conflict, o.Key, fmt.Sprintf("spec.addresses[%d]", i), "%s would not be in a subnet of %s", e.Addresses[i], was.Key)
			}
		}
	}
	return nil
}

// with returns w updated after a commit. back is that commit as applied to the state after a
// rollback of w.
func (w *waiting) with(back *plan) *waiting {
	next := *w
	next.back = back.edit.done()
	return &next
}

func (s *Store) refuseWaiting(w *waiting, k Key, field, why string) error {
	return refuse(Conflict, k, field, "the change of revision %d by %s is pending until %s (for %s), and %s: confirm it (llcli confirm) or roll it back (llcli rollback --last), then try again; a change with --confirm joins it",
		w.Revision, w.Author, w.Until.Format(time.RFC3339), s.clock.Left(&w.Pending).Round(time.Second), why)
}
