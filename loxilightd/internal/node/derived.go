// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// derivedMark marks the names of derived rows: rows that are made from objects that have no row of
// their own. Object names never contain it.
const derivedMark = "#"

// rowOf returns the name of a row, or of a rule, that is derived from an object.
func rowOf(k state.Key, what string) string { return k.String() + derivedMark + what }

// ownerOf returns the object from which a row or a rule of a kind is derived.
func ownerOf(kind, row string) state.Key {
	if whose, _, ok := strings.Cut(row, derivedMark); ok {
		if of, name, ok := strings.Cut(whose, "/"); ok {
			return state.Key{Kind: of, Name: name}
		}
	}
	return state.Key{Kind: kind, Name: row}
}

func isDerived[K ~string](row K) bool { return strings.Contains(string(row), derivedMark) }

// rowTable is a table of rows of any type.
type rowTable interface {
	rowStatus(name string) (Status, bool)
	// waitRow waits until a row is done or deleted; it returns false if ctx ends first.
	waitRow(ctx context.Context, name string) bool
}

// rowRef is one row.
type rowRef struct {
	table rowTable
	name  string
}

// need is what an object needs to be Ready.
type need struct {
	object  *state.Object
	rows    []rowRef
	routes  []datapath.RouteName // also needed; there may be many routes
	nat     bool                 // the object also has NAT rules of its own
	problem string               // another reason why the object is not Ready; empty: none
}

// derivation contains everything that is derived from objects without a row of their own.
type derivation struct {
	bridges map[datapath.BridgeName]datapath.Bridge
	links   map[datapath.LinkName]datapath.Link
	ports   map[datapath.PortName]datapath.Port
	routes  map[datapath.RouteName]datapath.Route
	peers   map[datapath.PeerName]datapath.Peer
	needs   map[state.Key]*need
}

func newDerivation() *derivation {
	return &derivation{
		bridges: map[datapath.BridgeName]datapath.Bridge{}, links: map[datapath.LinkName]datapath.Link{},
		ports: map[datapath.PortName]datapath.Port{}, routes: map[datapath.RouteName]datapath.Route{},
		peers: map[datapath.PeerName]datapath.Peer{},
		needs: map[state.Key]*need{},
	}
}

// derived is the part that handles objects without a row of their own. Rows in several tables are
// derived from these objects, and some rows from several objects together.
type derived struct {
	n *Node

	mu      sync.Mutex
	needs   map[state.Key]*need
	gone    map[state.Key][]rowRef // rows of deleted objects
	updated chan struct{}          // closed and replaced when needs or a status changed

	podMTU  podMTU                   // the value with which the rows were derived; used by follow only
	uplinks atomic.Pointer[[]string] // the uplinks with which the rows were derived; written by follow only

	reporting sync.Mutex           // held while reporting, so that reports are in order
	reported  map[state.Key]Status // last reported status; mu is held as well while it changes
}

// derivedKinds are the kinds of objects without a row of their own. derivedFrom are the kinds of
// objects on which derived rows depend.
var (
	derivedKinds = []string{state.KindPodNetwork}
	derivedFrom  = []string{state.KindPodNetwork, state.KindBridge, state.KindInterface, state.KindRoute, state.KindTunnel, state.KindPeer}
)

func newDerived(n *Node) *derived {
	return &derived{n: n, needs: map[state.Key]*need{}, gone: map[state.Key][]rowRef{}, updated: make(chan struct{}), reported: map[state.Key]Status{}}
}

func isDerivedFrom(changed []state.Key) bool {
	return slices.ContainsFunc(changed, func(k state.Key) bool { return slices.Contains(derivedFrom, k.Kind) })
}

