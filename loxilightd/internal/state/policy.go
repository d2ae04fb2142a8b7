// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
)

// SetPods is the default set of Entities.
const SetPods = api.SetPods

// Entity is the spec of an Entity. The fields Name, Addrs and Endpoint of an Entity that is an
// Endpoint are unset: they depend on other objects.
type Entity struct {
	policy.Entity
	Of EndpointRef // zero: not an Endpoint of this node
}

// EndpointRef names Endpoints of this node: by name, or by the namespace and pod that they have, and
// by the pod's uid, unless it is empty here or unknown there.
type EndpointRef struct{ Name, Namespace, Pod, UID string }

func (r EndpointRef) String() string {
	if r.Name != "" {
		return Key{KindEndpoint, r.Name}.String()
	}
	return "the pod " + (&Endpoint{Namespace: r.Namespace, Pod: r.Pod}).PodName()
}

// names reports whether r names an Endpoint.
func (r EndpointRef) names(o *Object) bool {
	if r.Name != "" {
		return r.Name == o.Name
	}
	e := o.Value.(*Endpoint)
	return r.Pod != "" && r.Pod == e.Pod && r.Namespace == e.Namespace && (r.UID == "" || e.UID == "" || r.UID == e.UID)
}

// EndpointsOf returns the Endpoints that r names, in the order of their names.
func (s *Snapshot) EndpointsOf(r EndpointRef) (list []*Object) {
	for o := range s.After(KindEndpoint, "") {
		if r.names(o) {
			list = append(list, o)
		}
	}
	return list
}

func (e *Entity) cost() datapath.Cost { return datapath.Cost{Entities: len(e.Addrs)} }

func (e *Entity) claims(each func(claim, func() string)) {
	for i, a := range e.Addrs {
		each(claim{what: claimAddress, prefix: netip.PrefixFrom(a, a.BitLen())}, func() string {
			return fmt.Sprintf("spec.addresses[%d]", i)
		})
	}
	if e.Here {
		each(claim{what: claimHere}, func() string { return "spec.here" })
	}
	if e.Of != (EndpointRef{}) {
		each(claim{what: claimEntity, device: e.Of.String()}, func() string { return "spec.endpoint" })
	}
}

// Namespace is the spec of a Namespace.
type Namespace struct{ policy.Namespace }

func (*Namespace) cost() datapath.Cost               { return datapath.Cost{} }
func (*Namespace) claims(func(claim, func() string)) {}

// Tier is the spec of a Tier. Its Name is unset.
type Tier struct {
	policy.Tier
	Order int32
}

func (*Tier) cost() datapath.Cost               { return datapath.Cost{} }
func (*Tier) claims(func(claim, func() string)) {}

// Tiers returns the Tiers in a snapshot in the order in which they are evaluated.
func (s *Snapshot) Tiers() (list []*Object) {
	for o := range s.After(KindTier, "") {
		list = append(list, o)
	}
	slices.SortStableFunc(list, func(a, b *Object) int { return cmp.Compare(a.Value.(*Tier).Order, b.Value.(*Tier).Order) })
	return list
}

// Policy is the spec of a Policy. Its Name is unset, and its peers lack the prefixes of groups.
type Policy struct {
	policy.Policy
	Groups []PeerGroups
}

// PeerGroups are the groups whose prefixes belong to a peer of a Policy.
type PeerGroups struct {
	Direction  policy.Direction
	Rule, Peer int // indexes
	Names      []datapath.GroupName
}

// GroupNames returns the groups to which a Policy refers. A group may occur repeatedly.
func (p *Policy) GroupNames() (names []datapath.GroupName) {
	for _, g := range p.Groups {
		names = append(names, g.Names...)
	}
	return names
}

func (p *Policy) cost() (c datapath.Cost) {
	c.Prefixes, c.Names = p.Policy.Size()
	return c
}

// names returns how many different names the Policies have; cost: of all objects. They are only counted
// if there may be too many.
func (t *table) names(cost datapath.Cost) int {
	if cost.Names <= datapath.NameMax {
		return cost.Names
	}
	all := make(map[string]bool)
	for o := range t.each(KindPolicy) {
		for name := range o.Value.(*Policy).Names() {
			all[name] = true
		}
	}
	return len(all)
}

