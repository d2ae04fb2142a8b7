// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Every object has rows in the tables that byKind lists for its kind: one row of its own, rows that
// it shares with other objects, or its part of a set. The status of an object is the worst status of
// its rows.

// rowTable is a table of the data plane with the rows of objects of some kinds.
type rowTable interface {
	Run(ctx context.Context)
	Trigger()
	MarkInitialized()
	Repairs() uint64
	Synced() <-chan struct{}
	RemovingCount() int

	// check appends to list the statuses of an object's rows that are not done. The version changes
	// with the object, with the groups that it refers to, and with each external change of a set of
	// rules; 0: the table has not received the object yet.
	check(o *state.Object, list []Status) (_ []Status, version uint64)
	// isDeleted reports whether the table no longer contains what it contained because of an object
	// that has been deleted from the store.
	isDeleted(k state.Key) bool
	// IsSettled reports whether all rows are done.
	IsSettled() bool
}

// sharedKinds are the kinds whose objects share rows: the result for one row may be a result for
// each object of these kinds.
var sharedKinds = []string{state.KindFirewallRule, state.KindNAT, state.KindAddressGroup, state.KindPodNetwork}

// reported is the last reported status of an object that shares rows.
type reported struct {
	Status
	version uint64
}

// of returns the status of an object, and its version as [rowTable] defines it. The version is 0 if
// a table has not received the object yet. An object whose rows in the tables are outdated is
// Pending.
func (n *Node) of(o *state.Object) (s Status, version uint64) {
	outdated := n.isOutdated(o) // before the rows are read, because they may be replaced in the meantime
	s, version = n.applied(o)
	if outdated && version != 0 && s.State == reconcile.Done {
		s.State, s.Message = reconcile.Pending, "a change to another object is being applied to it"
	}
	return s, version
}

// applied is like of, for the rows that the tables have received.
func (n *Node) applied(o *state.Object) (s Status, version uint64) {
	var list []Status
	for _, t := range n.byKind[o.Kind] {
		var v uint64
		if list, v = t.check(o, list); v == 0 {
			return Status{}, 0
		}
		version += v
	}
	s = worst(list)
	s.Revision = o.Revision
	return s, version
}

// worst returns the worst status in a list of statuses that are not done, with all error messages.
func worst(list []Status) Status {
	switch len(list) {
	case 0:
		return Status{State: reconcile.Done}
	case 1:
		return list[0]
	}
	worst := list[0]
	var messages []string
	untried := false
	for _, s := range list {
		if s.State == reconcile.Failed && worst.State == reconcile.Pending {
			worst.State, worst.Reason = s.State, s.Reason
		}
		worst.Failures = max(worst.Failures, s.Failures)
		untried = untried || s.IsUntried()
		if s.Failures > 0 && !slices.Contains(messages, s.Message) {
			messages = append(messages, s.Message)
		}
	}
	if worst.Message = strings.Join(messages, "; "); len(messages) == 0 {
		worst.Message = "not applied yet"
	}
	if untried && worst.State == reconcile.Pending {
		worst.Failures = 0 // the status will still change
	}
	return worst
}

// rowStatus is like Status, but considers only an object's rows.
func (n *Node) rowStatus(k state.Key) (Status, bool) {
	o, ok := n.opts.Store.Snapshot().Get(k)
	if !ok {
		return Status{}, false
	}
	s, version := n.of(o)
	return s, version != 0
}

// shownStatus is like rowStatus, for clients: if the status will change by itself, the next one is
// reported, even if it equals the last that was reported.
func (n *Node) shownStatus(k state.Key) (Status, bool) {
	s, ok := n.rowStatus(k)
	if !ok || !s.IsUntried() {
		return s, ok
	}
	n.owe(k, true)
	if s, ok = n.rowStatus(k); ok && !s.IsUntried() {
		n.reportOwed(k) // the report may have been sent before it was owed
	}
	return s, ok
}

// reportRow reports the result s for the row of an object. It reports the status later if the row
// is outdated already.
func (n *Node) reportRow(k state.Key, s Status) {
	if o, ok := n.opts.Store.Snapshot().Get(k); ok && s.State == reconcile.Done && n.isOutdated(o) {
		if n.owe(k, true); n.isOutdated(o) {
			return
		}
	}
	n.report(k, s)
}

// report reports the status of an object's rows.
func (n *Node) report(k state.Key, s Status) {
	n.mu.Lock()
	delete(n.owed, k)
	n.mu.Unlock()
	n.conditions.ReportRow(k, s)
}

// owe records that the next final status of an object must be reported: in any case if always is
// set, otherwise if it differs from the last report.
func (n *Node) owe(k state.Key, always bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.owed[k] = n.owed[k] || always
}

