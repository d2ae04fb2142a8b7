// SPDX-License-Identifier: Apache-2.0

package state

import (
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// plan is a transaction evaluated against the state that it will change.
type plan struct {
	base     *Snapshot
	edit     *editor
	changes  []Change
	puts     []*Object // created and updated objects, as they will be; opaque objects only in a rollback
	replaced []*Object // deleted and updated objects, as they were
	dropped  []*Object // deleted objects, as they were
	cost     datapath.Cost
	counts   map[string]int // objects by kind, without opaque objects
	formers  []former       // the changed objects, as they were

	warnings []string

	merged           bool // host and switch are the same network namespace
	isRollback       bool
	restoredRevision uint64 // the revision that the rollback restores
	restored         *table // for an undo, the state after it; nil: not an undo
	// back is the same transaction applied to the state after a rollback of the waiting change;
	// nil: no change is waiting, or this plan is that rollback.
	back *plan
}

// plan evaluates t. It changes nothing. If s.writer is not held, the store may change in the
// meantime; the plan may then mix two revisions.
func (s *Store) plan(t *Transaction) (*plan, error) {
	base := s.Snapshot()
	if t.IfRevision != nil && *t.IfRevision != base.Revision {
		return nil, refuse(Conflict, Key{}, "", "the daemon is at revision %d, not %d: read the objects again first", base.Revision, *t.IfRevision)
	}
	p := &plan{base: base, edit: base.table.edit(), cost: base.cost, counts: base.Counts(),
		merged: s.merged, isRollback: t.isRollback, restoredRevision: t.restoredRevision, restored: t.restored}
	named := make(map[Key]struct{}, len(t.Put)+len(t.Delete))
	for _, o := range t.Put {
		if err := p.put(o, named); err != nil {
			return nil, err
		}
	}
	for _, k := range t.Delete {
		if err := p.delete(k, t.Owner, named); err != nil {
			return nil, err
		}
	}
	if t.Replace != nil {
		p.prune(t.Replace, named)
	}
	if err := p.check(s.holder, s.merged && !t.isRollback); err != nil {
		return nil, err
	}
	if err := p.checkDetached(t); err != nil {
		return nil, err
	}
	if !t.isRollback {
		if err := s.checkCapacity(p); err != nil {
			return nil, err
		}
	}
	if t.Confirm > 0 {
		if err := p.checkConfirmed(); err != nil {
			return nil, err
		}
	}
	if !t.revertsPending {
		if err := s.checkWaiting(p, t.Confirm); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func name(k Key, named map[Key]struct{}) error {
	if _, twice := named[k]; twice {
		return refuse(Invalid, k, "", "appears twice in one transaction")
	}
	named[k] = struct{}{}
	return nil
}

func (p *plan) put(o *Object, named map[Key]struct{}) error {
	if err := name(o.Key, named); err != nil {
		return err
	}
	old := p.edit.find(o.Key)
	if old != nil && old.Owner != o.Owner && !p.isRollback {
		todo := ": change it there, or delete it first"
		if old.isOpaque() {
			todo = ", and is not understood by this version: delete it first"
		}
		return refuse(Conflict, o.Key, "owner", "belongs to owner %s, not %s%s", old.Owner, o.Owner, todo)
	}
	change := Change{Key: o.Key, Action: Created}
	switch {
	case old == nil:
	case old.same(o) && (o.isOpaque() || !old.isOpaque()):
		change.Action = Unchanged
		p.changes = append(p.changes, change)
		return nil
	default:
		if !old.isOpaque() {
			change.Action = Updated
		}
		p.release(old)
	}
	p.formers = append(p.formers, former{o.Key, old})
	c := *o
	p.add(&c)
	p.changes = append(p.changes, change)
	return nil
}

// add adds o to the future state.
func (p *plan) add(o *Object) {
	p.cost = p.cost.Add(o.Value.cost())
	if !o.isOpaque() {
		p.counts[o.Kind]++
	}
	p.edit.put(o)
	p.puts = append(p.puts, o)
}

// release frees the resources of an object.
func (p *plan) release(o *Object) {
	p.cost = p.cost.Sub(o.Value.cost())
	if !o.isOpaque() {
		p.counts[o.Kind]--
	}
	if p.counts[o.Kind] == 0 {
		delete(p.counts, o.Kind)
	}
	p.replaced = append(p.replaced, o)
}

func (p *plan) delete(k Key, owner string, named map[Key]struct{}) error {
	if err := name(k, named); err != nil {
		return err
	}
	old := p.edit.find(k)
	if old == nil {
		p.changes = append(p.changes, Change{Key: k, Action: Absent})
		return nil
	}
	if old.Owner == OwnerFile && owner != OwnerFile {
		return refuse(Conflict, k, "owner", "is defined in the object files: remove it there, then reload")
	}
	p.drop(old)
	return nil
}

func (p *plan) drop(old *Object) {
	p.dropped = append(p.dropped, old)
	p.formers = append(p.formers, former{old.Key, old})
	p.changes = append(p.changes, Change{Key: old.Key, Action: Deleted})
	p.edit.remove(old.Key)
	p.release(old)
}

// prune deletes the objects in scope whose keys are not in the set named.
func (p *plan) prune(scope *Scope, named map[Key]struct{}) {
	kinds := slices.Compact(slices.Sorted(slices.Values(scope.Kinds)))
	for _, kind := range kinds {
		for o := range p.base.table.whole(Key{kind, ""}) {
			if o.Kind != kind {
				break
			}
			if _, ok := named[o.Key]; !ok && o.Owner == scope.Owner {
				p.drop(o)
			}
		}
	}
}

// check rejects a plan that leads to conflicting objects, or to objects that refer to missing
// objects. holder returns the previous holder of a claim. merged means that host and switch are the
// same network namespace.
func (p *plan) check(holder func(claim) (Key, bool), merged bool) error {
	if err := p.checkClaims(holder, merged); err != nil {
		return err
	}
	for _, check := range []func() error{
		p.checkGroups, p.checkReferences, p.checkPods, p.checkSubnets, p.checkTunnelled, p.checkTunnels, p.checkOwned, p.checkMirrors, p.checkEntities,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// holder returns the object that claims c.
func (s *Store) holder(c claim) (k Key, held bool) {
	s.claiming.RLock()
	defer s.claiming.RUnlock()
	k, held = s.claims[c]
	return k, held
}

// checkClaims rejects a plan in which two objects have the same claim; see check.
func (p *plan) checkClaims(before func(claim) (Key, bool), merged bool) error {
	claimed := make(map[claim]Key, len(p.puts))
	// If o itself already had a claim, it is not necessary to search for it in the claims of o.
	holder := func(o *Object, c claim) (Key, bool) {
		if k, ok := claimed[c]; ok {
			return k, true
		}
		k, ok := before(c)
		return k, ok && (k == o.Key || p.holds(k, c))
	}
	var err error
	for _, o := range p.puts {
		o.Value.claims(func(c claim, field func() string) {
			if err != nil {
				return
			}
			if k, ok := holder(o, c); ok && k != o.Key {
				err = refuse(Conflict, o.Key, field(), "%s belongs to %s already", c, k)
			} else if k, ok := holder(o, c.elsewhere()); ok && merged {
				err = refuse(Conflict, o.Key, field(), "%s belongs to %s already, which has netns %s; with switch.namespace: host both are one network namespace: delete one of the two",
					c, k, c.elsewhere().netns())
			}
			claimed[c] = o.Key
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// holds reports whether the object with key k still has the claim c after the plan.
func (p *plan) holds(k Key, c claim) (held bool) {
	if o := p.edit.get(k); o != nil {
		o.Value.claims(func(d claim, _ func() string) { held = held || c == d })
	}
	return held
}

// checkCapacity rejects a plan that overfills a table. Objects that exceed a limit which was
// lowered later may stay and may shrink.
func (s *Store) checkCapacity(p *plan) error {
	if err := p.checkMost("FirewallRules", "delete or merge some", datapath.MaxFirewallRules, func(c datapath.Cost) int { return c.FirewallRules }); err != nil {
		return err
	}
	if err := p.checkMost("NAT rules", "delete some, or raise tables.rules in the configuration: a 16th of it is the limit",
		int(s.tables.MaxNATs()), func(c datapath.Cost) int { return c.NATs }); err != nil {
		return err
	}
	if before, after := p.base.table.names(p.base.cost), p.edit.names(p.cost); after > max(datapath.NameMax, before) {
		return refuse(Capacity, p.lastPut(KindPolicy), "", "a node has at most %d names in Policies: %d now, %d with this change; delete some, or use *.NAME for several names", datapath.NameMax, before, after)
	}
	if err := p.checkCounts(); err != nil {
		return err
	}
	for _, t := range []struct {
		name, field string // field is empty if it is not the same for all kinds
		of          func(datapath.Cost) int
		size        uint32
	}{
		{"services", "spec.frontends", func(c datapath.Cost) int { return c.Frontends }, s.tables.Services},
		{"backends", "spec.backends", func(c datapath.Cost) int { return c.Backends }, s.tables.Backends},
		{"ranges", "spec.sourceRanges", func(c datapath.Cost) int { return c.Ranges }, s.tables.Ranges},
		{"rules", "", func(c datapath.Cost) int { return c.Rules }, s.tables.Rules},
		{"prefixes", "", func(c datapath.Cost) int { return c.Prefixes }, s.tables.Prefixes},
		{"entities", "spec.addresses", func(c datapath.Cost) int { return c.Entities }, s.tables.Entities},
	} {
		before, after := t.of(p.base.cost), t.of(p.cost)
		if after <= int(t.size) || after <= before {
			continue
		}
		return refuse(Capacity, p.culprit(t.of, after-max(int(t.size), before)), t.field,
			"table %s is full: %d of %d entries used, %d with this change; delete something, or raise tables.%s in the configuration",
			t.name, before, t.size, after, t.name)
	}
	return nil
}

// checkMost rejects p if it leads to more than limit objects. what names these objects in the
// error, and do is the advice for the user.
func (p *plan) checkMost(what, do string, limit int, of func(datapath.Cost) int) error {
	before, after := of(p.base.cost), of(p.cost)
	if after <= limit || after <= before {
		return nil
	}
	return refuse(Capacity, p.culprit(of, after-max(limit, before)), "",
		"a node has at most %d %s: %d now, %d with this change; %s", limit, what, before, after, do)
}

// culprit returns the first object whose growth, added to the growth by all objects before it,
// exceeds the free space, which the whole plan exceeds by excess entries.
func (p *plan) culprit(of func(datapath.Cost) int, excess int) Key {
	for _, o := range slices.Backward(p.puts) {
		grown := of(o.Value.cost())
		if old, ok := p.base.Get(o.Key); ok {
			grown -= of(old.Value.cost())
		}
		if excess -= grown; excess <= 0 {
			return o.Key
		}
	}
	return Key{}
}