// apply derives all rows again, and passes them to the parts that handle the tables.
func (d *derived) apply(s *state.Snapshot) {
	v := newDerivation()
	d.n.derivePods(s, v)
	d.n.deriveBridgePorts(s, v)
	d.n.bridges.derive(s.Revision, v.bridges)
	d.n.links.derive(s.Revision, v.links)
	d.n.ports.derive(s.Revision, v.ports)
	d.n.routes.derive(s.Revision, v.routes)
	d.n.peers.derive(s.Revision, v.peers)
	d.mu.Lock()
	for k, old := range d.needs {
		if v.needs[k] == nil {
			d.gone[k] = old.rows
		}
	}
	for k := range v.needs {
		delete(d.gone, k)
	}
	d.needs = v.needs
	d.mu.Unlock()
}

// status returns the status of an object. While some of its rows are being applied again, it
// returns the last reported status: a caller that waits for a report could otherwise wait forever,
// because a new status that equals the reported one is not reported.
func (d *derived) status(k state.Key) (Status, bool) {
	d.mu.Lock()
	n, before := d.needs[k], d.reported[k]
	d.mu.Unlock()
	if n == nil {
		return Status{}, false
	}
	now := d.of(n)
	if now.IsUntried() && before.Revision == now.Revision {
		return before, true
	}
	return now, true
}

// of returns the worst status of everything that an object needs, with all error messages.
func (d *derived) of(n *need) Status {
	worst := Status{State: reconcile.Done, Revision: n.object.Revision}
	var messages []string
	untried := false
	add := func(s Status) {
		if s.State == reconcile.Done {
			return
		}
		if worst.State == reconcile.Done || s.State == reconcile.Failed && worst.State == reconcile.Pending {
			worst.State, worst.Reason = s.State, s.Reason
		}
		worst.Failures = max(worst.Failures, s.Failures)
		untried = untried || s.State == reconcile.Pending && s.Failures == 0
		if s.Failures > 0 && !slices.Contains(messages, s.Message) {
			messages = append(messages, s.Message)
		}
	}
	for _, r := range n.rows {
		s, ok := r.table.rowStatus(r.name)
		if !ok {
			s = Status{State: reconcile.Pending}
		}
		add(s)
	}
	for _, s := range d.n.routes.notAsWanted(n.routes) {
		add(s)
	}
	if n.nat {
		add(d.n.rules.nat.of(n.object))
	}
	if n.problem != "" {
		add(Status{State: reconcile.Pending, Reason: reconcile.ReasonAbsent, Message: n.problem, Failures: 1})
	}
	if worst.Message = strings.Join(messages, "; "); untried && len(messages) == 0 {
		worst.Message = "not applied yet"
	}
	if untried && worst.State == reconcile.Pending {
		worst.Failures = 0 // the status will still change
	}
	return worst
}

// reportAll reports every object whose status changed.
func (d *derived) reportAll() {
	d.reporting.Lock()
	defer d.reporting.Unlock()
	d.mu.Lock()
	needs := d.needs
	close(d.updated)
	d.updated = make(chan struct{})
	d.mu.Unlock()
	for k, n := range needs {
		now := d.of(n)
		if now.IsUntried() {
			continue // not tried yet
		}
		before, known := d.reported[k]
		d.note(k, &now)
		if known && before.State == now.State && before.Message == now.Message && before.Revision == now.Revision {
			continue
		}
		d.n.report(k, now)
	}
	for k := range d.reported {
		if needs[k] == nil {
			d.note(k, nil)
			d.n.report(k, Status{State: reconcile.Removed})
		}
	}
}

// note records the reported status of an object. s is nil if the object was deleted.
func (d *derived) note(k state.Key, s *Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s == nil {
		delete(d.reported, k)
	} else {
		d.reported[k] = *s
	}
}

func (d *derived) notDone(limit int) (some map[state.Key]Status, count int) {
	some = map[state.Key]Status{}
	d.mu.Lock()
	needs := d.needs
	d.mu.Unlock()
	for k, n := range needs {
		s := d.of(n)
		if s.State == reconcile.Done {
			continue
		}
		count++
		if len(some) < limit {
			some[k] = s
		}
	}
	return some, count
}

