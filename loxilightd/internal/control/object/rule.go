// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

func priorityOf(priority *int32) int32 {
	if priority == nil {
		return state.DefaultPriority
	}
	return *priority
}

func parseFirewallRule(s *api.FirewallRuleSpec, b *decode.Budget) (state.Value, *api.Error) {
	v := &state.FirewallRule{}
	v.Priority, v.Log = priorityOf(s.Priority), s.Log
	v.Stateless = s.Stateful != nil && !*s.Stateful
	if s.Action == "" {
		return nil, invalid("spec.action", "is missing: want one of %s", strings.Join(api.FirewallActions, ", "))
	}
	action, err := choose("spec.action", s.Action, api.FirewallActions...)
	switch s.Action {
	case "drop":
		err = invalid("spec.action", "\"drop\" is called deny here")
	case "accept":
		err = invalid("spec.action", "\"accept\" is called allow here")
	}
	if err != nil {
		return nil, err
	}
	v.Action = datapath.FirewallAction(action)
	if v.Match, _, err = parseMatch(s.Match, b); err != nil {
		return nil, err
	}
	if v.Hooks, err = parseHooks(s.Hooks, &v.Match); err != nil {
		return nil, err
	}
	return v, nil
}

// hookBits are the bits of api.FirewallHooks, in the same order.
var hookBits = [...]datapath.FirewallHook{datapath.HookForward, datapath.HookInput, datapath.HookOutput}

// parseHooks parses the hooks of a rule. The default is all hooks at which the devices of the
// match are known.
func parseHooks(words api.Words, m *datapath.Match) (datapath.FirewallHook, *api.Error) {
	known := datapath.HookAll
	if len(m.In) > 0 {
		known &^= datapath.HookOutput
	}
	if len(m.Out) > 0 {
		known &^= datapath.HookInput
	}
	if len(words) == 0 {
		return known, nil
	}
	var hooks datapath.FirewallHook
	for i, w := range words {
		field := fmt.Sprintf("spec.hooks[%d]", i)
		hook := datapath.FirewallHook(0)
		if n := slices.Index(api.FirewallHooks, string(w)); n >= 0 {
			hook = hookBits[n]
		}
		switch {
		case hook == 0:
			return 0, invalid(field, "%q is not one of %s", decode.Shorten(string(w)), strings.Join(api.FirewallHooks, ", "))
		case hooks&hook != 0:
			return 0, invalid(field, "%s occurs twice", w)
		case hook == datapath.HookInput && known&hook == 0:
			return 0, invalid("spec.match.out", "packets to the node itself have no output device: remove input from spec.hooks, or omit this field")
		case hook == datapath.HookOutput && known&hook == 0:
			return 0, invalid("spec.match.in", "packets from the node itself have no input device: remove output from spec.hooks, or omit this field")
		}
		hooks |= hook
	}
	return hooks, nil
}

func parseAddressGroup(s *api.AddressGroupSpec, b *decode.Budget) (state.Value, *api.Error) {
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
				return nil, invalid(field(), "group %s duplicates members[%d]", decode.Shorten(string(group)), first)
			}
			if !b.TakeMemory(decode.EntryMemory) {
				return nil, api.Errorf(api.ReasonCapacity, "%s", b.TooMuch()).At("", field())
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
			return nil, invalid(field(), "%q %v; or group:NAME for another AddressGroup", decode.Shorten(m.Text), err)
		}
		if err := b.TakePrefixes(list, field()); err != nil {
			return nil, err
		}
		v.Prefixes = append(v.Prefixes, list...)
	}
	return v, nil
}

// parseLabelMember parses a group member that selects Endpoints by their labels: {"labels": {…}}.
func parseLabelMember(field, text string) (map[string]string, *api.Error) {
	var m struct {
		Labels map[string]string `json:"labels"`
	}
	if err := decode.Strict([]byte(text), &m); err != nil {
		return nil, invalid(strings.TrimSuffix(field+"."+err.Path, "."), "%s", err.Text)
	}
	if len(m.Labels) == 0 {
		return nil, invalid(field+".labels", "is missing: set the labels that every Endpoint of this group has")
	}
	if err := checkLabels(m.Labels); err != nil {
		return nil, invalid(field+".labels", "%s", strings.TrimPrefix(err.Message, "labels: "))
	}
	return m.Labels, nil
}
