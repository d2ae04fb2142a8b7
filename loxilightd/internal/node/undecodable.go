// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/listing"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// After a downgrade, the store may contain rules and groups that this version cannot decode. A set
// of rules is replaced as a whole, and a new set would lack these rules. So while one of them is in
// force, the set that the other version left is kept. After a boot no set is left: then a rule that
// denies more packets stands in for each FirewallRule that may deny packets.

// kept describes a set that is kept because it has rules that this version cannot decode.
type kept struct {
	object state.Key          // that cannot be decoded; the zero Key: the set is not kept
	owners map[state.Key]bool // of the rules in the set
	since  uint64             // the first revision that was received: the set is assumed to be as of this revision
}

// mustKeep reports whether the set in force must be kept, given the groups of the desired set. The
// caller holds r.mu.
func (r *ruleSet[V]) mustKeep(g *groups) bool {
	r.kept.object = state.Key{}
	if len(g.lacking) == 0 || r.Has(datapath.NodeSet) { // this run has replaced the set before
		return false
	}
	r.kept.owners = map[state.Key]bool{}
	for _, name := range r.Rules() {
		owner := ownerOf(r.kind, name)
		r.kept.owners[owner] = true
		if k, ok := g.lacking[owner]; ok && (!r.isKept() || k.String() < r.kept.object.String()) {
			r.kept.object = k
		}
	}
	if r.kept.since == 0 {
		r.kept.since = g.snapshot.Revision
	}
	return r.isKept()
}

// isKept reports whether the set in force is kept. The caller holds r.mu.
func (r *ruleSet[V]) isKept() bool { return r.kept.object != state.Key{} }

// isKeptWith reports whether the kept set has the rules of an object. The caller holds r.mu.
func (r *ruleSet[V]) isKeptWith(o *state.Object) bool {
	return o.Kind == state.KindAddressGroup || r.kept.owners[o.Key]
}

// keptText returns why the set in force is kept, and what to do. The caller holds r.mu.
func (r *ruleSet[V]) keptText() string {
	return fmt.Sprintf("the %s rules in force stay unchanged, because this version cannot decode %s, on which one of them depends: %s",
		r.kind, r.kept.object, undecodableTodo(r.kept.object))
}

// standInText returns which objects have no rules in the set because they cannot be decoded; empty:
// none. The caller holds r.mu.
func (r *ruleSet[V]) standInText() string {
	if len(r.groups.lacking) == 0 {
		return ""
	}
	var names []string
	for k := range r.groups.lacking {
		names = append(names, k.String())
	}
	slices.Sort(names)
	first := slices.MinFunc(slices.Collect(maps.Values(r.groups.lacking)), func(a, b state.Key) int { return strings.Compare(a.String(), b.String()) })
	instead := ""
	if r.groups.standIns {
		instead = "; in place of those that may deny packets, a rule of the same priority denies all packets that firewall.exempt does not list"
	}
	return fmt.Sprintf("not in force, because this version cannot decode %s: %s%s: %s", first, listing.First(names, 3), instead, undecodableTodo(first))
}

// undecodableTodo returns what to do about an object that this version cannot decode.
func undecodableTodo(k state.Key) string {
	return fmt.Sprintf("delete it (llcli %s delete %s), or install a version that can decode it", strings.ToLower(k.Kind), k.Name)
}

// addUndecodable records the objects of a kind that this version cannot decode.
func (g *groups) addUndecodable(kinds ...string) (keys []state.Key) {
	for _, k := range g.snapshot.Undecodable() {
		if slices.Contains(kinds, k.Kind) {
			g.lacking[k] = k
			keys = append(keys, k)
		}
	}
	return keys
}

// standIn marks the name of a rule that stands in for the rule of that name. No object has such a
// name.
const standIn = "?"

// standInFor returns the rule that stands in for a FirewallRule that this version cannot decode. It
// denies all packets with the same priority, so that rules with precedence over that rule keep it.
// It returns false if the rule denies no packet.
func standInFor(spec string) (datapath.FirewallRule, bool) {
	var known struct{ Priority, Action json.RawMessage }
	r := datapath.FirewallRule{Priority: math.MinInt32, Hooks: datapath.HookAll, Action: datapath.ActionDeny}
	if json.Unmarshal([]byte(spec), &known) != nil {
		return r, true
	}
	if known.Priority == nil {
		r.Priority = state.DefaultPriority
	} else if json.Unmarshal(known.Priority, &r.Priority) != nil {
		r.Priority = math.MinInt32
	}
	return r, string(known.Action) != `"allow"`
}
