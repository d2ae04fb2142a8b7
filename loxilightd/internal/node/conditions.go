// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// condition is a reason why packets do not reach an object although the data plane has the object's
// row. The zero value means that there is no such reason.
type condition struct {
	message string // the missing part, and the command that repairs it
	ready   bool   // the object is Ready nevertheless, so message is only informational
	quiet   bool   // the condition does not affect the health of the daemon
	untried bool   // something that the object needs is still being set up
}

func (c *condition) isMet() bool { return c.message == "" || c.ready }

// joinConditions returns one condition with all messages. It is met if all conditions in the list
// are met, and quiet if all of them are quiet.
func joinConditions(list []condition) condition {
	all := condition{ready: true, quiet: true}
	var messages []string
	final := false // an unmet condition that does not change by itself
	for _, is := range list {
		if is.message == "" {
			continue
		}
		messages = append(messages, is.message)
		all.ready, all.quiet, all.untried = all.ready && is.ready, all.quiet && is.quiet, all.untried || is.untried
		final = final || !is.ready && !is.untried
	}
	if len(messages) == 0 {
		return condition{}
	}
	all.message, all.untried = strings.Join(messages, "; "), all.untried && !final
	return all
}

// conditions compares objects with the state of the node: attached devices, links, forwarding,
// backends and neighbours. A row in the data plane alone does not make an object Ready.
type conditions struct {
	n     *Node
	dirty chan struct{}

	mu      sync.Mutex
	world   *world                  // as it was last read
	unmet   map[state.Key]condition // objects with a message, as of the last pass
	since   map[state.Key]time.Time // when rows that depend on reachability were applied
	updated chan struct{}           // closed and replaced after each pass

	reporting sync.Mutex // held while reporting, so that reports are in order
	reported  map[state.Key]string
}

func newConditions(n *Node) *conditions {
	return &conditions{
		n: n, dirty: make(chan struct{}, 1), unmet: map[state.Key]condition{}, updated: make(chan struct{}),
		since:    map[state.Key]time.Time{},
		reported: map[state.Key]string{},
	}
}

