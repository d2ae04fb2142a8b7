// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// ruleKinds are the kinds whose objects form the sets, or on which the sets depend.
var ruleKinds = []string{state.KindFirewallRule, state.KindNAT, state.KindAddressGroup, state.KindEndpoint}

// applyRules passes changes to the sets of rules. roaming is set if the roaming pods have changed
// too.
func (n *Node) applyRules(s *state.Snapshot, changed []state.Key, roaming bool) {
	if !n.ruled {
		n.ruled = true
		changed = append(slices.Clip(changed), s.Undecodable()...)
	}
	n.policies.apply(s, changed)
	if roaming || hasPodRules(s, changed) {
		// NAT has derived rules too.
		changed = append(slices.Clip(changed), state.Key{Kind: state.KindNAT})
	}
	if slices.ContainsFunc(changed, func(k state.Key) bool { return slices.Contains(ruleKinds, k.Kind) }) {
		n.firewall.apply(s, changed)
		n.nat.apply(s, changed)
	}
}

// waitRules waits until an attempt has been made to apply the current desired sets, or ctx ends.
func (n *Node) waitRules(ctx context.Context) {
	_ = n.firewall.WaitTried(ctx, datapath.NodeSet) // if this takes longer, ports do not wait
	_ = n.nat.WaitTried(ctx, datapath.NodeSet)
}

// waitPolicies waits for a longer time until an attempt has been made to apply the current Policies.
func (n *Node) waitPolicies(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, policyTimeout)
	defer cancel()
	_ = n.policies.WaitTried(ctx, datapath.NodeSet)
}

// waitNAT waits for a short time until an attempt has been made to apply the current desired NAT
// rules.
func (n *Node) waitNAT(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	_ = n.nat.WaitTried(ctx, datapath.NodeSet) // if this takes longer, ports do not wait
}

// buildNAT makes a set from the NAT rules, including the rules of pod networks. Pods' host ports
// are never announced.
func (n *Node) buildNAT(s *state.Snapshot, g *groups) (datapath.NATSet, int) {
	set := datapath.NATSet{Rules: map[datapath.NATName]datapath.NAT{}}
	g.omitted = n.omittedNAT(s)
	g.addUndecodable(state.KindNAT, state.KindPodNetwork)
	for o := range s.After(state.KindNAT, "") {
		if g.omitted[o.Key] != "" {
			continue
		}
		v := o.Value.(*state.NAT).NAT
		v.Unannounced = o.Owner == state.OwnerCNI
		if g.add(o.Key, &v.Match) {
			set.Rules[datapath.NATName(o.Name)] = v
		} else {
			g.omitted[o.Key] = fmt.Sprintf("not in force, because this version cannot decode %s: %s", g.lacking[o.Key], undecodableTodo(g.lacking[o.Key]))
		}
	}
	if len(s.PodNetworks()) > 0 {
		set.Uplinks = n.uplinksOf(s)
		n.uplinks.Store(&set.Uplinks)
		g.derived = podNAT(s, set.Uplinks)
		for _, rules := range g.derived {
			maps.Copy(set.Rules, rules)
		}
	}
	set.Groups = g.flat
	return set, len(set.Rules)
}

// buildFirewall makes a set from the firewall rules and the exempt packets.
func (n *Node) buildFirewall(s *state.Snapshot, g *groups) (datapath.FirewallSet, int) {
	set := datapath.FirewallSet{Rules: map[datapath.RuleName]datapath.FirewallRule{}, Exempt: *n.exempt.Load()}
	for _, k := range g.addUndecodable(state.KindFirewallRule) {
		if r, denies := standInFor(s.UndecodableSpec(k)); denies {
			set.Rules[datapath.RuleName(standIn+k.Name)] = r
			g.standIns = true
		}
	}
	g.omitted = map[state.Key]string{}
	for o := range s.After(state.KindFirewallRule, "") {
		v := o.Value.(*state.FirewallRule).FirewallRule
		if g.add(o.Key, &v.Match) {
			set.Rules[datapath.RuleName(o.Name)] = v
			continue
		}
		group, effect := g.lacking[o.Key], "not in force"
		if v.Action != datapath.ActionAllow {
			v.Match, v.Hooks, v.Action = datapath.Match{}, datapath.HookAll, datapath.ActionDeny
			set.Rules[datapath.RuleName(standIn+o.Name)] = v
			g.standIns, effect = true, "denies all packets that firewall.exempt does not list"
		}
		g.omitted[o.Key] = fmt.Sprintf("%s, because this version cannot decode %s: %s", effect, group, undecodableTodo(group))
	}
	set.Groups = g.flat
	return set, len(set.Rules)
}

// omittedNAT returns the objects whose NAT rules are not in force, and why: pods' host ports on
// addresses that the node does not have, since packets to such an address belong to another host,
// and PodNetworks without an uplink. The node always has loopback addresses.
func (n *Node) omittedNAT(s *state.Snapshot) map[state.Key]string {
	omitted := map[state.Key]string{}
	for o := range s.After(state.KindNAT, "") {
		if o.Owner != state.OwnerCNI {
			continue
		}
		for _, p := range o.Value.(*state.NAT).Match.Destination {
			if !p.Addr().IsLoopback() && n.opts.Plane.Telemetry().DeviceOf(p.Addr(), false) == "" {
				omitted[o.Key] = fmt.Sprintf("not in force: %s is not an address of this node; it is in force again as soon as the node has the address", p.Addr())
			}
		}
	}
	if networks := s.PodNetworks(); len(networks) > 0 && len(n.uplinksOf(s)) == 0 {
		for _, o := range networks {
			if o.Value.(*state.PodNetwork).Masquerade {
				omitted[o.Key] = "nothing is masqueraded, since no uplink has our programs: create an Interface with role uplink for the outgoing device"
			}
		}
	}
	return omitted
}

// omittedChanged reports whether other objects than before must be omitted from the NAT rules.
func (n *Node) omittedChanged(s *state.Snapshot) bool {
	n.nat.mu.Lock()
	before := maps.Clone(n.nat.groups.omitted)
	for k := range n.nat.groups.lacking {
		delete(before, k)
	}
	n.nat.mu.Unlock()
	return !maps.Equal(n.omittedNAT(s), before)
}
