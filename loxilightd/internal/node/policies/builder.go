// SPDX-License-Identifier: Apache-2.0

// Package policies makes the state of network policies from the objects in a snapshot, finds the
// Endpoints to which each Policy is applied, and the Policies that a change concerns. It neither
// applies the state nor reports the status of objects.
package policies

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Groups are the AddressGroups to which the Policies of one snapshot refer.
type Groups interface {
	// RevisionOf returns the revision that last changed the content of a group.
	RevisionOf(name datapath.GroupName) uint64
	// Flatten adds the prefixes of a group to whole. It returns the first group in it that this
	// version cannot decode, or the zero Key.
	Flatten(name datapath.GroupName, whole *datapath.AddressGroup) (missing state.Key)
	// Undecodable returns the objects of a kind that this version cannot decode.
	Undecodable(kind string) []state.Key
	// Lack records that a Policy depends on an object that this version cannot decode, and why the
	// Policy is not in force as desired.
	Lack(of, missing state.Key, effect string)
}

// Builder makes the state of network policies from snapshots. It makes each value once: a value
// that is equal to the value of the same name in the previous state is the same pointer. It is not
// safe for concurrent use.
type Builder struct {
	// Failsafe are the rules, by direction, that always apply to this node itself before all others.
	Failsafe func() *Failsafe

	last     *policy.State
	entities map[entitySource]*policy.Entity
	policies map[*state.Object]builtPolicy
}

// entitySource is what an Entity is made from: an Entity, an Endpoint, or both.
type entitySource struct {
	entity, endpoint *state.Object
	network          string // of the Endpoint, if it has resolvers
}

// isUnknown reports whether the source is an Endpoint without the Entity that its network requires.
func (f entitySource) isUnknown() bool {
	return f.entity == nil && f.endpoint != nil && len(f.endpoint.Value.(*state.Endpoint).Labels) == 0
}

// Failsafe are rules for this node itself, by direction. They do not change.
type Failsafe [2][]policy.Rule

// builtPolicy is a policy with the revision of the groups to which it refers.
type builtPolicy struct {
	value  *policy.Policy
	groups uint64
}

// noLabels is a namespace without an object.
var noLabels policy.Namespace

// unknown is the set of the Entities to which the built-in policy applies: Endpoints without the
// Entity that their network requires. Objects never have such a set.
const unknown = policy.Unknown

var (
	unknownTier   = &policy.Tier{Name: unknown}
	unknownPolicy = &policy.Policy{
		Name: unknown, Tier: unknown, Isolates: [2]bool{true, true}, AppliedTo: []policy.Selector{{Set: unknown}},
	}
)

// IsUnknown reports whether all traffic of an Endpoint is dropped in a state, because the Endpoint
// lacks the Entity that its network requires.
func IsUnknown(s *policy.State, endpoint string) bool {
	e := s.Entities[localName(endpoint)]
	return e != nil && e.Set == unknown
}

// HasUnknown reports whether a snapshot contains an Endpoint without the Entity that its network
// requires.
func HasUnknown(s *state.Snapshot) bool {
	if !slices.ContainsFunc(s.PodNetworks(), func(o *state.Object) bool { return o.Value.(*state.PodNetwork).PolicyRequired }) {
		return false
	}
	refs := refsIn(s)
	for o := range s.After(state.KindEndpoint, "") {
		if from := refs.source(o); from.isUnknown() {
			return true
		}
	}
	return false
}

// Kinds are the kinds of objects that are part of the state and of nothing else.
var Kinds = []string{state.KindEntity, state.KindNamespace, state.KindTier, state.KindPolicy}

// NewBuilder returns a builder whose previous state is empty.
func NewBuilder(failsafe func() *Failsafe) *Builder {
	return &Builder{Failsafe: failsafe, last: &policy.State{}}
}

// Build returns the state as of a snapshot. An Endpoint that has been deleted stays in the state
// while isAttached returns true; leaving reports whether there are such Endpoints.
func (b *Builder) Build(s *state.Snapshot, g Groups, isAttached func(endpoint string) bool) (next *policy.State, leaving bool) {
	counts := s.Counts()
	next = &policy.State{
		Entities:   make(map[string]*policy.Entity, counts[state.KindEntity]+counts[state.KindEndpoint]),
		Namespaces: make(map[string]*policy.Namespace, counts[state.KindNamespace]),
		Policies:   make(map[string]*policy.Policy, counts[state.KindPolicy]),
	}
	next.Resolvers = resolversIn(s)
	b.buildEntities(s, next)
	leaving = b.keepAttached(s, next, isAttached)
	for o := range s.After(state.KindNamespace, "") {
		v := &o.Value.(*state.Namespace).Namespace
		next.Namespaces[o.Name] = same(b.last.Namespaces[o.Name], v)
	}
	for _, e := range next.Entities {
		if e.Namespace != "" && next.Namespaces[e.Namespace] == nil {
			next.Namespaces[e.Namespace] = &noLabels
		}
	}
	b.buildTiers(s, g, next)
	b.buildPolicies(s, g, next)
	for _, e := range next.Entities {
		if e.Set == unknown {
			next.Tiers = slices.Insert(next.Tiers, 0, unknownTier)
			next.Policies[unknown] = unknownPolicy
			break
		}
	}
	b.addFailsafe(next)
	b.last = next
	return next, leaving
}

