// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/node/policies"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// policySet is the table with the single row that contains all Policies and everything on which
// they depend. The row exists if there are Policies. Unlike a [ruleSet], it reports the objects
// that have changed rather than all of them, because Entities change often and there are many.
type policySet struct {
	*reconcile.Reconciler[datapath.SetName, *policy.State]
	datapath.Table[datapath.SetName, *policy.State]
	n       *Node
	builder *policies.Builder // used by follow only

	fits     datapath.PolicyTable
	isolator policies.Isolator // used by Update only

	// released is closed when the row of an earlier run may be replaced: see MarkInitialized.
	released chan struct{}
	until    time.Time
	hasRow   bool // an earlier run left a row, and this run has not replaced it

	mu       sync.Mutex
	snapshot *state.Snapshot // the last that was received; nil: none
	desired  *policy.State
	groups   *groups // of the desired state
	leaving  bool    // it contains Endpoints that have been deleted
	// inForce is the snapshot as of which the row is in force; nil: unknown.
	inForce *state.Snapshot
	since   *comparison                   // between inForce and snapshot; nil: not computed
	written *policy.State                 // in the table, as of the last update that succeeded; nil: none
	unfit   *policies.Unfit               // what of it is not as desired; nil: nothing
	adopted bool                          // the row of an earlier run is in the table
	broken  uint64                        // how often another program has changed the row
	changed map[state.Key]bool            // objects that changed since the last report, or are reported as not in force
	missing state.Key                     // an undecodable object because of which the row is kept; zero: none
	applied map[string]policies.Endpoints // the subjects of each policy

	reporting sync.Mutex             // held while reporting, so that reports are in order
	reported  map[state.Key]reported // the objects that were last reported as not done
}

// isPolicyKind reports whether objects of a kind are part of the row and of nothing else.
func isPolicyKind(kind string) bool { return slices.Contains(policies.Kinds, kind) }

// policyGroups implements [policies.Groups].
type policyGroups struct{ *groups }

// RevisionOf implements [policies.Groups].
func (g policyGroups) RevisionOf(name datapath.GroupName) uint64 { return g.revisionOf(name) }

// Flatten implements [policies.Groups].
func (g policyGroups) Flatten(name datapath.GroupName, whole *datapath.AddressGroup) state.Key {
	return g.flatten(name, whole, map[datapath.GroupName]struct{}{})
}

// Undecodable implements [policies.Groups].
func (g policyGroups) Undecodable(kind string) []state.Key { return g.addUndecodable(kind) }

// Lack implements [policies.Groups].
func (g policyGroups) Lack(of, missing state.Key, effect string) {
	g.lacking[of] = missing
	g.omitted[of] = fmt.Sprintf("%s, because this version cannot decode %s: %s", effect, missing, undecodableTodo(missing))
}

func newPolicySet(n *Node) *policySet {
	r := &policySet{
		Table: n.opts.Plane.Policies(), fits: n.opts.Plane.Policies(), n: n, released: make(chan struct{}), until: n.opts.PruneNotBefore,
		builder: policies.NewBuilder(n.failsafe.Load), desired: &policy.State{}, groups: &groups{},
		changed: map[state.Key]bool{}, applied: map[string]policies.Endpoints{}, reported: map[state.Key]reported{},
	}
	for _, err := range r.Table.Keys(context.Background()) {
		r.hasRow, r.adopted = true, err == nil // with an error, the table cannot be read
	}
	if !time.Now().Before(r.until) || !r.hasRow {
		close(r.released)
	}
	r.Reconciler = reconcile.New(reconcile.Options[datapath.SetName, *policy.State]{
		Table: r, Log: n.logOf(state.KindPolicy),
		Keep: func(datapath.SetName) bool {
			return slices.ContainsFunc(n.opts.Store.Snapshot().Undecodable(), func(k state.Key) bool { return isPolicyKind(k.Kind) })
		},
		Notify: func(datapath.SetName, Status) { r.note() },
	})
	return r
}

