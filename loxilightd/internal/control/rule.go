// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// defaultPriority leaves room before and after a rule without a priority.
const defaultPriority = 1000

func priorityOf(told *int32) int32 {
	if told == nil {
		return defaultPriority
	}
	return *told
}

func parseFirewallRule(s *api.FirewallRuleSpec, b *budget) (state.Value, *api.Error) {
	v := &state.FirewallRule{}
	v.Priority, v.Log = priorityOf(s.Priority), s.Log
	v.Stateless = s.Stateful != nil && !*s.Stateful
	if s.Action == "" {
		return nil, invalid("spec.action", "is missing: want one of allow, deny, reject")
	}
	action, err := choose("spec.action", s.Action, "allow", "deny", "reject")
	switch s.Action {
	case "drop":
		err = invalid("spec.action", "\"drop\" is called deny here")
	case "accept":
		err = invalid("spec.action", "\"accept\" is called allow here")
	}
	if err != nil {
		return nil, err
	}
	v.Action = [...]datapath.FirewallAction{datapath.ActionAllow, datapath.ActionDeny, datapath.ActionReject}[action]
	if v.Match, _, err = parseMatch(s.Match, b); err != nil {
		return nil, err
	}
	if v.Hooks, err = parseHooks(s.Hooks, &v.Match); err != nil {
		return nil, err
	}
	return v, nil
}

var hookNames = []struct {
	name string
	hook datapath.FirewallHook
}{{"forward", datapath.HookForward}, {"input", datapath.HookInput}, {"output", datapath.HookOutput}}

// parseHooks parses the hooks of a rule. The default is all hooks at which the devices of the
// match are known.
func parseHooks(told api.Words, m *datapath.Match) (datapath.FirewallHook, *api.Error) {
	known := datapath.HookAll
	if len(m.In) > 0 {
		known &^= datapath.HookOutput
	}
	if len(m.Out) > 0 {
		known &^= datapath.HookInput
	}
	if len(told) == 0 {
		return known, nil
	}
	var hooks datapath.FirewallHook
	for i, w := range told {
		field := fmt.Sprintf("spec.hooks[%d]", i)
		hook := datapath.FirewallHook(0)
		for _, h := range hookNames {
			if h.name == string(w) {
				hook = h.hook
			}
		}
		switch {
		case hook == 0:
			return 0, invalid(field, "%q is not one of forward, input, output", shorten(string(w)))
		case hooks&hook != 0:
			return 0, invalid(field, "%s occurs twice", w)
		case hook == datapath.HookInput && known&hook == 0:
			return 0, invalid("spec.match.out", "a packet for the node itself leaves by no device: take input out of spec.hooks, or leave this out")
		case hook == datapath.HookOutput && known&hook == 0:
			return 0, invalid("spec.match.in", "a packet of the node itself came in by no device: take output out of spec.hooks, or leave this out")
		}
		hooks |= hook
	}
	return hooks, nil
}

func parseAddressGroup(s *api.AddressGroupSpec, b *budget) (state.Value, *api.Error) {
	v := &state.AddressGroup{}
	before := map[datapath.GroupName]int{}
	for i, m := range s.Members {
		field := func() string { return fmt.Sprintf("spec.members[%d]", i) }
		if m.ByLabels() {
			labels, err := parseLabelMember(field(), m.Text)
			if err != nil {
				return nil, err
			}
			v.Labels = append(v.Labels, labels)
			continue
		}
		group, isGroup, err := parseGroup(m.Text)
		if isGroup && err == nil {
			if first, twice := before[group]; twice {
				return nil, invalid(field(), "group %s stands at members[%d] already", shorten(string(group)), first)
			}
			if !b.grow(entryMemory) {
				return nil, api.Errorf(api.ReasonCapacity, "%s", b.tooMuch()).At("", field())
			}
			before[group] = i
			v.Groups = append(v.Groups, group)
			continue
		}
		var list []netip.Prefix
		if err == nil {
			list, err = parsePrefixes(m.Text)
		}
		if err != nil {
			return nil, invalid(field(), "%q %v; or group:NAME for another AddressGroup", shorten(m.Text), err)
		}
		if err := b.take(list, field()); err != nil {
			return nil, err
		}
		v.Prefixes = append(v.Prefixes, list...)
	}
	return v, nil
}

// parseLabelMember parses a member that selects Endpoints: {"labels": {…}}.
func parseLabelMember(field, text string) (map[string]string, *api.Error) {
	var m struct {
		Labels map[string]string `json:"labels"`
	}
	if err := decodeStrict([]byte(text), &m); err != nil {
		return nil, invalid(strings.TrimSuffix(field+"."+err.path, "."), "%s", err.text)
	}
	if len(m.Labels) == 0 {
		return nil, invalid(field+".labels", "is missing: say which labels an Endpoint of this group has, all of them")
	}
	if err := checkLabels(m.Labels); err != nil {
		return nil, invalid(field+".labels", "%s", strings.TrimPrefix(err.Message, "labels: "))
	}
	return m.Labels, nil
}
