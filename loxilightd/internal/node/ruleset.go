// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/reconcile"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ruleSet is the single row that contains all rules of a kind and the groups to which they refer. V
// is a [datapath.FirewallSet] or a [datapath.NATSet].
type ruleSet[V names] struct {
	*reconcile.Reconciler[datapath.SetName, V]
	datapath.RuleTable[V]
	kind   string
	build  func(s *state.Snapshot, groups *groups) (set V, rules int)
	frozen frozen
	// localAddrs returns the addresses of the node itself.
	localAddrs func() []netip.Addr

	mu       sync.Mutex
	members  map[datapath.GroupName]struct{} // groups in the set, including nested groups
	labelled bool                            // one of members selects Endpoints by labels
	local    []netip.Addr                    // members of LocalGroup
	isLocal  bool                            // a rule refers to LocalGroup
	changed  uint64                          // the latest revision of one of the members
	inForce  uint64                          // revision as of which the set is in force; 0: unknown
	faults   map[state.Key]string            // errors that single objects caused in the last attempt
	broken   uint64                          // how often another program has changed the set
}

// version identifies the spec of an object, including the groups that it refers to, and the period
// during which it is in force. A new version is reported even if its status is the same, because
// the status may have been Pending in between.
type version struct{ revision, broken uint64 }

func (r *ruleSet[V]) version(o *state.Object) version {
	r.mu.Lock()
	defer r.mu.Unlock()
	return version{r.newest(o), r.broken}
}

// newest returns the latest revision of an object and of the groups that it refers to. The caller
// holds r.mu.
func (r *ruleSet[V]) newest(o *state.Object) uint64 {
	if o.Kind != state.KindAddressGroup && refersToGroups(o) {
		return max(o.Revision, r.changed)
	}
	return o.Revision
}

func newRuleSet[V names](n *Node, kind string, table datapath.RuleTable[V], outcome func(),
	build func(*state.Snapshot, *groups) (V, int),
) *ruleSet[V] {
	r := &ruleSet[V]{RuleTable: table, kind: kind, build: build,
		localAddrs: n.opts.Plane.Telemetry().LocalAddrs, frozen: frozen{released: make(chan struct{}), until: n.opts.PruneNotBefore}}
	if !time.Now().Before(n.opts.PruneNotBefore) || !hasRows(table) {
		close(r.frozen.released)
	}
	r.frozen.missing = slices.Sorted(slices.Values(table.Rules()))
	noPrune := map[datapath.SetName]bool{}
	for _, k := range n.opts.NoPrune {
		if k.Kind == kind || k.Kind == state.KindAddressGroup {
			noPrune[datapath.NodeSet] = true
		}
	}
	r.Reconciler = reconcile.New(reconcile.Options[datapath.SetName, V]{
		Table: r, Log: n.logOf(kind), NoPrune: noPrune, Every: true,
		Notify: func(_ datapath.SetName, s Status) {
			r.note(s)
			outcome()
		},
	})
	return r
}

// apply passes a new set to the reconciler if one of the changed objects is relevant.
func (r *ruleSet[V]) apply(s *state.Snapshot, changed []state.Key) {
	r.mu.Lock()
	counts := false
	for _, k := range changed {
		_, member := r.members[datapath.GroupName(k.Name)]
		counts = counts || k.Kind == r.kind || k.Kind == state.KindAddressGroup && member || k.Kind == state.KindEndpoint && r.labelled
	}
	r.mu.Unlock()
	switch {
	case !counts:
	case r.isFrozen():
		r.checkFrozen(s)
	default:
		r.make(s)
	}
}

// make passes to the reconciler the set that snapshot s desires.
func (r *ruleSet[V]) make(s *state.Snapshot) {
	set, rules := r.gather(s)
	r.Apply(s.Revision, []reconcile.Change[datapath.SetName, V]{{Key: datapath.NodeSet, Value: set, Remove: rules == 0}})
}

