// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// Transaction is a change that is made whole or not at all.
type Transaction struct {
	Put     []*Object // created or updated; their revision does not matter
	Delete  []Key
	Replace *Scope
	// Owner is on whose behalf objects are deleted. Only [OwnerFile] matters: nobody
	// else deletes what stands in files.
	Owner string

	IfRevision *uint64 // refuse with Conflict unless the store is at this revision; nil: any
	DryRun     bool    // everything but the commit

	// RequestID, if not empty, makes the transaction be carried out at most once,
	// restarts of the daemon included. Answer then makes what a repetition gets.
	RequestID string
	Answer    func(*Result) []byte
}

// Scope makes a transaction absolute: objects of Owner of one of Kinds that Put
// does not name are deleted.
type Scope struct {
	Owner string
	Kinds []string
}

// Result says what became of a transaction.
type Result struct {
	Revision uint64   // after it; as before if nothing changed
	Changes  []Change // in the order of the transaction, deletions of a Scope last
	// Answer is what the transaction of the same RequestID was answered before. If
	// it is set nothing was done now, and the other fields are not.
	Answer []byte
}

// Reason says why a transaction was refused.
type Reason uint8

// The reasons.
const (
	Invalid     Reason = iota // the transaction contradicts itself
	Conflict                  // somebody else holds it, or the revision moved on
	Capacity                  // a table is full
	Unavailable               // it could not be made durable
)

// Refusal is the error of a transaction that was not made.
type Refusal struct {
	Reason  Reason
	Key     Key    // the object at fault; zero: none in particular
	Field   string // of the object; may be empty
	Message string
}

func (r *Refusal) Error() string {
	head := ""
	if r.Key != (Key{}) {
		head = r.Key.String() + ": "
	}
	if r.Field != "" {
		head += r.Field + ": "
	}
	return head + r.Message
}

func refuse(reason Reason, k Key, field, format string, args ...any) *Refusal {
	return &Refusal{reason, k, field, fmt.Sprintf(format, args...)}
}

// plan is a transaction worked out against the state that it is to change.
type plan struct {
	base    *Snapshot
	edit    *editor
	changes []Change
	puts    []*Object // created and updated ones, as they will be
	gone    []*Object // as they were: deleted, or updated
	dropped []*Object // deleted ones, as they were
	cost    datapath.Cost
	counts  map[string]int
	dark    map[Key]*Object // as in the store
	lit     []*Object       // of dark: replaced or deleted
}

// plan works t out. It changes nothing. s.writer is held.
func (s *Store) plan(t *Transaction) (*plan, error) {
	base := s.Snapshot()
	if t.IfRevision != nil && *t.IfRevision != base.Revision {
		return nil, refuse(Conflict, Key{}, "", "the daemon is at revision %d, not %d: look again, then decide", base.Revision, *t.IfRevision)
	}
	p := &plan{base: base, edit: base.table.edit(), cost: base.cost, counts: base.Counts(), dark: s.dark}
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
	if err := s.checkClaims(p); err != nil {
		return nil, err
	}
	if err := p.checkGroups(); err != nil {
		return nil, err
	}
	if err := s.checkCapacity(p); err != nil {
		return nil, err
	}
	return p, nil
}

func name(k Key, named map[Key]struct{}) error {
	if _, twice := named[k]; twice {
		return refuse(Invalid, k, "", "named twice in one transaction")
	}
	named[k] = struct{}{}
	return nil
}

func (p *plan) put(o *Object, named map[Key]struct{}) error {
	if err := name(o.Key, named); err != nil {
		return err
	}
	old := p.edit.get(o.Key)
	if old != nil && old.Owner != o.Owner {
		return refuse(Conflict, o.Key, "owner", "belongs to owner %s, not %s: change it there, or delete it first", old.Owner, o.Owner)
	}
	change := Change{Key: o.Key, Action: Created}
	switch {
	case old == nil:
		p.counts[o.Kind]++
		if dark, ok := p.dark[o.Key]; ok {
			if dark.Owner != o.Owner {
				return refuse(Conflict, o.Key, "owner", "belongs to owner %s, not %s, and is not understood by this version: delete it first", dark.Owner, o.Owner)
			}
			p.lit = append(p.lit, dark)
		}
	case old.same(o):
		change.Action = Unchanged
		p.changes = append(p.changes, change)
		return nil
	default:
		change.Action = Updated
		p.cost = p.cost.Sub(old.Value.cost())
		p.gone = append(p.gone, old)
	}
	c := *o
	p.cost = p.cost.Add(c.Value.cost())
	p.edit.put(&c)
	p.puts = append(p.puts, &c)
	p.changes = append(p.changes, change)
	return nil
}

func (p *plan) delete(k Key, owner string, named map[Key]struct{}) error {
	if err := name(k, named); err != nil {
		return err
	}
	old := p.edit.get(k)
	if old == nil {
		old = p.dark[k]
	}
	if old == nil {
		p.changes = append(p.changes, Change{Key: k, Action: Absent})
		return nil
	}
	if old.Owner == OwnerFile && owner != OwnerFile {
		return refuse(Conflict, k, "owner", "stands in the object files: take it out there, then reload")
	}
	p.drop(old)
	return nil
}

func (p *plan) drop(old *Object) {
	p.dropped = append(p.dropped, old)
	p.changes = append(p.changes, Change{Key: old.Key, Action: Deleted})
	if old.Value == nil {
		p.lit = append(p.lit, old)
		return
	}
	p.edit.remove(old.Key)
	p.cost = p.cost.Sub(old.Value.cost())
	if p.counts[old.Kind]--; p.counts[old.Kind] == 0 {
		delete(p.counts, old.Kind)
	}
	p.gone = append(p.gone, old)
}