// trigger requests an evaluation of all conditions soon.
func (c *conditions) trigger() {
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

// readInterval is how often the node's state is read, to detect changes for which there is no
// notification.
const readInterval = time.Second

// leastPause is the minimum time between two evaluations, so that a burst of changes costs little.
const leastPause = 20 * time.Millisecond

// run evaluates all conditions after every change to the node or to an object.
func (c *conditions) run(ctx context.Context) {
	ticker := time.NewTicker(readInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		changed := true
		select {
		case <-c.dirty:
		case <-ticker.C:
			changed = false
		case <-ctx.Done():
			return
		}
		begin := time.Now()
		if c.readNode(changed) {
			c.pass()
		}
		pause := time.NewTimer(min(max(4*time.Since(begin), leastPause), readInterval))
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// readNode reads the state of the node, and reports whether conditions may have changed.
func (c *conditions) readNode(changed bool) bool {
	c.mu.Lock()
	before := c.world
	c.mu.Unlock()
	now := c.n.readWorld(before)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.world = now
	return changed || !now.equal(before)
}

// current returns the state of the node that was last read, indexed for a snapshot.
func (c *conditions) current(s *state.Snapshot) *world {
	c.mu.Lock()
	w := c.world
	c.mu.Unlock()
	if w == nil {
		c.readNode(true)
		c.mu.Lock()
		w = c.world
		c.mu.Unlock()
	}
	if w.revision != s.Revision {
		fresh := *w
		fresh.index(s)
		w = &fresh
		c.mu.Lock()
		if c.world.revision < s.Revision {
			c.world = w
		}
		c.mu.Unlock()
	}
	return w
}

// of returns the condition of an object.
func (c *conditions) of(o *state.Object, s *state.Snapshot) condition {
	w := c.current(s)
	if c.isUnchecked(o, w) {
		return condition{message: "reachability has not been checked yet", quiet: true, untried: true}
	}
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
		return w.ofEndpoint(o.Name)
	case *state.AddressGroup:
		return w.ofGroup(datapath.GroupName(o.Name))
	}
	return condition{}
}

// isUnchecked reports whether the reachability of an object was read before the object's row was
// applied, so that the current reachability is unknown.
func (c *conditions) isUnchecked(o *state.Object, w *world) bool {
	if o.Kind != state.KindRoute && o.Kind != state.KindPeer {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return o.Revision > w.reach.revision || c.since[o.Key].After(w.reach.began)
}

// apply returns the status of an object with its condition.
func (c *conditions) apply(k state.Key, s Status) Status {
	snapshot := c.n.opts.Store.Snapshot()
	o, ok := snapshot.Get(k)
	if !ok || s.State != reconcile.Done {
		return s
	}
	is := c.of(o, snapshot)
	return is.apply(s)
}

func (c *condition) apply(s Status) Status {
	if c.message == "" || s.State != reconcile.Done {
		return s
	}
	s.Message = c.message
	if !c.ready {
		s.State, s.Reason, s.Failures = reconcile.Pending, reconcile.ReasonAbsent, 1
	}
	return s
}

// pass evaluates all conditions, and reports what changed.
func (c *conditions) pass() {
	s := c.n.opts.Store.Snapshot()
	unmet := map[state.Key]condition{}
	seen := map[state.Key]bool{}
	for _, kind := range state.Kinds {
		for o := range s.After(kind, "") {
			status, ok := c.n.rowStatus(o.Key)
			if !ok || status.State != reconcile.Done {
				continue
			}
			is := c.of(o, s)
			if is.message != "" {
				unmet[o.Key] = is
			}
			seen[o.Key] = true
			if !is.untried {
				c.report(o.Key, is.apply(status), false)
			}
		}
	}
	c.mu.Lock()
	maps.DeleteFunc(c.since, func(_ state.Key, at time.Time) bool { return at.Before(c.world.reach.began) })
	c.unmet = unmet
	close(c.updated)
	c.updated = make(chan struct{})
	c.mu.Unlock()
	c.reporting.Lock()
	defer c.reporting.Unlock()
	maps.DeleteFunc(c.reported, func(k state.Key, _ string) bool { return !seen[k] })
}

// reportRow reports the result of applying a row, combined with the condition of the row's object.
func (c *conditions) reportRow(k state.Key, s Status) {
	if k.Kind == state.KindRoute || k.Kind == state.KindPeer {
		c.mu.Lock()
		c.since[k] = time.Now()
		c.mu.Unlock()
	}
	c.trigger()
	if s.State == reconcile.Done {
		snapshot := c.n.opts.Store.Snapshot()
		if o, ok := snapshot.Get(k); ok {
			is := c.of(o, snapshot)
			if is.untried || !is.isMet() { // the problem may predate the row
				c.reporting.Lock()
				defer c.reporting.Unlock()
				if pending := is.apply(s); c.reported[k] != reportOf(&pending) {
					c.reported[k] = "" // the next pass reports it
				}
				return
			}
			s = is.apply(s)
		}
	}
	c.report(k, s, true)
}

// reportOf returns what a report of status s contains.
func reportOf(s *Status) string { return s.State.String() + " " + s.Message }

// report calls StatusChanged unless the last report contained the same status. If always is set, a
// row has changed, so the status is reported even if it is the same, unless it is still Pending for
// the same reason.
func (c *conditions) report(k state.Key, s Status, always bool) {
	c.reporting.Lock()
	defer c.reporting.Unlock()
	before, known := c.reported[k]
	is := reportOf(&s)
	if (!always || s.State == reconcile.Pending) && known && before == is {
		return
	}
	if !always && !known && s.State == reconcile.Done {
		c.reported[k] = is // the report for its row has included this status
		return
	}
	c.reported[k] = is
	if c.n.opts.StatusChanged != nil {
		c.n.opts.StatusChanged(k, s)
	}
}

// notDone returns at most limit objects with an unmet condition, and how many of them affect
// the health of the daemon, by kind.
func (c *conditions) notDone(limit int) (some map[state.Key]Status, byKind map[string]int) {
	c.mu.Lock()
	unmet := c.unmet
	c.mu.Unlock()
	some, byKind = map[state.Key]Status{}, map[string]int{}
	for k, is := range unmet {
		if is.ready {
			continue
		}
		if !is.quiet {
			byKind[k.Kind]++
		}
		if len(some) < limit {
			some[k] = is.apply(Status{State: reconcile.Done})
		}
	}
	return some, byKind
}

// noted returns the messages of Ready objects that affect the health of the daemon.
func (c *conditions) noted() map[state.Key]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	noted := map[state.Key]string{}
	for k, is := range c.unmet {
		if is.ready && !is.quiet {
			noted[k] = is.message
		}
	}
	return noted
}

// wait waits until the conditions of objects are met; it returns the objects whose conditions are
// still unmet.
func (c *conditions) wait(ctx context.Context, keys []state.Key) (left []state.Key) {
	for _, k := range keys {
		if !c.waitOne(ctx, k) {
			left = append(left, k)
		}
	}
	return left
}

func (c *conditions) waitOne(ctx context.Context, k state.Key) bool {
	for {
		c.mu.Lock()
		updated := c.updated
		c.mu.Unlock()
		s := c.n.opts.Store.Snapshot()
		o, ok := s.Get(k)
		if !ok {
			return true
		}
		if is := c.of(o, s); is.isMet() {
			return true
		}
		select {
		case <-updated:
		case <-ctx.Done():
			return false
		}
	}
}

// addressed reports whether one of a device's addresses belongs to a family and has more than
// link-local scope.
func addressed(list []netip.Prefix, is4 bool) bool {
	for _, a := range list {
		if a.Addr().Is4() == is4 && !a.Addr().IsLinkLocalUnicast() {
			return true
		}
	}
	return false
}
