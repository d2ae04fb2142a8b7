// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/tick"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Evaluator compares objects with the state of the node: attached devices, links, forwarding,
// backends and neighbours. A row in the data plane alone does not make an object Ready. All of its
// methods are safe for concurrent use; Run must be called only once.
type Evaluator struct {
	opts  Options
	dirty chan struct{}

	mu      sync.Mutex
	world   *world                  // as it was last read; nil: not read, or not kept up to date
	unmet   map[state.Key]condition // objects with a message, as of the last pass
	since   map[state.Key]time.Time // when rows that depend on reachability were applied
	updated chan struct{}           // closed and replaced after each pass

	reporting sync.Mutex // held while reporting, so that reports are in order
	reported  map[state.Key]string
}

// New returns an Evaluator. Before Run, it evaluates the condition of an object only when a method
// needs it.
func New(o Options) *Evaluator {
	return &Evaluator{
		opts: o, dirty: make(chan struct{}, 1), unmet: map[state.Key]condition{}, updated: make(chan struct{}),
		since:    map[state.Key]time.Time{},
		reported: map[state.Key]string{},
	}
}

// Trigger requests an evaluation of all conditions soon.
func (e *Evaluator) Trigger() {
	select {
	case e.dirty <- struct{}{}:
	default:
	}
}

// readInterval is how often the node's state is read while there are objects, to detect changes for
// which there is no notification.
const readInterval = time.Second

// leastPause is the minimum time between two evaluations, so that a burst of changes costs little.
const leastPause = 20 * time.Millisecond

// Run evaluates all conditions after every change to the node or to an object, until ctx ends.
func (e *Evaluator) Run(ctx context.Context) {
	var next time.Time // earliest start of the next evaluation
	for {
		changed := true
		select {
		case <-e.dirty:
		case <-e.nextRead():
			changed = false
		case <-ctx.Done():
			return
		}
		if rest := time.Until(next); rest > 0 {
			select {
			case <-time.After(rest):
			case <-ctx.Done():
				return
			}
		}
		begin := time.Now()
		e.mu.Lock()
		before := e.world
		e.mu.Unlock()
		if now := e.readNode(); changed || !now.equal(before) {
			e.pass()
		}
		end := time.Now()
		next = end.Add(min(max(4*end.Sub(begin), leastPause), readInterval))
	}
}