var failsafeTier = &policy.Tier{Name: policy.Failsafe}

// addFailsafe adds the built-in policy that allows what no other policy of this node itself may deny, if
// there are any.
func (b *Builder) addFailsafe(next *policy.State) {
	isApplied := func(e *policy.Entity) bool {
		for _, p := range next.Policies {
			if next.IsAppliedTo(p, e) {
				return true
			}
		}
		return false
	}
	for _, e := range next.Entities {
		if !e.Here {
			continue
		}
		if isApplied(e) {
			p := &policy.Policy{Name: policy.Failsafe, Tier: policy.Failsafe, Here: true, Rules: *b.Failsafe()}
			next.Tiers = slices.Insert(next.Tiers, 0, failsafeTier)
			next.Policies[p.Name] = same(b.last.Policies[p.Name], p)
		}
		return
	}
}

// same returns before if it is equal to now, otherwise now.
func same[V any](before, now *V) *V {
	if before != nil && (before == now || reflect.DeepEqual(before, now)) {
		return before
	}
	return now
}

// localName is the name in the state of an Entity that is an Endpoint, remoteName of any other. The
// former does not depend on whether the Endpoint has an Entity object.
func localName(endpoint string) string {
	return state.Key{Kind: state.KindEndpoint, Name: endpoint}.String()
}
func remoteName(entity string) string {
	return state.Key{Kind: state.KindEntity, Name: entity}.String()
}

func (b *Builder) buildEntities(s *state.Snapshot, next *policy.State) {
	entities := make(map[entitySource]*policy.Entity, len(b.entities))
	add := func(name string, from entitySource) {
		e := b.entities[from]
		if e == nil {
			e = same(b.last.Entities[name], newEntity(name, from))
		}
		entities[from], next.Entities[name] = e, e
	}
	refs := refsIn(s)
	for o := range s.After(state.KindEntity, "") {
		if o.Value.(*state.Entity).Of == (state.EndpointRef{}) {
			add(remoteName(o.Name), entitySource{entity: o})
		}
	}
	for o := range s.After(state.KindEndpoint, "") {
		if from := refs.source(o); from != (entitySource{}) {
			add(localName(o.Name), from)
		}
	}
	b.entities = entities
}

// entityRefs are the Entities in a snapshot that name Endpoints: those with a uid, also without it.
type entityRefs struct {
	of          *state.Snapshot
	exact, pods map[state.EndpointRef]*state.Object
}

func refsIn(s *state.Snapshot) entityRefs {
	refs := entityRefs{s, map[state.EndpointRef]*state.Object{}, map[state.EndpointRef]*state.Object{}}
	for o := range s.After(state.KindEntity, "") {
		if of := o.Value.(*state.Entity).Of; of != (state.EndpointRef{}) {
			refs.exact[of] = o
			of.UID = ""
			refs.pods[of] = o
		}
	}
	return refs
}

// source returns what makes an Endpoint an Entity; the zero value: nothing does, and it need not be
// one. The store prevents two Entities from naming one Endpoint; after a rollback, the name of the Endpoint has precedence.
func (refs entityRefs) source(endpoint *state.Object) entitySource {
	v := endpoint.Value.(*state.Endpoint)
	o := refs.exact[state.EndpointRef{Name: endpoint.Name}]
	if of := (state.EndpointRef{Namespace: v.Namespace, Pod: v.Pod, UID: v.UID}); o == nil && v.Pod != "" {
		o = refs.exact[of]
		if o == nil && v.UID == "" {
			o = refs.pods[of]
		}
		if of.UID = ""; o == nil {
			o = refs.exact[of]
		}
	}
	if o == nil && len(v.Labels) == 0 && !refs.of.RequiresEntity(v) {
		return entitySource{}
	}
	network, _ := ResolversOf(refs.of, v)
	return entitySource{o, endpoint, network}
}

