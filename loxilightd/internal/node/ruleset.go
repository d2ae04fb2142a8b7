// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ruleSet is the table with the single row that contains all rules of a kind and the groups to which
// they refer. V is a [datapath.FirewallSet] or a [datapath.NATSet].
type ruleSet[V names] struct {
	*reconcile.Reconciler[datapath.SetName, V]
	datapath.RuleTable[V]
	kind    string
	build   func(s *state.Snapshot, groups *groups) (set V, rules int)
	changed func() // called whenever the status of objects may have changed
	frozen  frozen
	// localAddrs returns the addresses of the node itself.
	localAddrs func() []netip.Addr

	mu       sync.Mutex
	snapshot *state.Snapshot // the last that was received; nil: none
	groups   *groups         // of the desired set
	// differing are the objects whose rules differ between the set in force and the desired set
	// although neither they nor groups have changed: the rules depend on other objects too.
	differing map[state.Key]bool
	inForce   uint64               // revision as of which the set is in force; 0: unknown
	faults    map[state.Key]string // errors that single objects caused in the last attempt
	broken    uint64               // how often another program has changed the set
	kept      kept
}

func newRuleSet[V names](n *Node, kind string, table datapath.RuleTable[V], build func(*state.Snapshot, *groups) (V, int)) *ruleSet[V] {
	r := &ruleSet[V]{RuleTable: table, kind: kind, build: build, groups: &groups{}, differing: map[state.Key]bool{},
		localAddrs: n.opts.Plane.Telemetry().LocalAddrs, frozen: frozen{released: make(chan struct{}), until: n.opts.PruneNotBefore}}
	r.changed = func() { n.rowsChanged(r) }
	if !time.Now().Before(n.opts.PruneNotBefore) || !hasRows(table) {
		close(r.frozen.released)
	}
	r.frozen.missing = slices.Sorted(slices.Values(table.Rules()))
	r.Reconciler = reconcile.New(reconcile.Options[datapath.SetName, V]{
		Table: r, Log: n.logOf(kind),
		Keep: func(datapath.SetName) bool {
			return slices.ContainsFunc(n.opts.Store.Snapshot().Undecodable(), func(k state.Key) bool {
				return slices.Contains(n.byKind[k.Kind], rowTable(r))
			})
		},
		Notify: func(datapath.SetName, Status) {
			r.note()
			r.changed()
		},
	})
	return r
}

// apply passes a new set to the reconciler if one of the changed objects is relevant.
func (r *ruleSet[V]) apply(s *state.Snapshot, changed []state.Key) {
	r.mu.Lock()
	relevant := slices.ContainsFunc(changed, func(k state.Key) bool {
		return k.Kind == r.kind || k.Kind == state.KindAddressGroup && r.groups.has(k) || k.Kind == state.KindEndpoint && r.groups.isLabelled()
	})
	if !relevant {
		r.snapshot = s
	}
	r.mu.Unlock()
	if relevant {
		r.make(s)
	} else {
		r.changed()
	}
}

// make passes to the reconciler the set that snapshot s desires, unless the old set is kept.
func (r *ruleSet[V]) make(s *state.Snapshot) {
	if r.isFrozen() {
		r.checkFrozen(s)
	} else {
		r.replace(s)
	}
	r.changed()
}

// replace passes to the reconciler the set that snapshot s desires, unless the set in force has rules
// that this version cannot decode.
func (r *ruleSet[V]) replace(s *state.Snapshot) {
	set, rules, g := r.gather(s)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.take(g)
	if !r.mustKeep(g) {
		r.Apply(s.Revision, []reconcile.Change[datapath.SetName, V]{{Key: datapath.NodeSet, Value: set, Remove: rules == 0}})
	}
}

// gather returns the set that snapshot s desires, how many rules it has, and its groups.
func (r *ruleSet[V]) gather(s *state.Snapshot) (set V, rules int, g *groups) {
	r.mu.Lock()
	g = newGroups(s, r.groups, r.localAddrs)
	r.mu.Unlock()
	set, rules = r.build(s, g)
	g.before = nil
	return set, rules, g
}

// take records what the desired set consists of. The caller holds r.mu.
func (r *ruleSet[V]) take(g *groups) {
	for k := range r.groups.omitted {
		if g.omitted[k] == "" {
			r.differing[k] = true
		}
	}
	if r.groups.snapshot != nil {
		compareMaps(r.differing, r.groups.derived, g.derived)
	}
	r.snapshot, r.groups = g.snapshot, g
}

// localAddrsChanged reports whether rules refer to the node's addresses and these addresses have
// changed.
func (r *ruleSet[V]) localAddrsChanged() bool {
	r.mu.Lock()
	g := r.groups
	r.mu.Unlock()
	return g.isLocal && !slices.Equal(g.local, r.localAddrs())
}