// nextRead returns a channel that receives when the state of the node must be read again: never while
// there are no objects, since a change to an object triggers an evaluation.
func (e *Evaluator) nextRead() <-chan time.Time {
	if e.opts.Store.Snapshot().Len() > 0 {
		return tick.After(readInterval)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.world = nil
	return nil
}

// readNode reads the state of the node, and returns it.
func (e *Evaluator) readNode() *world {
	e.mu.Lock()
	before := e.world
	e.mu.Unlock()
	now := readWorld(&e.opts, before)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.world = now
	return now
}

// current returns the state of the node that was last read, indexed for a snapshot.
func (e *Evaluator) current(s *state.Snapshot) *world {
	e.mu.Lock()
	w := e.world
	e.mu.Unlock()
	if w == nil {
		w = e.readNode()
	}
	if w.revision != s.Revision {
		fresh := *w
		fresh.index(s)
		w = &fresh
		e.mu.Lock()
		if e.world != nil && e.world.revision < s.Revision {
			e.world = w
		}
		e.mu.Unlock()
	}
	return w
}

// of returns the condition of an object.
func (e *Evaluator) of(o *state.Object, s *state.Snapshot) condition {
	w := e.current(s)
	if e.isUnchecked(o, s, w) {
		return condition{message: "reachability has not been checked yet", quiet: true, untried: true}
	}
	return w.of(o, s)
}

// of returns the condition of an object, given the reachability that was last read.
func (w *world) of(o *state.Object, s *state.Snapshot) condition {
	switch v := o.Value.(type) {
	case *state.FirewallRule:
		return w.ofRule(v)
	case *state.NAT:
		return w.ofNAT(v, o.Revision)
	case *state.Interface:
		return w.ofInterface(o.Name, v)
	case *state.Bridge:
		return w.ofBridge(o.Key, v)
	case *state.Service:
		return w.ofService(o, v)
	case *state.Route:
		return w.ofRoute(v)
	case *state.PodNetwork:
		return w.ofPodNetwork(v)
	case *state.Peer:
		return w.ofPeer(o.Name, v)
	case *state.Tunnel:
		return w.ofTunnel(o.Name)
	case *state.Endpoint:
		return w.ofEndpoint(o.Name, v)
	case *state.AddressGroup:
		return w.ofGroup(datapath.GroupName(o.Name))
	case *state.Mirror:
		return w.ofMirror(o.Name, v, s)
	case *state.Policy:
		return w.ofPolicy(o.Name, v, s)
	case *state.Entity:
		return w.ofEntity(v, s)
	}
	return condition{}
}

// isUnchecked reports whether the reachability of an object was read before the object's row was
// applied, so that the current reachability is unknown. A Mirror needs the reachability of its Peer.
func (e *Evaluator) isUnchecked(o *state.Object, s *state.Snapshot, w *world) bool {
	if v, ok := o.Value.(*state.Mirror); ok {
		if o, ok = s.Get(state.Key{Kind: state.KindPeer, Name: string(v.To.Peer)}); !ok {
			return false
		}
	}
	if o.Kind != state.KindRoute && o.Kind != state.KindPeer {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return o.Revision > w.reach.revision || e.since[o.Key].After(w.reach.began)
}

// Status returns the status of an object: s, the status of its rows, combined with its condition.
func (e *Evaluator) Status(k state.Key, s reconcile.Status) reconcile.Status {
	snapshot := e.opts.Store.Snapshot()
	o, ok := snapshot.Get(k)
	if !ok || s.State != reconcile.Done {
		return s
	}
	is := e.of(o, snapshot)
	if is.untried && !is.isMet() {
		e.expect(k)
	}
	return is.apply(s)
}

// expect makes the next pass that finds the condition of an object met, or unmet for good, report
// the status, even if it equals the last report: a client has read another one.
func (e *Evaluator) expect(k state.Key) {
	e.reporting.Lock()
	e.reported[k] = expected
	e.reporting.Unlock()
	e.Trigger()
}

// pass evaluates all conditions, and reports what changed.
func (e *Evaluator) pass() {
	s := e.opts.Store.Snapshot()
	unmet := map[state.Key]condition{}
	seen := map[state.Key]bool{}
	for _, kind := range state.Kinds {
		for o := range s.After(kind, "") {
			if !isChecked(o) {
				continue
			}
			status, ok := e.opts.RowStatus(o.Key)
			if !ok || status.State != reconcile.Done {
				continue
			}
			is := e.of(o, s)
			if is.message != "" {
				unmet[o.Key] = is
			}
			seen[o.Key] = true
			if !is.untried {
				e.report(o.Key, is.apply(status), false)
			}
		}
	}
	e.mu.Lock()
	maps.DeleteFunc(e.since, func(_ state.Key, at time.Time) bool { return at.Before(e.world.reach.began) })
	e.unmet = unmet
	close(e.updated)
	e.updated = make(chan struct{})
	e.mu.Unlock()
	e.reporting.Lock()
	defer e.reporting.Unlock()
	maps.DeleteFunc(e.reported, func(k state.Key, report string) bool {
		_, exists := s.Get(k)
		return !seen[k] && (report != expected || !exists)
	})
}

// ReportRow reports the result of applying a row, combined with the condition of the row's object.
func (e *Evaluator) ReportRow(k state.Key, s reconcile.Status) {
	if k.Kind == state.KindRoute || k.Kind == state.KindPeer {
		e.mu.Lock()
		e.since[k] = time.Now()
		e.mu.Unlock()
	}
	e.Trigger()
	if s.State == reconcile.Done {
		snapshot := e.opts.Store.Snapshot()
		if o, ok := snapshot.Get(k); ok {
			is := e.of(o, snapshot)
			if is.untried || !is.isMet() { // the problem may predate the row
				e.reporting.Lock()
				defer e.reporting.Unlock()
				if pending := is.apply(s); e.reported[k] != reportOf(&pending) {
					e.reported[k] = expected
				}
				return
			}
			s = is.apply(s)
		}
	}
	e.report(k, s, true)
}

// expected, in place of a report, makes the next pass report the status.
const expected = ""

// reportOf returns what a report of status s contains.
func reportOf(s *reconcile.Status) string { return s.State.String() + " " + s.Message }

// report calls StatusChanged unless the last report contained the same status. If always is set, a
// row has changed, so the status is reported even if it is the same, unless it is still Pending for
// the same reason.
func (e *Evaluator) report(k state.Key, s reconcile.Status, always bool) {
	e.reporting.Lock()
	defer e.reporting.Unlock()
	before, known := e.reported[k]
	is := reportOf(&s)
	if (!always || s.State == reconcile.Pending) && known && before == is {
		return
	}
	if !always && !known && s.State == reconcile.Done {
		e.reported[k] = is // the report for its row has included this status
		return
	}
	e.reported[k] = is
	if e.opts.StatusChanged != nil {
		e.opts.StatusChanged(k, s)
	}
}

// NotDone returns at most limit objects with an unmet condition, and how many of them affect
// the health of the daemon, by kind.
func (e *Evaluator) NotDone(limit int) (some map[state.Key]reconcile.Status, byKind map[string]int) {
	e.mu.Lock()
	unmet := e.unmet
	e.mu.Unlock()
	some, byKind = map[state.Key]reconcile.Status{}, map[string]int{}
	for k, is := range unmet {
		if is.ready {
			continue
		}
		if !is.quiet {
			byKind[k.Kind]++
		}
		if len(some) < limit {
			some[k] = is.apply(reconcile.Status{State: reconcile.Done})
		}
	}
	return some, byKind
}

// Noted returns the messages of Ready objects that affect the health of the daemon.
func (e *Evaluator) Noted() map[state.Key]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	noted := map[state.Key]string{}
	for k, is := range e.unmet {
		if is.ready && !is.quiet {
			noted[k] = is.message
		}
	}
	return noted
}

// Wait waits until the conditions of objects are met; it returns the objects whose conditions are
// still unmet.
func (e *Evaluator) Wait(ctx context.Context, keys []state.Key) (left []state.Key) {
	for _, k := range keys {
		if !e.waitOne(ctx, k) {
			left = append(left, k)
		}
	}
	return left
}

func (e *Evaluator) waitOne(ctx context.Context, k state.Key) bool {
	for {
		e.mu.Lock()
		updated := e.updated
		e.mu.Unlock()
		s := e.opts.Store.Snapshot()
		o, ok := s.Get(k)
		if !ok {
			return true
		}
		if is := e.of(o, s); is.isMet() {
			return true
		}
		select {
		case <-updated:
		case <-ctx.Done():
			return false
		}
	}
}