// prune deletes what scope covers and nobody named.
func (p *plan) prune(scope *Scope, named map[Key]struct{}) {
	kinds := slices.Compact(slices.Sorted(slices.Values(scope.Kinds)))
	for _, kind := range kinds {
		for o := range p.base.After(kind, "") {
			if _, ok := named[o.Key]; !ok && o.Owner == scope.Owner {
				p.drop(o)
			}
		}
	}
	for k, o := range p.dark {
		if _, ok := named[k]; !ok && o.Owner == scope.Owner && slices.Contains(kinds, k.Kind) {
			p.drop(o)
		}
	}
}

// checkClaims refuses a plan in which two objects claim the same.
func (s *Store) checkClaims(p *plan) error {
	claimed := make(map[claim]string, len(p.puts))
	var err error
	for _, o := range p.puts {
		o.Value.claims(func(c claim, field func() string) {
			if err != nil {
				return
			}
			holder, ok := claimed[c]
			if !ok {
				holder, ok = s.claims[c]
				ok = ok && p.holds(holder, c)
			}
			if ok && holder != o.Name {
				err = refuse(Conflict, o.Key, field(), "%s belongs to %s already", c, Key{c.kind(), holder})
			}
			claimed[c] = o.Name
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// holds says whether the object name still claims c when the plan is carried out.
func (p *plan) holds(name string, c claim) (held bool) {
	o := p.edit.get(Key{c.kind(), name})
	if o == nil {
		return false
	}
	o.Value.claims(func(d claim, _ func() string) { held = held || c == d })
	return held
}

// checkCapacity refuses a plan that makes a table too full. What is over the
// limit already, since the limit was lowered, may stay and may shrink.
func (s *Store) checkCapacity(p *plan) error {
	for _, t := range []struct {
		name, field string // field: empty where it is not the same for all kinds
		of          func(datapath.Cost) int
		size        uint32
	}{
		{"services", "spec.frontends", func(c datapath.Cost) int { return c.Frontends }, s.tables.Services},
		{"backends", "spec.backends", func(c datapath.Cost) int { return c.Backends }, s.tables.Backends},
		{"slots", "spec.backends", func(c datapath.Cost) int { return c.Slots }, s.tables.Slots},
		{"ranges", "spec.sourceRanges", func(c datapath.Cost) int { return c.Ranges }, s.tables.Ranges},
		{"rules", "", func(c datapath.Cost) int { return c.Rules }, s.tables.Rules},
		{"prefixes", "", func(c datapath.Cost) int { return c.Prefixes }, s.tables.Prefixes},
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

// culprit returns the first object with which, and with that of all before it, the
// growth is more than there is room for: excess entries too many in the end.
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

// Answer returns what the transaction of that RequestID was answered; nil if none
// of that id is remembered.
func (s *Store) Answer(requestID string) ([]byte, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	answer, err := s.disk.answer(requestID)
	if err != nil {
		return nil, refuse(Unavailable, Key{}, "", "look up requestID: %v", err)
	}
	return answer, nil
}

// Commit makes t whole, or refuses it with a [*Refusal]. When it returns without
// an error what changed is durable. Safe for concurrent use; one at a time is
// carried out.
func (s *Store) Commit(t *Transaction) (*Result, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if t.RequestID != "" {
		answer, err := s.disk.answer(t.RequestID)
		if err != nil {
			return nil, refuse(Unavailable, Key{}, "", "look up requestID: %v", err)
		}
		if answer != nil {
			return &Result{Answer: answer}, nil
		}
	}
	p, err := s.plan(t)
	if err != nil {
		return nil, err
	}
	result := &Result{Revision: p.base.Revision, Changes: p.changes}
	changed := len(p.puts)+len(p.dropped) > 0
	if t.DryRun || !changed && t.RequestID == "" {
		return result, nil
	}
	if changed {
		result.Revision++
	}
	w := write{
		revision: result.Revision, puts: p.puts, deletes: p.dropped,
		replaced: slices.Concat(p.gone, p.lit), count: p.edit.count + len(s.dark) - len(p.lit),
	}
	for _, o := range p.puts {
		o.Revision = result.Revision
	}
	if t.RequestID != "" {
		w.requestID, w.answer = t.RequestID, t.Answer(result)
	}
	if err := s.disk.write(&w); err != nil {
		return nil, refuse(Unavailable, Key{}, "", "the change could not be made durable, so it was not made: %v", err)
	}
	if changed {
		s.publish(p, result)
	}
	return result, nil
}

// publish makes a durable plan the state. s.writer is held.
func (s *Store) publish(p *plan, result *Result) {
	for _, o := range p.lit {
		delete(s.dark, o.Key)
	}
	for _, o := range p.gone {
		o.Value.claims(func(c claim, _ func() string) {
			if s.claims[c] == o.Name {
				delete(s.claims, c)
			}
		})
	}
	for _, o := range p.puts {
		o.Value.claims(func(c claim, _ func() string) { s.claims[c] = o.Name })
	}
	logged := make([]Change, 0, len(p.puts)+len(p.dropped))
	for _, c := range p.changes {
		if c.Action <= Deleted {
			c.Revision = result.Revision
			logged = append(logged, c)
		}
	}
	snapshot := &Snapshot{Revision: result.Revision, table: p.edit.done(), counts: maps.Clone(p.counts), cost: p.cost}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshot.Store(snapshot)
	s.log.add(logged)
	for w := range s.watches {
		w.add(logged)
	}
}