func (*Policy) claims(func(claim, func() string)) {}

// fieldOf returns the field that refers to the groups of a peer.
func (g *PeerGroups) fieldOf() string {
	list := [...]string{policy.Ingress: "from", policy.Egress: "to"}[g.Direction]
	return fmt.Sprintf("spec.%s[%d].%s[%d].prefixes", g.Direction, g.Rule, list, g.Peer)
}

// participants yields the objects that make an Endpoint an Entity: the Endpoint itself, if it has
// labels, and Entities that name it. entities are the Entities that are Endpoints.
func participants(endpoint *Object, entities []*Object) iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		if len(endpoint.Value.(*Endpoint).Labels) > 0 && !yield(endpoint) {
			return
		}
		for _, o := range entities {
			if o.Value.(*Entity).Of.names(endpoint) && !yield(o) {
				return
			}
		}
	}
}

// checkEntities rejects a plan in which two objects make one Endpoint an Entity. Claims do not
// detect this, because an Entity may name the pod of an Endpoint.
func (p *plan) checkEntities() error {
	put := map[Key]bool{}
	for _, o := range p.puts {
		switch v := o.Value.(type) {
		case *Endpoint:
			put[o.Key] = true
		case *Entity:
			if v.Of != (EndpointRef{}) {
				put[o.Key] = true
			}
		}
	}
	if len(put) == 0 {
		return nil
	}
	var entities []*Object
	for o := range p.each(KindEntity) {
		if o.Value.(*Entity).Of != (EndpointRef{}) {
			entities = append(entities, o)
		}
	}
	for e := range p.each(KindEndpoint) {
		var first *Object
		for o := range participants(e, entities) {
			if first == nil {
				first = o
			} else if put[e.Key] || put[first.Key] || put[o.Key] {
				return refuseParticipant(e, first, o, put)
			}
		}
	}
	return nil
}

// refuseParticipant returns the error for an Endpoint that two objects make an Entity.
func refuseParticipant(endpoint, first, second *Object, put map[Key]bool) error {
	at, other := second, first
	if !put[at.Key] && put[first.Key] {
		at, other = first, second
	}
	switch {
	case !put[at.Key]:
		return refuse(Conflict, endpoint.Key, "", "%s and %s both name this Endpoint: delete one of the two first", first.Key, second.Key)
	case other == endpoint:
		return refuse(Conflict, at.Key, "spec.endpoint", "%s has labels, and therefore needs no Entity: delete this Entity, or remove spec.labels there", endpoint.Key)
	case at == endpoint:
		return refuse(Conflict, at.Key, "spec.labels", "this Endpoint belongs to %s already: omit the labels here, or delete the Entity", other.Key)
	}
	return refuse(Conflict, at.Key, "spec.endpoint", "%s belongs to %s already", endpoint.Key, other.Key)
}

// mostObjects limits how many objects of a kind a node has.
var mostObjects = []struct {
	kind, plural string
	most         int
	todo         string
}{
	{KindMirror, "Mirrors", datapath.MirrorMax, "delete some, or merge their matches"},
	{KindEntity, "Entities", datapath.EntityMax, "delete some"},
	{KindNamespace, "Namespaces", datapath.NamespaceMax, "delete some"},
	{KindTier, "Tiers", datapath.TierMax, "delete some, or order Policies by priority"},
	{KindPolicy, "Policies", datapath.PolicyMax, "delete some, or merge their rules"},
}

// checkCounts rejects more objects of a kind than a node may have.
func (p *plan) checkCounts() error {
	for _, limit := range mostObjects {
		before, after := p.base.counts[limit.kind], p.counts[limit.kind]
		if after <= limit.most || after <= before {
			continue
		}
		return refuse(Capacity, p.lastPut(limit.kind), "", "a node has at most %d %s: %d now, %d with this change; %s",
			limit.most, limit.plural, before, after, limit.todo)
	}
	return nil
}
