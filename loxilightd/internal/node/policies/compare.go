// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"iter"
	"reflect"

	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// maxChanges limits how many changed objects are compared with each Policy. If more have
// changed, every Policy counts as concerned.
const maxChanges = 16

// Comparison contains what differs between two snapshots and may concern Policies, except groups.
// It is immutable.
type Comparison struct {
	from, now *state.Snapshot
	all       bool             // every Policy is concerned
	was, is   policy.State     // only Entities that differ, and their namespaces
	labels    []namespaceLabel // of Namespaces that differ
}

// namespaceLabel is a namespace with its labels in both snapshots.
type namespaceLabel struct {
	name        string
	before, now map[string]string
}

// Compare compares the objects on which Policies depend. changes are the changes since the first
// snapshot, if complete is set; else they are unknown.
func Compare(from, now *state.Snapshot, changes []state.Change, complete bool) *Comparison {
	p := &Comparison{from: from, now: now}
	changed := map[state.Key]bool{}
	for _, change := range changes {
		if change.Revision > now.Revision {
			break
		}
		switch change.Kind {
		case state.KindTier, state.KindPodNetwork, state.KindBridge:
			p.all = true
		case state.KindNamespace, state.KindEntity, state.KindEndpoint:
			changed[change.Key] = true
		}
	}
	if p.all = p.all || !complete || len(changed) > maxChanges; p.all {
		return p
	}
	for k := range changed {
		if k.Kind == state.KindNamespace {
			p.labels = append(p.labels, namespaceLabel{k.Name, labelsIn(from, k.Name), labelsIn(now, k.Name)})
		}
	}
	p.was, p.is = changedEntities(from, changed), changedEntities(now, changed)
	for name, e := range p.was.Entities {
		if reflect.DeepEqual(e, p.is.Entities[name]) {
			delete(p.was.Entities, name)
			delete(p.is.Entities, name)
		}
	}
	return p
}

func labelsIn(s *state.Snapshot, namespace string) map[string]string {
	if o, ok := s.Get(state.Key{Kind: state.KindNamespace, Name: namespace}); ok {
		return o.Value.(*state.Namespace).Labels
	}
	return nil
}

// changedEntities returns the changed Entities in a snapshot, and their namespaces.
func changedEntities(s *state.Snapshot, changed map[state.Key]bool) policy.State {
	all := policy.State{Entities: map[string]*policy.Entity{}, Namespaces: map[string]*policy.Namespace{}}
	var refs *entityRefs
	add := func(name string, from entitySource) {
		e := newEntity(name, from)
		all.Entities[name] = e
		if e.Namespace != "" {
			all.Namespaces[e.Namespace] = &policy.Namespace{Labels: labelsIn(s, e.Namespace)}
		}
	}
	for k := range changed {
		o, ok := s.Get(k)
		if !ok || k.Kind == state.KindNamespace {
			continue
		}
		list := []*state.Object{o}
		if k.Kind == state.KindEntity {
			of := o.Value.(*state.Entity).Of
			if of == (state.EndpointRef{}) {
				add(remoteName(o.Name), entitySource{entity: o})
				continue
			}
			list = s.EndpointsOf(of)
		}
		if refs == nil {
			all := refsIn(s)
			refs = &all
		}
		for _, endpoint := range list {
			if from := refs.source(endpoint); from != (entitySource{}) {
				add(localName(endpoint.Name), from)
			}
		}
	}
	return all
}

// Concerns reports whether the effect of an unchanged Policy differs.
func (c *Comparison) Concerns(v *state.Policy) bool {
	if c.all {
		return true
	}
	for sel := range selectors(v) {
		for _, e := range c.was.Entities {
			if c.was.Selects(sel, e) {
				return true
			}
		}
		for _, e := range c.is.Entities {
			if c.is.Selects(sel, e) {
				return true
			}
		}
		if n := sel.Namespaces; n != nil {
			for _, l := range c.labels {
				if n.Labels.Match(l.before) != n.Labels.Match(l.now) {
					return true
				}
			}
		}
	}
	return false
}

// ConcernsEndpoints reports whether one of the Endpoints that an Entity names has changed.
func (c *Comparison) ConcernsEndpoints(of state.EndpointRef) bool {
	if c.all {
		return true
	}
	for _, s := range []*state.Snapshot{c.from, c.now} {
		for _, o := range s.EndpointsOf(of) {
			name := localName(o.Name)
			if c.was.Entities[name] != nil || c.is.Entities[name] != nil {
				return true
			}
		}
	}
	return false
}

// selectors yields all selectors of a Policy.
func selectors(v *state.Policy) iter.Seq[*policy.Selector] {
	return func(yield func(*policy.Selector) bool) {
		for i := range v.AppliedTo {
			if !yield(&v.AppliedTo[i]) {
				return
			}
		}
		for _, rules := range v.Rules {
			for i := range rules {
				for _, peer := range rules[i].Peers {
					if peer.Entities != nil && !yield(peer.Entities) {
						return
					}
				}
			}
		}
	}
}
