// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"math"
	"time"

	"github.com/loxilight/loxilight/loxilightd/internal/health"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Status is the status of an object.
type Status = reconcile.Status

// Status returns the result of applying an object's current spec; it returns false if the data
// plane has not received the object yet. The result of an earlier spec does not count.
func (n *Node) Status(k state.Key) (Status, bool) {
	s, ok := n.rowStatus(k)
	return n.conditions.Status(k, s), ok
}

// rowStatus is like Status, but considers only an object's rows.
func (n *Node) rowStatus(k state.Key) (Status, bool) {
	p, ok := n.byKind[k.Kind]
	if !ok {
		return Status{}, false
	}
	s, ok := p.status(k)
	if ok && s.State == reconcile.Done {
		o, found := n.opts.Store.Snapshot().Get(k)
		ok = !found || o.Revision <= s.Revision
	}
	return s, ok
}

// NotDone returns at most limit objects that are not done in the data plane, in no particular
// order, and how many there are.
func (n *Node) NotDone(limit int) (some map[state.Key]Status, count int) {
	return n.NotDoneExcept(limit, nil)
}

// NotDoneExcept is like NotDone, but leaves out objects of the ignored kinds.
func (n *Node) NotDoneExcept(limit int, ignored map[string]bool) (some map[state.Key]Status, count int) {
	some, count = n.notApplied(limit)
	for _, p := range n.parts {
		most := limit - len(some)
		if len(ignored) > 0 {
			most = math.MaxInt // to count each kind
		}
		of, c := p.notDone(most)
		for k, s := range of {
			switch {
			case ignored[k.Kind]:
				c--
			case len(some) < limit:
				some[k] = s
			}
		}
		count += c
	}
	unmet, byKind := n.conditions.NotDone(limit - len(some))
	maps.Copy(some, unmet)
	for kind, c := range byKind {
		if !ignored[kind] {
			count += c
		}
	}
	return some, count
}

// Noted returns messages about Ready objects that affect the health of the daemon.
func (n *Node) Noted() map[state.Key]string { return n.conditions.Noted() }

// LastReceived returns when a packet from a Peer was last received, with a precision of one second;
// zero: not since the daemon started.
func (n *Node) LastReceived(peer string) time.Time { return n.conditions.LastReceived(peer) }

// notApplied returns at most limit objects that the reconcilers have not received yet, and how many
// there are: immediately after startup, these are all objects.
func (n *Node) notApplied(limit int) (some map[state.Key]Status, count int) {
	some = map[state.Key]Status{}
	s := n.opts.Store.Snapshot()
	n.mu.Lock()
	applied := n.applied
	n.mu.Unlock()
	if applied >= s.Revision {
		return some, 0
	}
	for o := range s.All() {
		if _, reported := n.Status(o.Key); reported {
			continue
		}
		count++
		if len(some) < limit {
			some[o.Key] = Status{State: reconcile.Pending}
		}
	}
	return some, count
}

// Repairs returns the number of external changes that have been repaired.
func (n *Node) Repairs() (count uint64) {
	for _, p := range n.parts {
		count += p.Repairs()
	}
	if n.opts.Network != nil {
		count += n.opts.Network.Repairs()
	}
	return count + n.opts.Plane.Telemetry().Repairs()
}

// Health returns the health of a backend.
func (n *Node) Health(t health.Target) health.Result { return n.checker.Result(t.Service, t.Backend) }

// Problems returns messages about faults on the node.
func (n *Node) Problems() []string {
	var p []string
	n.mu.Lock()
	initialized := n.initialized
	n.mu.Unlock()
	if !initialized && !n.opts.PruneNotBefore.IsZero() {
		p = append(p, "desired state was lost: nothing is deleted from the data plane before "+
			n.opts.PruneNotBefore.Format(time.RFC3339)+"; configure the desired objects before then")
	}
	p = append(p, n.rules.problems()...)
	if err := n.maintenance.lastErr(); err != nil {
		p = append(p, "maintenance of the data plane: "+err.Error())
	}
	if n, ok := n.opts.Network.(interface{ Problems() []string }); ok {
		p = append(p, n.Problems()...)
	}
	return p
}
