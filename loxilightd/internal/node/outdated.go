// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/node/policies"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Clients see a commit before the tables receive the rows that it changes. Until then, objects whose
// rows depend on a changed object are outdated, although they have not changed themselves: packets
// still pass the rows that were made from the former state.

// handed are the snapshots from which the rows in the tables may be made.
type handed struct {
	base *state.Snapshot // the tables have received all of its rows; nil: none yet
	next *state.Snapshot // the tables are receiving its rows; nil: none
	// compared are the comparisons of these snapshots with later ones.
	compared map[[2]*state.Snapshot]*comparison
}

// noteApplying records that the reconcilers are receiving the rows of a snapshot.
func (n *Node) noteApplying(s *state.Snapshot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handed.next = s
}

// snapshot returns the current snapshot, from which rows will be made. The watch reports its changes
// separately.
func (n *Node) snapshot() *state.Snapshot {
	s := n.opts.Store.Snapshot()
	n.noteApplying(s)
	return s
}

// noteApplied records that the reconcilers have received all rows of a snapshot.
func (n *Node) noteApplied(s *state.Snapshot) {
	n.mu.Lock()
	n.handed = handed{base: s}
	owed := slices.Collect(maps.Keys(n.owed))
	n.mu.Unlock()
	n.wake()
	n.conditions.Trigger()
	n.reportOwed(owed...)
}

// received returns the latest revision that the reconcilers have received.
func (n *Node) received() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handed.base == nil {
		return 0
	}
	return n.handed.base.Revision
}

// isOutdated reports whether rows of an object in the tables may be made from a state in which other
// objects, on which these rows depend, were different.
func (n *Node) isOutdated(o *state.Object) bool {
	now := n.opts.Store.Snapshot()
	var list []*comparison
	n.mu.Lock()
	for _, from := range []*state.Snapshot{n.handed.base, n.handed.next} {
		if from != nil && from.Revision < now.Revision {
			list = append(list, n.compare(from, now))
		}
	}
	n.mu.Unlock()
	return slices.ContainsFunc(list, func(c *comparison) bool { return c.concerns(o) })
}

// maxCompared limits how many comparisons are kept.
const maxCompared = 8

// compare returns the comparison of two snapshots. The caller holds n.mu.
func (n *Node) compare(from, now *state.Snapshot) *comparison {
	pair := [2]*state.Snapshot{from, now}
	if c := n.handed.compared[pair]; c != nil {
		return c
	}
	if n.handed.compared == nil || len(n.handed.compared) >= maxCompared {
		n.handed.compared = map[[2]*state.Snapshot]*comparison{}
	}
	c := n.newComparison(from, now)
	n.handed.compared[pair] = c
	return c
}

func (n *Node) newComparison(from, now *state.Snapshot) *comparison {
	c := &comparison{n: n, from: from, now: now, groups: map[datapath.GroupName]bool{}}
	c.kinds = sync.OnceValue(c.changedKinds)
	c.peers = sync.OnceValue(c.comparePeers)
	c.pods = sync.OnceValue(c.comparePods)
	c.masqueraded = sync.OnceValue(c.compareMasquerade)
	c.policies = sync.OnceValue(c.comparePolicies)
	return c
}

// comparison compares the rows that two snapshots desire. It considers only changes to objects: both
// sides use the current state of the node. It is safe for concurrent use.
type comparison struct {
	n         *Node
	from, now *state.Snapshot

	kinds       func() map[string]bool // the kinds of the objects that have changed
	peers       func() *peerComparison
	pods        func() bool               // rows that all PodNetworks share differ
	masqueraded func() map[state.Key]bool // PodNetworks whose NAT rules differ
	policies    func() *policies.Comparison

	mu     sync.Mutex
	groups map[datapath.GroupName]bool // whether the content differs
}

// concerns reports whether rows of an object differ because other objects have changed. Changes to
// the object itself do not count: each table knows whether it has received these.
func (c *comparison) concerns(o *state.Object) bool {
	if o.Revision > c.from.Revision {
		return false
	}
	switch v := o.Value.(type) {
	case *state.FirewallRule:
		return c.refersToChanged(v.Match.SourceGroups) || c.refersToChanged(v.Match.DestinationGroups)
	case *state.NAT:
		return c.refersToChanged(v.Match.SourceGroups) || c.refersToChanged(v.Match.DestinationGroups)
	case *state.AddressGroup:
		return c.refersToChanged([]datapath.GroupName{datapath.GroupName(o.Name)})
	case *state.PodNetwork:
		return c.pods() || v.Masquerade && c.masqueraded()[o.Key]
	case *state.Peer:
		return c.peers().changed[o.Name]
	case *state.Route:
		return v.Peer != "" && (c.peers().changed[v.Peer] || c.peers().refused[o.Name])
	case *state.Endpoint:
		return c.has(state.KindPodNetwork, state.KindBridge, state.KindRoute) &&
			!reflect.DeepEqual(c.n.endpointIn(c.from, o), c.n.endpointIn(c.now, o))
	case *state.Mirror:
		return c.isOtherMirror(v)
	case *state.Policy:
		return c.concernsPolicy(v)
	case *state.Entity:
		return v.Of != (state.EndpointRef{}) && c.has(state.KindEndpoint, state.KindPodNetwork) && c.policies().ConcernsEndpoints(v.Of)
	}
	return false
}

