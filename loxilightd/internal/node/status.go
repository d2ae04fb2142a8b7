// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"slices"
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
	s, ok := n.shownStatus(k)
	return n.conditions.Status(k, s), ok
}

// NotDone returns at most limit objects that are not done in the data plane, in no particular
// order, and how many there are.
func (n *Node) NotDone(limit int) (some map[state.Key]Status, count int) {
	return n.NotDoneExcept(limit, nil)
}

// NotDoneExcept is like NotDone, but leaves out objects of the ignored kinds.
func (n *Node) NotDoneExcept(limit int, ignored map[string]bool) (some map[state.Key]Status, count int) {
	some = map[state.Key]Status{}
	snapshot := n.opts.Store.Snapshot()
	received := n.received() >= snapshot.Revision // otherwise a settled table may lack objects
	for _, kind := range state.Kinds {
		if ignored[kind] || received && !slices.ContainsFunc(n.byKind[kind], func(t rowTable) bool { return !t.IsSettled() }) {
			continue
		}
		for o := range snapshot.After(kind, "") {
			s, _ := n.of(o)
			if s.State == reconcile.Done {
				continue
			}
			if count++; len(some) < limit {
				some[o.Key] = s
			}
		}
	}
	for _, t := range n.tables {
		count += t.RemovingCount()
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

// Repairs returns the number of external changes that have been repaired.
func (n *Node) Repairs() (count uint64) {
	for _, t := range n.tables {
		count += t.Repairs()
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
	for _, text := range []string{n.firewall.trouble(), n.nat.trouble(), n.policies.trouble()} {
		if text != "" {
			p = append(p, text)
		}
	}
	if err := n.maintenance.lastErr(); err != nil {
		p = append(p, "maintenance of the data plane: "+err.Error())
	}
	if n, ok := n.opts.Network.(interface{ Problems() []string }); ok {
		p = append(p, n.Problems()...)
	}
	return p
}