// newEntity makes a value of the state.
func newEntity(name string, from entitySource) *policy.Entity {
	e := &policy.Entity{Set: state.SetPods}
	if from.entity != nil {
		*e = from.entity.Value.(*state.Entity).Entity
	}
	e.Name = name
	if e.Here {
		e.Endpoint = policy.Here
	}
	if from.endpoint == nil {
		return e
	}
	v := from.endpoint.Value.(*state.Endpoint)
	switch {
	case from.isUnknown():
		e.Set = unknown
	case from.entity == nil:
		e.Namespace, e.Labels = v.Namespace, v.Labels
	}
	e.Endpoint, e.Addrs, e.Network = from.endpoint.Name, v.Addresses, from.network
	// The source guard permits this address too.
	if local := datapath.LinkLocal(v.MAC); !slices.Contains(e.Addrs, local) {
		e.Addrs = append(slices.Clone(e.Addrs), local)
	}
	return e
}

// keepAttached keeps the Entities of deleted Endpoints whose ports are still attached: their
// packets must obey policies until the end. An address that belongs to another Entity now is not
// kept.
func (b *Builder) keepAttached(s *state.Snapshot, next *policy.State, isAttached func(string) bool) (leaving bool) {
	for name, e := range b.last.Entities {
		if e.Endpoint == "" || next.Entities[name] != nil {
			continue
		}
		if _, exists := s.Get(state.Key{Kind: state.KindEndpoint, Name: e.Endpoint}); exists || !isAttached(e.Endpoint) {
			continue
		}
		taken := map[netip.Addr]bool{}
		for _, other := range next.Entities {
			for _, a := range other.Addrs {
				taken[a] = true
			}
		}
		kept := *e
		kept.Addrs = slices.DeleteFunc(slices.Clone(e.Addrs), func(a netip.Addr) bool { return taken[a] })
		next.Entities[name], leaving = same(e, &kept), true
	}
	return leaving
}

func (b *Builder) buildTiers(s *state.Snapshot, g Groups, next *policy.State) {
	last := make(map[string]*policy.Tier, len(b.last.Tiers))
	for _, tier := range b.last.Tiers {
		last[tier.Name] = tier
	}
	for _, o := range s.Tiers() {
		tier := o.Value.(*state.Tier).Tier
		tier.Name = o.Name
		next.Tiers = append(next.Tiers, same(last[o.Name], &tier))
	}
	// The policies of a tier that cannot be decoded stay in force.
	for _, k := range g.Undecodable(state.KindTier) {
		tier := policy.Tier{Name: k.Name}
		next.Tiers = append(next.Tiers, same(last[k.Name], &tier))
	}
}

func (b *Builder) buildPolicies(s *state.Snapshot, g Groups, next *policy.State) {
	policies := make(map[*state.Object]builtPolicy, len(b.policies))
	undecodable := g.Undecodable(state.KindTier)
	for o := range s.After(state.KindPolicy, "") {
		v := o.Value.(*state.Policy)
		if k := (state.Key{Kind: state.KindTier, Name: v.Tier}); slices.Contains(undecodable, k) {
			g.Lack(o.Key, k, "evaluated after all other tiers")
		}
		revision := uint64(0)
		for _, name := range v.GroupNames() {
			revision = max(revision, g.RevisionOf(name))
		}
		built, ok := b.policies[o]
		if !ok || built.groups != revision || len(v.Groups) > 0 && len(s.Undecodable()) > 0 {
			built = builtPolicy{same(b.last.Policies[o.Name], newPolicy(o, g)), revision}
		}
		policies[o], next.Policies[o.Name] = built, built.value
	}
	b.policies = policies
}

// newPolicy makes a value of the state, with the prefixes of groups.
func newPolicy(o *state.Object, g Groups) *policy.Policy {
	v := o.Value.(*state.Policy)
	p := v.Policy
	p.Name = o.Name
	if len(v.Groups) == 0 {
		return &p
	}
	for d := range p.Rules {
		p.Rules[d] = slices.Clone(p.Rules[d])
		for i := range p.Rules[d] {
			p.Rules[d][i].Peers = slices.Clone(p.Rules[d][i].Peers)
		}
	}
	for i := range v.Groups {
		at := &v.Groups[i]
		rule := &p.Rules[at.Direction][at.Rule]
		whole := datapath.AddressGroup{}
		for _, name := range at.Names {
			missing := g.Flatten(name, &whole)
			if missing == (state.Key{}) {
				continue
			}
			g.Lack(o.Key, missing, "denies more than desired")
			if rule.Action == policy.Pass {
				rule.Action = policy.Deny
			}
			if rule.Action != policy.Allow {
				rule.Peers = nil // deny rather too much
			}
		}
		if len(rule.Peers) > at.Peer {
			peer := &rule.Peers[at.Peer]
			peer.Prefixes = slices.Concat(peer.Prefixes, whole.Prefixes)
		}
	}
	return &p
}
