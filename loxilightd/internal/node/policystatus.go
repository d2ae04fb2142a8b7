// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/node/policies"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// check implements rowTable. While the desired row is not in force, the previous row stays in
// force.
func (r *policySet) check(o *state.Object, list []Status) ([]Status, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.snapshot == nil || o.Revision > r.snapshot.Revision {
		return nil, 0
	}
	pending := func(message string) []Status {
		return append(list, Status{State: reconcile.Pending, Message: message, Failures: 1})
	}
	switch omitted := r.groups.omitted[o.Key]; {
	case o.Kind == state.KindAddressGroup && !r.groups.has(o.Key):
	case r.isFrozen():
		list = pending(r.waitsFor())
	case r.isKept():
		list = pending(r.keptText())
	case len(r.desired.Policies) == 0:
	case omitted != "":
		list = pending(omitted)
	case !r.isInForce(o):
		list = append(list, r.blamed(o))
	}
	return list, o.Revision + r.broken
}

// isInForce reports whether the row in force contains an object, and everything on which its effect
// depends, as desired. The caller holds r.mu.
func (r *policySet) isInForce(o *state.Object) bool {
	if s, ok := r.Status(datapath.NodeSet); ok && s.State == reconcile.Done {
		return true
	}
	if r.isUnfit(o) || r.inForce == nil || r.groups.latest(o) > r.inForce.Revision {
		return false
	}
	v, ok := o.Value.(*state.Policy)
	if !ok {
		return true
	}
	if r.since == nil {
		r.since = r.n.newComparison(r.inForce, r.snapshot)
	}
	return !r.since.concernsPolicy(v)
}

// isUnfit reports whether an object is a Policy for which there is no room. The caller holds r.mu.
func (r *policySet) isUnfit(o *state.Object) bool {
	return o.Kind == state.KindPolicy && r.unfit.IsIn(r.desired) && r.unfit.Has(o.Name)
}

// blamed returns the status of the row as the status of an object. The caller holds r.mu.
func (r *policySet) blamed(o *state.Object) Status {
	s, ok := r.Status(datapath.NodeSet)
	if !ok {
		return Status{State: reconcile.Pending, Message: "not applied yet"}
	}
	if r.isUnfit(o) {
		s.Message = r.unfit.Text(o.Name)
	}
	return s
}

// isDeleted implements rowTable. A deleted AddressGroup is in no row: nothing referred to it.
func (r *policySet) isDeleted(k state.Key) bool {
	s, ok := r.Status(datapath.NodeSet)
	r.mu.Lock()
	defer r.mu.Unlock()
	return k.Kind == state.KindAddressGroup || !r.isFrozen() && !r.isKept() && (ok && s.State == reconcile.Done || !r.Has(datapath.NodeSet))
}

// waitsFor returns why the row of an earlier run is kept.
func (r *policySet) waitsFor() string {
	return fmt.Sprintf("desired state was lost: the Policies that are in force stay until %s: configure all desired objects before then", r.until.Format(time.RFC3339))
}

// keptText returns why the row of an earlier run is kept, and what to do. The caller holds r.mu.
func (r *policySet) keptText() string {
	return fmt.Sprintf("the Policies in force stay unchanged, because this version cannot decode %s: %s", r.missing, undecodableTodo(r.missing))
}

// trouble returns a message if Policies are not in force, else the empty string.
func (r *policySet) trouble() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch s, ok := r.Status(datapath.NodeSet); {
	case r.isFrozen():
		return r.waitsFor()
	case r.isKept():
		return r.keptText()
	case ok && s.Failures > 0 && r.unfit.IsIn(r.desired):
		return r.unfit.Problem()
	case ok && s.Failures > 0:
		return "changes of Policies are not in force, and the previous Policies stay in force: " + s.Message
	}
	for _, k := range slices.SortedFunc(maps.Values(r.groups.lacking), func(a, b state.Key) int { return cmp.Compare(a.String(), b.String()) }) {
		return fmt.Sprintf("Policies may not be in force as desired, because this version cannot decode %s: %s", k, undecodableTodo(k))
	}
	return ""
}

// Subjects returns the number of Endpoints to which a Policy is applied.
func (n *Node) Subjects(name string) int { return len(n.subjects(name)) }

// denied reports whether all traffic of an Endpoint is to be dropped because it lacks the Entity that
// its network requires, and whether it is dropped.
func (n *Node) denied(endpoint string) (desired, inForce bool) {
	n.policies.mu.Lock()
	defer n.policies.mu.Unlock()
	inForce = n.policies.written != nil && policies.IsUnknown(n.policies.written, endpoint)
	return policies.IsUnknown(n.policies.desired, endpoint), inForce
}

// subjects returns the Endpoints to which a Policy is applied, in the order of their names.
func (n *Node) subjects(name string) []datapath.EndpointName {
	n.policies.mu.Lock()
	defer n.policies.mu.Unlock()
	return slices.Sorted(maps.Keys(n.policies.applied[name]))
}

// PolicyState returns the state of network policies that packets obey, and the snapshot that it was
// made from; pending: why it is not the desired state. nil: the state is unknown.
func (n *Node) PolicyState() (is *policy.State, of *state.Snapshot, pending string) {
	r := n.policies
	trouble := r.trouble()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.snapshot == nil || r.isFrozen() || r.isKept() || r.adopted {
		return nil, nil, cmp.Or(trouble, "the Policies in force are not known yet")
	}
	if s, ok := r.Status(datapath.NodeSet); ok && s.State == reconcile.Done || !ok && !r.Has(datapath.NodeSet) {
		return r.desired, r.snapshot, trouble
	}
	is = r.written
	if is == nil {
		is = &policy.State{}
	}
	return is, r.snapshot, cmp.Or(trouble, "the latest changes are not in force yet")
}

// PolicyStateOf returns the state of network policies that a snapshot desires.
func (n *Node) PolicyStateOf(s *state.Snapshot) *policy.State {
	g := newGroups(s, nil, nil)
	g.omitted = map[state.Key]string{}
	is, _ := policies.NewBuilder(n.failsafe.Load).Build(s, policyGroups{g}, func(string) bool { return false })
	return is
}
