// SPDX-License-Identifier: Apache-2.0

package state

import (
	"iter"
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// FirewallRule is the spec of a FirewallRule.
type FirewallRule struct{ datapath.FirewallRule }

func (r *FirewallRule) cost() datapath.Cost { return r.Cost() }

func (*FirewallRule) claims(func(claim, func() string)) {}

// NAT is the spec of a NAT.
type NAT struct{ datapath.NAT }

func (n *NAT) cost() datapath.Cost { return n.Cost() }

func (*NAT) claims(func(claim, func() string)) {}

// AddressGroup is the spec of an AddressGroup.
type AddressGroup struct {
	datapath.AddressGroup
	Groups []datapath.GroupName // whose prefixes are its own, too
	Labels []map[string]string  // of Endpoints whose addresses are: all labels of one of these
}

func (g *AddressGroup) cost() datapath.Cost { return g.Cost() }

func (*AddressGroup) claims(func(claim, func() string)) {}

// groupsOf yields the groups that a value refers to, each with the field that does.
func groupsOf(v Value) iter.Seq2[datapath.GroupName, string] {
	return func(yield func(datapath.GroupName, string) bool) {
		all := func(groups []datapath.GroupName, field string) bool {
			for _, g := range groups {
				if !yield(g, field) {
					return false
				}
			}
			return true
		}
		match := func(m *datapath.Match) {
			_ = all(m.SourceGroups, "spec.match.source") && all(m.DestinationGroups, "spec.match.destination")
		}
		switch v := v.(type) {
		case *FirewallRule:
			match(&v.Match)
		case *NAT:
			match(&v.Match)
		case *AddressGroup:
			all(v.Groups, "spec.members")
		}
	}
}

// referring are the kinds of objects that refer to groups.
var referring = []string{KindFirewallRule, KindNAT, KindAddressGroup}

// checkGroups refuses a plan in which an object refers to a group that is not there,
// or to itself.
func (p *plan) checkGroups() error {
	gone := map[datapath.GroupName]struct{}{}
	for _, o := range p.dropped {
		if o.Kind == KindAddressGroup && p.edit.get(o.Key) == nil {
			gone[datapath.GroupName(o.Name)] = struct{}{}
		}
	}
	for _, o := range p.puts {
		for group, field := range groupsOf(o.Value) {
			k := Key{KindAddressGroup, string(group)}
			if _, isDropped := gone[group]; isDropped || !p.has(k) {
				return refuse(Invalid, o.Key, field, "there is no %s: make it first, or in the same change", k)
			}
		}
		if err := p.checkCircle(o); err != nil {
			return err
		}
	}
	return p.checkGone(gone)
}

// has says whether an object is there when the plan is carried out, understood or not.
func (p *plan) has(k Key) bool {
	return p.edit.get(k) != nil || p.dark[k] != nil || slices.ContainsFunc(p.darkens, func(o *Object) bool { return o.Key == k })
}

// checkGone refuses to delete groups that something goes on referring to.
func (p *plan) checkGone(gone map[datapath.GroupName]struct{}) error {
	if len(gone) == 0 {
		return nil
	}
	for _, kind := range referring {
		for o := range p.each(kind) {
			for group, field := range groupsOf(o.Value) {
				if _, ok := gone[group]; ok {
					return refuse(Conflict, Key{KindAddressGroup, string(group)}, "", "%s refers to it in %s: change or delete that first, or in the same change", o.Key, field)
				}
			}
		}
	}
	return nil
}

// checkCircle refuses a group that has itself for a member, by way of others.
func (p *plan) checkCircle(o *Object) error {
	if o.Kind != KindAddressGroup {
		return nil
	}
	seen := map[string]struct{}{}
	var leadsBack func(v Value) bool
	leadsBack = func(v Value) bool {
		for group := range groupsOf(v) {
			name := string(group)
			if name == o.Name {
				return true
			}
			if _, ok := seen[name]; ok {
				continue
			}
			seen[name] = struct{}{}
			if next := p.edit.get(Key{KindAddressGroup, name}); next != nil && leadsBack(next.Value) {
				return true
			}
		}
		return false
	}
	if leadsBack(o.Value) {
		return refuse(Invalid, o.Key, "spec.members", "the groups among them lead back to this one: take one of them out")
	}
	return nil
}
