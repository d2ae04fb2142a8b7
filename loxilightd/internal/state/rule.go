// SPDX-License-Identifier: Apache-2.0

package state

import (
	"iter"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/datapath"
)

// DefaultPriority is the priority of rules without a configured priority; it leaves room before and
// after them.
const DefaultPriority = 1000

// FirewallRule is the spec of a FirewallRule.
type FirewallRule struct{ datapath.FirewallRule }

func (r *FirewallRule) cost() datapath.Cost             { return r.Cost() }
func (*FirewallRule) claims(func(claim, func() string)) {}

// NAT is the spec of a NAT.
type NAT struct{ datapath.NAT }

func (n *NAT) cost() datapath.Cost             { return n.Cost() }
func (*NAT) claims(func(claim, func() string)) {}

// AddressGroup is the spec of an AddressGroup.
type AddressGroup struct {
	datapath.AddressGroup
	Groups []datapath.GroupName // groups whose prefixes also belong to this group
	Labels []map[string]string  // labels that select Endpoints: all labels in one of these maps
}

func (g *AddressGroup) cost() datapath.Cost             { return g.Cost() }
func (*AddressGroup) claims(func(claim, func() string)) {}

// groupsOf yields the AddressGroups to which a value refers, each with the field that names it.
func groupsOf(v Value) iter.Seq2[datapath.GroupName, string] {
	return func(yield func(datapath.GroupName, string) bool) {
		all := func(groups []datapath.GroupName, field string) bool {
			for _, g := range groups {
				if g != datapath.LocalGroup && !yield(g, field) {
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
		case *Policy:
			for i := range v.Groups {
				if !all(v.Groups[i].Names, v.Groups[i].fieldOf()) {
					return
				}
			}
		}
	}
}

// referring are the kinds of objects that may refer to groups.
var referring = []string{KindFirewallRule, KindNAT, KindAddressGroup, KindPolicy}

// checkGroups rejects a plan in which an object refers to a group that does not exist, or to
// itself.
func (p *plan) checkGroups() error {
	deleted := map[datapath.GroupName]struct{}{}
	for _, o := range p.dropped {
		if o.Kind == KindAddressGroup && p.edit.get(o.Key) == nil {
			deleted[datapath.GroupName(o.Name)] = struct{}{}
		}
	}
	for _, o := range p.puts {
		for group, field := range groupsOf(o.Value) {
			k := Key{KindAddressGroup, string(group)}
			if _, isDropped := deleted[group]; isDropped || !p.has(k) {
				return refuse(Invalid, o.Key, field, "there is no %s: create it first, or in the same change", k)
			}
		}
	}
	if err := p.checkCircles(); err != nil {
		return err
	}
	return p.checkDeletedGroups(deleted)
}

// has reports whether an object exists after the plan, opaque or not.
func (p *plan) has(k Key) bool { return p.edit.find(k) != nil }

// checkDeletedGroups rejects the deletion of groups to which an object still refers.
func (p *plan) checkDeletedGroups(deleted map[datapath.GroupName]struct{}) error {
	if len(deleted) == 0 {
		return nil
	}
	for _, kind := range referring {
		for o := range p.each(kind) {
			for group, field := range groupsOf(o.Value) {
				if _, ok := deleted[group]; ok {
					return refuse(Conflict, Key{KindAddressGroup, string(group)}, "", "%s refers to it in %s: change or delete that first, or in the same change", o.Key, field)
				}
			}
		}
	}
	return nil
}

// checkCircles rejects groups that contain themselves, directly or through other groups. It visits
// each group only once, however many groups the plan puts.
func (p *plan) checkCircles() error {
	const open, finished = 1, 2
	type step struct {
		name   string
		groups []datapath.GroupName // groups that have yet to be visited
	}
	state := map[string]uint8{}
	var path []step
	enter := func(name string, v Value) {
		if g, ok := v.(*AddressGroup); ok {
			state[name] = open
			path = append(path, step{name, g.Groups})
		}
	}
	for _, o := range p.puts {
		if state[o.Name] == 0 {
			enter(o.Name, o.Value)
		}
		for len(path) > 0 {
			top := &path[len(path)-1]
			if len(top.groups) == 0 {
				state[top.name] = finished
				path = path[:len(path)-1]
				continue
			}
			name := string(top.groups[0])
			top.groups = top.groups[1:]
			if state[name] == open {
				from := slices.IndexFunc(path, func(s step) bool { return s.name == name })
				circle := map[string]bool{}
				for _, s := range path[from:] {
					circle[s.name] = true
				}
				return p.refuseCircle(circle)
			}
			if next := p.edit.get(Key{KindAddressGroup, name}); next != nil && state[name] == 0 {
				enter(name, next.Value)
			}
		}
	}
	return nil
}

// refuseCircle returns the error for the first group in the circle that the plan puts. The circle
// always contains such a group, because the stored groups have no circles.
func (p *plan) refuseCircle(circle map[string]bool) error {
	for _, o := range p.puts {
		if o.Kind == KindAddressGroup && circle[o.Name] {
			return refuse(Invalid, o.Key, "spec.members", "the groups in this list form a cycle with this group: remove one of them")
		}
	}
	return refuse(Invalid, Key{}, "", "the groups %v form a cycle: remove one of their members", slices.Sorted(maps.Keys(circle)))
}