// comparePolicies compares the objects on which Policies depend.
func (c *comparison) comparePolicies() *policies.Comparison {
	if !c.has(state.KindTier, state.KindNamespace, state.KindEntity, state.KindEndpoint, state.KindPodNetwork) {
		return policies.Compare(c.from, c.now, nil, true)
	}
	changes, _, complete := c.n.opts.Store.Changes(c.from.Revision)
	return policies.Compare(c.from, c.now, changes, complete)
}

// concernsPolicy reports whether the effect of an unchanged Policy differs.
func (c *comparison) concernsPolicy(v *state.Policy) bool {
	return c.refersToChanged(v.GroupNames()) || c.policies().Concerns(v)
}

// changedKinds returns the kinds of the objects that have changed, and maybe more.
func (c *comparison) changedKinds() map[string]bool {
	kinds := map[string]bool{}
	changes, _, ok := c.n.opts.Store.Changes(c.from.Revision)
	for _, change := range changes {
		kinds[change.Kind] = true
	}
	for _, kind := range state.Kinds {
		kinds[kind] = kinds[kind] || !ok
	}
	return kinds
}

// has reports whether objects of these kinds may have changed.
func (c *comparison) has(kinds ...string) bool {
	return slices.ContainsFunc(kinds, func(kind string) bool { return c.kinds()[kind] })
}

// refersToChanged reports whether the content of one of these groups differs.
func (c *comparison) refersToChanged(names []datapath.GroupName) bool {
	if len(names) == 0 || !c.has(state.KindAddressGroup, state.KindEndpoint) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(names, c.group)
}

// group reports whether the content of a group differs. The caller holds c.mu.
func (c *comparison) group(name datapath.GroupName) bool {
	if is, known := c.groups[name]; known {
		return is
	}
	c.groups[name] = false
	k := state.Key{Kind: state.KindAddressGroup, Name: string(name)}
	before, existed := c.from.Get(k)
	o, exists := c.now.Get(k)
	is := existed != exists || exists && o.Revision != before.Revision
	if exists && !is {
		v := o.Value.(*state.AddressGroup)
		is = len(v.Labels) > 0 && c.has(state.KindEndpoint) && !slices.Equal(selectedBy(c.from, v), selectedBy(c.now, v)) ||
			slices.ContainsFunc(v.Groups, c.group)
	}
	c.groups[name] = is
	return is
}

// peerComparison contains the Peers with other rows than before, and the Routes that are refused for
// another reason.
type peerComparison struct{ changed, refused map[string]bool }

func (c *comparison) comparePeers() *peerComparison {
	p := &peerComparison{map[string]bool{}, map[string]bool{}}
	if !c.has(state.KindPeer, state.KindRoute, state.KindEndpoint) {
		return p
	}
	before, refusedBefore := peersIn(c.from)
	peers, refused := peersIn(c.now)
	compareMaps(p.changed, before, peers)
	compareMaps(p.refused, refusedBefore, refused)
	return p
}

// peersIn returns the Peers in a snapshot without single addresses that belong to this node, and why
// Routes to Peers are refused.
func peersIn(s *state.Snapshot) (map[string]datapath.Peer, map[string]error) {
	peers, refused := s.Peers()
	peers, _ = withoutLocalAddrs(s, peers)
	return peers, refused
}

// comparePods reports whether the rows differ that all PodNetworks share.
func (c *comparison) comparePods() bool {
	if !c.has(derivedFrom...) && len(c.peers().changed) == 0 {
		return false
	}
	before, now := c.n.podRows(c.from), c.n.podRows(c.now)
	for _, name := range now.ports.needed {
		k := state.Key{Kind: state.KindInterface, Name: string(name)}
		was, _ := c.from.Get(k)
		if is, ok := c.now.Get(k); ok && is != was {
			return true
		}
	}
	return !isSame(before.bridges, now.bridges) || !isSame(before.links, now.links) || !isSame(before.ports, now.ports) ||
		!isSame(before.routes, now.routes) || !isSame(before.peers, now.peers) || c.n.egressMTU(c.from) != c.n.egressMTU(c.now)
}

// podRows returns the rows that all PodNetworks in a snapshot share, without MTUs.
func (n *Node) podRows(s *state.Snapshot) *derivation {
	v := n.noRows(s)
	peers, _ := peersIn(s)
	n.derivePods(s, v, peers, podMTU{})
	return v
}

// isSame reports whether two derivations of a table have the same rows.
func isSame[K ~string, V any](a, b *derivedRows[K, V]) bool {
	return reflect.DeepEqual(a.wanted, b.wanted) && slices.Equal(a.needed, b.needed)
}

// compareMasquerade returns the PodNetworks whose NAT rules differ.
func (c *comparison) compareMasquerade() map[state.Key]bool {
	differ := map[state.Key]bool{}
	if !c.has(state.KindPodNetwork, state.KindInterface, state.KindPeer, state.KindRoute, state.KindEndpoint) {
		return differ
	}
	compareMaps(differ, podNAT(c.from, c.n.uplinksOf(c.from)), podNAT(c.now, c.n.uplinksOf(c.now)))
	return differ
}

// isOtherMirror reports whether a Mirror has another row, or another reason for copying nothing.
func (c *comparison) isOtherMirror(v *state.Mirror) bool {
	if !c.has(append([]string{state.KindTunnel, state.KindPeer}, v.Source.Kind)...) {
		return false
	}
	before, faultBefore := c.from.Resolve(v, !c.n.isSplit())
	now, fault := c.now.Resolve(v, !c.n.isSplit())
	return !reflect.DeepEqual(before, now) || !reflect.DeepEqual(faultBefore, fault)
}