func (d *derived) wait(ctx context.Context, revision uint64, keys []state.Key) (left []state.Key) {
	for _, k := range keys {
		if !d.waitOne(ctx, revision, k) {
			left = append(left, k)
		}
	}
	return left
}

// waitOne waits until an object is done or deleted; it returns false if ctx ends first.
func (d *derived) waitOne(ctx context.Context, revision uint64, k state.Key) bool {
	d.mu.Lock()
	n, rows := d.needs[k], d.gone[k]
	d.mu.Unlock()
	if n != nil {
		rows = n.rows
	}
	for _, r := range rows {
		if !r.table.waitRow(ctx, r.name) {
			return false
		}
	}
	if n != nil && len(n.routes) > 0 {
		if _, err := d.n.routes.WaitDone(ctx, revision, n.routes...); err != nil {
			return false
		}
	}
	if (n == nil || n.nat && !d.n.rules.nat.isFrozen()) && d.n.rules.nat.waitDone(ctx, revision) {
		return false
	}
	for {
		d.mu.Lock()
		n, updated := d.needs[k], d.updated
		d.mu.Unlock()
		if n == nil || d.of(n).State == reconcile.Done {
			return true
		}
		select {
		case <-updated:
		case <-ctx.Done():
			return false
		}
	}
}

// Run, Trigger, MarkInitialized, Repairs and synced do nothing: the parts that handle the tables do
// this.
func (d *derived) Run(context.Context)       {}
func (d *derived) Trigger()                  {}
func (d *derived) MarkInitialized()          {}
func (d *derived) Repairs() uint64           { return 0 }
func (d *derived) synced() []<-chan struct{} { return nil }

// derive sets the desired derived rows; the next apply passes differences to the reconciler.
func (r *rows[K, V]) derive(revision uint64, wanted map[K]V) {
	for k, v := range wanted {
		if old, ok := r.wanted[k]; !ok || !reflect.DeepEqual(old, v) {
			r.queued[k] = reconcile.Change[K, V]{Key: k, Value: v}
		}
	}
	for k := range r.wanted {
		if _, ok := wanted[k]; !ok {
			r.queued[k] = reconcile.Change[K, V]{Key: k, Remove: true}
		}
	}
	r.wanted = wanted
	names := slices.Collect(maps.Keys(wanted))
	r.names.Store(&names)
}

// takeDerived removes and returns the queued changes to derived rows: deletions if gone is set,
// else all other changes.
func (r *rows[K, V]) takeDerived(gone bool) (changes []reconcile.Change[K, V]) {
	for k, c := range r.queued {
		if c.Remove == gone {
			changes = append(changes, c)
			delete(r.queued, k)
		}
	}
	return changes
}

func (r *rows[K, V]) rowStatus(name string) (Status, bool) { return r.Status(K(name)) }

func (r *rows[K, V]) waitRow(ctx context.Context, name string) bool {
	_, err := r.WaitDone(ctx, 0, K(name))
	return err == nil
}

// notAsWanted returns the first few of the named rows that are not done. It is fast if all rows in
// the table are done.
func (r *rows[K, V]) notAsWanted(names []K) (some []Status) {
	const few = 3
	if c := r.Counts(); len(names) == 0 || c[reconcile.Pending]+c[reconcile.Failed] == 0 {
		return nil
	}
	for _, name := range names {
		if s, ok := r.Status(name); ok && s.State != reconcile.Done {
			if some = append(some, s); len(some) == few {
				break
			}
		}
	}
	return some
}

// derivedNotDone counts the derived rows that are not done.
func (r *rows[K, V]) derivedNotDone() (count int) {
	names := r.names.Load()
	if names == nil {
		return 0
	}
	for _, k := range *names {
		if s, ok := r.Status(k); ok && s.State != reconcile.Done {
			count++
		}
	}
	return count
}