func (r *policySet) isFrozen() bool {
	select {
	case <-r.released:
		return false
	default:
		return true
	}
}

// apply passes a new row to the reconciler if one of the changed objects is relevant.
func (r *policySet) apply(s *state.Snapshot, changed []state.Key) {
	r.mu.Lock()
	relevant := r.snapshot == nil || r.leaving
	for _, k := range changed {
		switch {
		case isPolicyKind(k.Kind):
			relevant, r.changed[k] = true, true
		case k.Kind == state.KindPodNetwork, k.Kind == state.KindBridge && len(r.desired.Policies) > 0, k.Kind == state.KindAddressGroup && r.groups.has(k):
			relevant = true
		case k.Kind == state.KindEndpoint && (len(r.desired.Policies) > 0 || s.RequiresEntity(&state.Endpoint{})):
			relevant = true
		}
	}
	if !relevant {
		if r.inForce == r.snapshot {
			r.inForce = s
		}
		r.snapshot, r.since = s, nil
	}
	r.mu.Unlock()
	if relevant {
		r.replace(s)
		r.report()
	}
}

// replace passes to the reconciler the row that snapshot s desires, unless the row of an earlier
// run is kept.
func (r *policySet) replace(s *state.Snapshot) {
	r.mu.Lock()
	g := newGroups(s, r.groups, nil)
	before := r.desired
	r.mu.Unlock()
	g.omitted = map[state.Key]string{}
	g.addUndecodable(state.KindEntity, state.KindNamespace, state.KindPolicy)
	next, leaving := &policy.State{}, false
	if s.Counts()[state.KindPolicy] > 0 || len(g.lacking) > 0 || policies.HasUnknown(s) {
		next, leaving = r.builder.Build(s, policyGroups{g}, func(endpoint string) bool { return r.n.endpoints.Has(datapath.EndpointName(endpoint)) })
	}
	g.before = nil
	applied := policies.SubjectsOf(r.applied, before, next)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snapshot, r.desired, r.groups, r.leaving, r.since, r.applied = s, next, g, leaving, nil, applied
	r.missing = state.Key{}
	if r.isFrozen() {
		return
	}
	for _, k := range g.lacking {
		if r.hasRow && (r.missing == (state.Key{}) || k.String() < r.missing.String()) {
			r.missing = k // the row of an earlier run may contain what the object desires
		}
	}
	switch {
	case r.isKept():
	case len(next.Policies) > 0:
		r.hasRow = false
		r.Apply(s.Revision, []reconcile.Change[datapath.SetName, *policy.State]{{Key: datapath.NodeSet, Value: next}})
	case r.Has(datapath.NodeSet):
		r.Apply(s.Revision, []reconcile.Change[datapath.SetName, *policy.State]{{Key: datapath.NodeSet, Remove: true}})
	}
}

// isKept reports whether the row of an earlier run is kept. The caller holds r.mu.
func (r *policySet) isKept() bool { return r.missing != state.Key{} }

// isLeaving reports whether the row contains Endpoints that have been deleted.
func (r *policySet) isLeaving() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leaving
}

// MarkInitialized allows the row of an earlier run to be replaced and removed. Until then, it is
// kept if the desired state was lost: a row that lacks policies would admit too much.
func (r *policySet) MarkInitialized() {
	if r.isFrozen() {
		close(r.released)
		r.mu.Lock()
		s := r.snapshot
		r.mu.Unlock()
		if s != nil {
			r.replace(s)
			r.report()
		}
	}
	r.Reconciler.MarkInitialized()
}

// IsSettled reports whether all objects are done.
func (r *policySet) IsSettled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Reconciler.IsSettled() && !r.isFrozen() && !r.isKept() && len(r.groups.omitted) == 0
}

// Update updates the table, and records which Policies are not in force as desired.
func (r *policySet) Update(ctx context.Context, key datapath.SetName, s *policy.State) error {
	is, left, err := r.update(ctx, key, s)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		return err // the previous state stays in force
	}
	if r.written, r.unfit, r.adopted = is, left, false; left != nil {
		return left.Err()
	}
	return nil
}