// Update updates the table, and records which objects have caused an error.
func (r *ruleSet[V]) Update(ctx context.Context, key datapath.SetName, set V) error {
	err := r.RuleTable.Update(ctx, key, set)
	faults := map[state.Key]string{}
	r.blame(err, faults)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = faults
	return err
}

// blame finds the objects that caused an error.
func (r *ruleSet[V]) blame(err error, faults map[state.Key]string) {
	switch e := err.(type) {
	case *datapath.RuleError:
		k := ownerOf(r.kind, e.Rule)
		if e.Rule == "" {
			k = state.Key{Kind: state.KindAddressGroup, Name: string(e.Group)}
		}
		faults[k] = e.Err.Error()
	case interface{ Unwrap() error }:
		r.blame(e.Unwrap(), faults)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			r.blame(one, faults)
		}
	}
}

// Verify verifies the table. After an external change, the set does not count as being in force.
func (r *ruleSet[V]) Verify(ctx context.Context, key datapath.SetName) (bool, error) {
	intact, err := r.RuleTable.Verify(ctx, key)
	if !intact || err != nil {
		r.mu.Lock()
		r.inForce = 0
		r.broken++
		r.mu.Unlock()
	}
	return intact, err
}

// note records whether the desired set is in force after an attempt.
func (r *ruleSet[V]) note() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch s, ok := r.Status(datapath.NodeSet); {
	case !ok:
		r.inForce = 0
	case s.State == reconcile.Done:
		r.inForce = s.Revision
		clear(r.differing)
	}
}

// check implements rowTable. While the desired set is not in force, the previous set stays in force.
func (r *ruleSet[V]) check(o *state.Object, list []Status) ([]Status, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.snapshot == nil || o.Revision > r.snapshot.Revision {
		return nil, 0
	}
	s, ok := r.Status(datapath.NodeSet)
	newest := r.groups.latest(o)
	switch omitted := r.groups.omitted[o.Key]; {
	case !r.concerns(o):
	case r.isKept():
		if newest > r.kept.since || r.differing[o.Key] || !r.isKeptWith(o) {
			list = append(list, Status{State: reconcile.Pending, Message: r.keptText(), Failures: 1})
		}
	case omitted != "":
		list = append(list, Status{State: reconcile.Pending, Reason: reconcile.ReasonAbsent, Message: omitted, Failures: 1})
	case r.isFrozen():
		if !r.isStillInForce(o) {
			list = append(list, Status{State: reconcile.Pending, Message: r.waitsFor(), Failures: 1})
		}
	case ok && s.State != reconcile.Done && (newest > r.inForce || r.differing[o.Key]):
		list = append(list, r.blamed(o, s))
	}
	if o.Kind == state.KindAddressGroup {
		newest = o.Revision // rules refer to it, or do not any more
	}
	return list, newest + r.broken
}

// concerns reports whether the set has rules that depend on an object.
func (r *ruleSet[V]) concerns(o *state.Object) bool {
	switch v := o.Value.(type) {
	case *state.AddressGroup:
		return r.groups.has(o.Key)
	case *state.PodNetwork:
		return v.Masquerade
	}
	return true
}

// blamed returns the status s of the set as the status of an object: the message is about the object
// or names a faulty one. The caller holds r.mu.
func (r *ruleSet[V]) blamed(o *state.Object, s Status) Status {
	if s.Failures == 0 || len(r.faults) == 0 {
		return s
	}
	var ok bool
	if s.Message, ok = r.faults[o.Key]; !ok {
		k, fault := r.firstFault()
		s.Message = fmt.Sprintf("not in force, because rules take effect together and %s is faulty: %s", k, fault)
	}
	return s
}

// isDeleted implements rowTable. A deleted AddressGroup is in no set: nothing referred to it.
func (r *ruleSet[V]) isDeleted(k state.Key) bool {
	s, ok := r.Status(datapath.NodeSet)
	r.mu.Lock()
	isKept := r.isKept()
	r.mu.Unlock()
	return k.Kind == state.KindAddressGroup || !r.isFrozen() && !isKept && (ok && s.State == reconcile.Done || !r.Has(datapath.NodeSet))
}

// firstFault returns the first object with an error. The caller holds r.mu.
func (r *ruleSet[V]) firstFault() (first state.Key, fault string) {
	for k, text := range r.faults {
		if first.Name == "" || k.String() < first.String() {
			first, fault = k, text
		}
	}
	return first, fault
}

// trouble returns a message if the set is not done, else the empty string.
func (r *ruleSet[V]) trouble() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isFrozen() {
		return r.waitsFor()
	}
	if r.isKept() {
		return r.keptText()
	}
	s, ok := r.Status(datapath.NodeSet)
	if !ok || s.Failures == 0 {
		return r.standInText()
	}
	return fmt.Sprintf("changes of %s objects are not in force, and the previous rules stay in force: %s", r.kind, s.Message)
}