// gather returns the set that snapshot s desires, and how many rules it has.
func (r *ruleSet[V]) gather(s *state.Snapshot) (set V, rules int) {
	g := &groups{snapshot: s, localAddrs: r.localAddrs, flat: map[datapath.GroupName]datapath.AddressGroup{}, members: map[datapath.GroupName]struct{}{}}
	set, rules = r.build(s, g)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members, r.changed, r.labelled = g.members, g.changed, g.labelled
	r.local, r.isLocal = g.local, g.isLocal
	return set, rules
}

// localAddrsChanged reports whether rules refer to the node's addresses and these addresses have
// changed.
func (r *ruleSet[V]) localAddrsChanged() bool {
	r.mu.Lock()
	before, isLocal := r.local, r.isLocal
	r.mu.Unlock()
	return isLocal && !slices.Equal(before, r.localAddrs())
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

// note records the result of an attempt.
func (r *ruleSet[V]) note(s Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch s.State {
	case reconcile.Done:
		r.inForce = s.Revision
	case reconcile.Removed:
		r.inForce = 0
	}
}

// waitDone waits until the set is in force, and reports whether ctx ended first.
func (r *ruleSet[V]) waitDone(ctx context.Context, revision uint64) (ended bool) {
	select {
	case <-r.frozen.released:
	case <-ctx.Done():
		return true
	}
	_, err := r.WaitDone(ctx, revision, datapath.NodeSet)
	return err != nil
}

// has reports whether the set refers to a group.
func (r *ruleSet[V]) has(group string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.members[datapath.GroupName(group)]
	return ok
}

// of returns the status of an object in the set. While the desired set is not in force, the
// previous set stays in force.
func (r *ruleSet[V]) of(o *state.Object) Status {
	s, ok := r.Status(datapath.NodeSet)
	if r.isFrozen() {
		return r.frozenStatus(o)
	}
	if !ok || s.State == reconcile.Done {
		return s
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.newest(o) <= r.inForce {
		return Status{State: reconcile.Done, Revision: s.Revision}
	}
	if fault, ok := r.faults[o.Key]; ok && s.Failures > 0 {
		s.Message = fault
		return s
	}
	if s.Failures > 0 && len(r.faults) > 0 {
		k, fault := r.firstFault()
		s.Message = fmt.Sprintf("not in force, because rules take effect together and %s is faulty: %s", k, fault)
	}
	return s
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
	if r.isFrozen() {
		return r.waitsFor()
	}
	s, ok := r.Status(datapath.NodeSet)
	if !ok || s.Failures == 0 {
		return ""
	}
	return fmt.Sprintf("changes of %s objects are not in force, and the previous rules stay in force: %s", r.kind, s.Message)
}

func refersToGroups(o *state.Object) bool {
	switch v := o.Value.(type) {
	case *state.FirewallRule:
		return len(v.Match.SourceGroups)+len(v.Match.DestinationGroups) > 0
	case *state.NAT:
		return len(v.Match.SourceGroups)+len(v.Match.DestinationGroups) > 0
	}
	return false
}

// groups collects the groups that a set refers to.
type groups struct {
	snapshot *state.Snapshot
	flat     map[datapath.GroupName]datapath.AddressGroup // with the prefixes of nested groups
	members  map[datapath.GroupName]struct{}              // these, and nested groups
	changed  uint64                                       // the latest revision among members
	labelled bool                                         // a member selects Endpoints by labels

	localAddrs func() []netip.Addr
	local      []netip.Addr // members of LocalGroup, if isLocal
	isLocal    bool         // a match refers to LocalGroup
}

// add adds the groups that a match refers to. A group that this version cannot decode is omitted,
// so that the data plane rejects the set instead of applying it with a different meaning.
func (g *groups) add(m *datapath.Match) {
	for _, list := range [][]datapath.GroupName{m.SourceGroups, m.DestinationGroups} {
		for _, name := range list {
			if _, ok := g.flat[name]; ok {
				continue
			}
			whole := datapath.AddressGroup{}
			if name == datapath.LocalGroup {
				g.flat[name] = g.addLocal()
				continue
			}
			if g.flatten(name, &whole, map[datapath.GroupName]struct{}{}) {
				g.flat[name] = whole
			}
		}
	}
}

// flatten adds the prefixes of a group and its nested groups to whole; it returns false if one of
// these groups does not exist.
func (g *groups) flatten(name datapath.GroupName, whole *datapath.AddressGroup, seen map[datapath.GroupName]struct{}) bool {
	if _, twice := seen[name]; twice {
		return true
	}
	seen[name] = struct{}{}
	g.members[name] = struct{}{}
	o, ok := g.snapshot.Get(state.Key{Kind: state.KindAddressGroup, Name: string(name)})
	if !ok {
		return false
	}
	g.changed = max(g.changed, o.Revision)
	v := o.Value.(*state.AddressGroup)
	if len(v.Groups)+len(v.Labels) == 0 && whole.Prefixes == nil {
		whole.Prefixes = v.Prefixes // this slice is shared and must never be modified
		return true
	}
	whole.Prefixes = append(whole.Prefixes[:len(whole.Prefixes):len(whole.Prefixes)], v.Prefixes...)
	if len(v.Labels) > 0 {
		g.addLabelled(v, whole)
	}
	for _, within := range v.Groups {
		if !g.flatten(within, whole, seen) {
			return false
		}
	}
	return true
}

// addLocal returns the group that contains the node's own addresses.
func (g *groups) addLocal() (whole datapath.AddressGroup) {
	g.local, g.isLocal = g.localAddrs(), true
	for _, a := range g.local {
		whole.Prefixes = append(whole.Prefixes, netip.PrefixFrom(a, a.BitLen()))
	}
	return whole
}

// addLabelled adds the addresses of the Endpoints that a group selects by labels.
func (g *groups) addLabelled(v *state.AddressGroup, whole *datapath.AddressGroup) {
	g.labelled, g.changed = true, g.snapshot.Revision
	for o := range g.snapshot.After(state.KindEndpoint, "") {
		e := o.Value.(*state.Endpoint)
		if !slices.ContainsFunc(v.Labels, e.Has) {
			continue
		}
		for _, a := range e.Addresses {
			whole.Prefixes = append(whole.Prefixes, netip.PrefixFrom(a, a.BitLen()))
		}
	}
}

// buildNAT makes a set from the NAT rules, including the rules of pod networks. Pods' host ports
// are never announced, and are omitted while the node does not have their address.
func (n *Node) buildNAT(s *state.Snapshot, g *groups) (datapath.NATSet, int) {
	set := datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{}}
	absent := n.absentHostPorts(s)
	n.hostPorts.set(absent)
	for o := range s.After(state.KindNAT, "") {
		if _, ok := absent[o.Name]; ok {
			continue
		}
		v := o.Value.(*state.NAT).NAT
		v.Unannounced = o.Owner == state.OwnerCNI
		set.Rules[datapath.NATName(o.Name)] = v
		g.add(&v.Match)
	}
	if len(s.PodNetworks()) > 0 {
		set.Uplinks = n.uplinksOf(s)
		podNAT(s, set.Uplinks, set.Rules)
	}
	set.Groups = g.flat
	return set, len(set.Rules)
}

// buildFirewall returns a function that makes a set from the rules and the exempt packets.
func buildFirewall(exempt *atomic.Pointer[[]datapath.Match]) func(*state.Snapshot, *groups) (datapath.FirewallSet, int) {
	return func(s *state.Snapshot, g *groups) (datapath.FirewallSet, int) {
		set := datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{}, Exempt: *exempt.Load()}
		for o := range s.After(state.KindFirewallRule, "") {
			v := o.Value.(*state.FirewallRule)
			set.Rules[datapath.RuleName(o.Name)] = v.FirewallRule
			g.add(&v.Match)
		}
		set.Groups = g.flat
		return set, len(set.Rules)
	}
}