// reportOwed reports the statuses that are owed and final, of the objects in keys.
func (n *Node) reportOwed(keys ...state.Key) {
	n.reporting.Lock()
	defer n.reporting.Unlock()
	for _, k := range keys {
		n.mu.Lock()
		_, owed := n.owed[k]
		n.mu.Unlock()
		o, exists := n.opts.Store.Snapshot().Get(k)
		if !owed || !exists { // the deletion of an object is reported anyway
			continue
		}
		if is, version := n.of(o); version != 0 && !is.IsUntried() && n.note(k, reported{is, version}) {
			n.report(k, is)
		}
	}
}

// rowsChanged reports all objects whose status has changed along with rows of a table.
func (n *Node) rowsChanged(t rowTable) {
	if t == rowTable(n.endpoints) && n.policies.isLeaving() {
		signal(n.world)
	}
	n.reporting.Lock()
	defer n.reporting.Unlock()
	n.wake()
	s := n.opts.Store.Snapshot()
	for _, kind := range sharedKinds {
		if !slices.Contains(n.byKind[kind], t) {
			continue
		}
		for o := range s.After(kind, "") {
			is, version := n.of(o)
			if version != 0 && is.IsUntried() && n.isOutdated(o) {
				n.owe(o.Key, false)
				is, version = n.of(o) // the rows may have been applied in the meantime
			}
			if version != 0 && !is.IsUntried() && n.note(o.Key, reported{is, version}) {
				n.report(o.Key, is)
			}
		}
		for name := range n.reported[kind] {
			k := state.Key{Kind: kind, Name: name}
			if _, ok := s.Get(k); !ok {
				n.mu.Lock()
				delete(n.reported[kind], name)
				n.mu.Unlock()
				n.report(k, Status{State: reconcile.Removed, Revision: s.Revision})
			}
		}
	}
}

// policiesChanged reports all objects whose status has changed along with the row of policies,
// except those that are part of the row.
func (n *Node) policiesChanged(r *policySet) {
	n.rowsChanged(r)
	n.mu.Lock()
	owed := slices.Collect(maps.Keys(n.owed))
	n.mu.Unlock()
	n.reportOwed(slices.DeleteFunc(owed, func(k state.Key) bool { return !isPolicyKind(k.Kind) })...)
	n.conditions.Trigger()
}

// note records the status of an object, and returns whether it must be reported. The reports of
// objects that share no rows are recorded elsewhere.
func (n *Node) note(k state.Key, now reported) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	always := n.owed[k]
	delete(n.owed, k)
	if n.reported[k.Kind] == nil {
		return always
	}
	before, known := n.reported[k.Kind][k.Name]
	n.reported[k.Kind][k.Name] = now
	return always || !known || before.version != now.version || before.State != now.State || before.Message != now.Message
}

// wake makes all waiters look again.
func (n *Node) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.woken)
	n.woken = make(chan struct{})
}

// waitUntil waits until ok returns true; it returns false if ctx ends first.
func (n *Node) waitUntil(ctx context.Context, ok func() bool) bool {
	for {
		n.mu.Lock()
		woken := n.woken
		n.mu.Unlock()
		if ok() {
			return true
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return ok()
		}
	}
}

// Wait returns once all objects in keys are done in the data plane at revision or a later one. If
// ctx ends first, it returns the remaining objects and the error from ctx.
func (n *Node) Wait(ctx context.Context, revision uint64, keys []state.Key) ([]state.Key, error) {
	if !n.waitUntil(ctx, func() bool { return n.received() >= revision }) {
		return keys, ctx.Err()
	}
	var applied, left []state.Key
	for _, k := range keys {
		if n.waitUntil(ctx, func() bool { return n.isDone(k) }) {
			applied = append(applied, k)
		} else {
			left = append(left, k)
		}
	}
	left = append(left, n.conditions.Wait(ctx, applied)...)
	if len(left) == 0 {
		return nil, nil
	}
	return left, ctx.Err()
}

// isDone reports whether an object is done, or is deleted from all tables.
func (n *Node) isDone(k state.Key) bool {
	if o, ok := n.opts.Store.Snapshot().Get(k); ok {
		s, version := n.applied(o) // later changes to other objects do not matter
		return version != 0 && s.State == reconcile.Done
	}
	return !slices.ContainsFunc(n.byKind[k.Kind], func(t rowTable) bool { return !t.isDeleted(k) })
}

// keeps reports whether a row that is not desired stays in its table, because it may belong to an
// object that this version cannot decode. Such an object stays in the store for another version.
func (n *Node) keeps(kind, row string) bool {
	return slices.ContainsFunc(n.opts.Store.Snapshot().Undecodable(), func(k state.Key) bool {
		return k == ownerOf(kind, row) || k.Kind == state.KindPodNetwork && isDerived(row)
	})
}