// update puts a state in force: all of it, or all but the Policies in left.
func (r *policySet) update(ctx context.Context, key datapath.SetName, s *policy.State) (is *policy.State, left *policies.Unfit, err error) {
	r.mu.Lock()
	left, before := r.unfit.Still(s), r.written
	isDue := left == nil || r.unfit.IsDue(s)
	r.mu.Unlock()
	if isDue {
		if left == nil {
			if err = r.Table.Update(ctx, key, s); err == nil {
				return s, nil, nil
			}
		}
		// Beside tables that are still in use, there is less room than for a new image.
		if left != nil || errors.Is(err, datapath.ErrCapacity) {
			if err = r.fits.Fits(s); err == nil {
				err = r.Table.Update(ctx, key, s)
			}
			if err == nil {
				return s, nil, nil
			}
		}
		if left = policies.FindUnfit(s, before, err, r.fits.Fits); left == nil {
			return nil, nil, err
		}
	}
	is = left.Isolate(&r.isolator, s)
	if err := r.Table.Update(ctx, key, is); err != nil {
		return nil, nil, errors.Join(left.Err(), err)
	}
	return is, left, nil
}

// Delete removes the row from the table.
func (r *policySet) Delete(ctx context.Context, key datapath.SetName) error {
	err := r.Table.Delete(ctx, key)
	if err == nil {
		r.mu.Lock()
		r.written, r.unfit, r.adopted = nil, nil, false
		r.mu.Unlock()
	}
	return err
}

// Verify verifies the table. After an external change, the row does not count as being in force.
func (r *policySet) Verify(ctx context.Context, key datapath.SetName) (bool, error) {
	intact, err := r.Table.Verify(ctx, key)
	if !intact || err != nil {
		r.mu.Lock()
		r.inForce, r.since = nil, nil
		r.broken++
		r.mu.Unlock()
	}
	return intact, err
}

// note records whether the desired row is in force after an attempt, and reports what changed.
func (r *policySet) note() {
	r.mu.Lock()
	if s, ok := r.Status(datapath.NodeSet); ok && s.State == reconcile.Done || r.unfit.IsIn(r.desired) {
		r.inForce, r.since = r.snapshot, nil
	}
	r.mu.Unlock()
	r.report()
}

// report reports the objects whose status has changed or may have changed.
func (r *policySet) report() {
	r.reporting.Lock()
	defer r.reporting.Unlock()
	r.mu.Lock()
	s, failed := r.snapshot, false
	if is, ok := r.Status(datapath.NodeSet); ok {
		failed = is.Failures > 0
	}
	changed := r.changed
	r.changed = map[state.Key]bool{}
	r.mu.Unlock()
	for kind := range slices.Values(policies.Kinds) {
		if !failed {
			break
		}
		for o := range s.After(kind, "") {
			changed[o.Key] = true
		}
	}
	maps.DeleteFunc(changed, func(k state.Key, _ bool) bool { return r.reportOne(s, k) })
	r.mu.Lock()
	maps.Copy(r.changed, changed)
	r.mu.Unlock()
	r.n.policiesChanged(r)
}

// reportOne reports the status of an object, unless the last report was the same, and returns
// whether the object is done.
func (r *policySet) reportOne(s *state.Snapshot, k state.Key) (done bool) {
	o, exists := s.Get(k)
	if !exists {
		if done = r.isDeleted(k); done {
			delete(r.reported, k)
			r.n.report(k, Status{State: reconcile.Removed, Revision: s.Revision})
		}
		return done
	}
	is, version := r.n.applied(o)
	done = version != 0 && is.State == reconcile.Done
	now := reported{is, version}
	if version == 0 || is.IsUntried() || !done && r.reported[k] == now {
		return done
	}
	if r.reported[k] = now; done {
		delete(r.reported, k)
	}
	r.n.reportRow(k, is)
	return done
}
