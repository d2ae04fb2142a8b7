// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// groups collects what a set refers to, while the set is built; afterwards it does not change.
type groups struct {
	snapshot *state.Snapshot
	before   *groups                                      // of the previous set; nil once the set is built
	flat     map[datapath.GroupName]datapath.AddressGroup // with the prefixes of nested groups
	members  map[datapath.GroupName]uint64                // these, and nested groups, with the revisions of revisionOf
	selected map[datapath.GroupName]selection             // of the members that select Endpoints by labels

	localAddrs func() []netip.Addr
	local      []netip.Addr // members of LocalGroup, if isLocal
	isLocal    bool         // a match refers to LocalGroup

	omitted map[state.Key]string // objects without rules in the set, and why
	// derived are the rules that are made from PodNetworks and other objects.
	derived map[state.Key]map[datapath.NATName]datapath.NAT
	// lacking are the objects whose rules this version cannot make, each with the object that it
	// cannot decode. standIns are rules that the set has in their place.
	lacking  map[state.Key]state.Key
	standIns bool
}

// selection are the addresses of the Endpoints that a group selects by labels, and the revision of
// the first set with these addresses.
type selection struct {
	addrs    []netip.Addr
	revision uint64
}

// newGroups returns groups for a set of rules that is made from snapshot s; before are the groups of
// the previous set.
func newGroups(s *state.Snapshot, before *groups, localAddrs func() []netip.Addr) *groups {
	return &groups{
		snapshot: s, before: before, localAddrs: localAddrs,
		flat: map[datapath.GroupName]datapath.AddressGroup{}, members: map[datapath.GroupName]uint64{},
		selected: map[datapath.GroupName]selection{}, lacking: map[state.Key]state.Key{},
	}
}

// has reports whether the set refers to a group.
func (g *groups) has(k state.Key) bool {
	_, ok := g.members[datapath.GroupName(k.Name)]
	return ok
}

// isLabelled reports whether a member selects Endpoints by labels.
func (g *groups) isLabelled() bool { return len(g.selected) > 0 }

// latest returns the latest revision of an object and of the groups that its rules depend on.
func (g *groups) latest(o *state.Object) uint64 {
	latest := o.Revision
	all := func(lists ...[]datapath.GroupName) {
		for _, list := range lists {
			for _, name := range list {
				latest = max(latest, g.members[name])
			}
		}
	}
	switch v := o.Value.(type) {
	case *state.FirewallRule:
		all(v.Match.SourceGroups, v.Match.DestinationGroups)
	case *state.NAT:
		all(v.Match.SourceGroups, v.Match.DestinationGroups)
	case *state.Policy:
		all(v.GroupNames())
	case *state.AddressGroup:
		all([]datapath.GroupName{datapath.GroupName(o.Name)})
	}
	return latest
}

// add adds the groups that a match of an object refers to. It returns false if this version cannot
// decode one of them: without that group, the match would have a different meaning.
func (g *groups) add(of state.Key, m *datapath.Match) bool {
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
			g.revisionOf(name)
			if missing := g.flatten(name, &whole, map[datapath.GroupName]struct{}{}); missing != (state.Key{}) {
				g.lacking[of] = missing
				return false
			}
			g.flat[name] = whole
		}
	}
	return true
}

// revisionOf returns the revision that last changed the content of a group: its object, a nested
// group, or the Endpoints that one of them selects.
func (g *groups) revisionOf(name datapath.GroupName) uint64 {
	if latest, ok := g.members[name]; ok {
		return latest
	}
	g.members[name] = 0
	o, ok := g.snapshot.Get(state.Key{Kind: state.KindAddressGroup, Name: string(name)})
	if !ok {
		return 0
	}
	v, latest := o.Value.(*state.AddressGroup), o.Revision
	if len(v.Labels) > 0 {
		is := selection{selectedBy(g.snapshot, v), g.snapshot.Revision}
		if g.before != nil {
			if was, ok := g.before.selected[name]; ok && slices.Equal(was.addrs, is.addrs) {
				is = was
			}
		}
		g.selected[name] = is
		latest = max(latest, is.revision)
	}
	for _, within := range v.Groups {
		latest = max(latest, g.revisionOf(within))
	}
	g.members[name] = latest
	return latest
}

// flatten adds the prefixes of a group and its nested groups to whole. It returns the first of these
// groups that this version cannot decode, or the zero Key.
func (g *groups) flatten(name datapath.GroupName, whole *datapath.AddressGroup, seen map[datapath.GroupName]struct{}) (missing state.Key) {
	if _, twice := seen[name]; twice {
		return missing
	}
	seen[name] = struct{}{}
	k := state.Key{Kind: state.KindAddressGroup, Name: string(name)}
	o, ok := g.snapshot.Get(k)
	if !ok {
		return k
	}
	v := o.Value.(*state.AddressGroup)
	if len(v.Groups)+len(v.Labels) == 0 && whole.Prefixes == nil {
		whole.Prefixes = v.Prefixes // this slice is shared and must never be modified
		return missing
	}
	whole.Prefixes = append(whole.Prefixes[:len(whole.Prefixes):len(whole.Prefixes)], v.Prefixes...)
	for _, a := range g.selected[name].addrs {
		whole.Prefixes = append(whole.Prefixes, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, within := range v.Groups {
		if missing = g.flatten(within, whole, seen); missing != (state.Key{}) {
			return missing
		}
	}
	return missing
}

// addLocal returns the group that contains the node's own addresses.
func (g *groups) addLocal() (whole datapath.AddressGroup) {
	g.local, g.isLocal = g.localAddrs(), true
	for _, a := range g.local {
		whole.Prefixes = append(whole.Prefixes, netip.PrefixFrom(a, a.BitLen()))
	}
	return whole
}

// selectedBy returns the addresses of the Endpoints that a group selects by labels.
func selectedBy(s *state.Snapshot, v *state.AddressGroup) (addrs []netip.Addr) {
	for o := range s.After(state.KindEndpoint, "") {
		if e := o.Value.(*state.Endpoint); slices.ContainsFunc(v.Labels, e.Has) {
			addrs = append(addrs, e.Addresses...)
		}
	}
	return addrs
}

// compareMaps sets the keys whose values differ.
func compareMaps[K comparable, V any](differ map[K]bool, before, now map[K]V) {
	for k, v := range now {
		if was, ok := before[k]; !ok || !reflect.DeepEqual(was, v) {
			differ[k] = true
		}
	}
	for k := range before {
		if _, ok := now[k]; !ok {
			differ[k] = true
		}
	}
}
