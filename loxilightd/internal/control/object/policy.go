// SPDX-License-Identifier: Apache-2.0

package object

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// policyParser parses the spec of a Policy.
type policyParser struct {
	spec   *api.PolicySpec
	policy state.Policy
	budget *decode.Budget
	equal  map[[sha256.Size]byte]int // rules without a name, by their content
}

// policyRule is a rule of either direction.
type policyRule struct {
	name, action string
	peers        []api.PolicyPeer
	ports        []api.PolicyPort
}

func parsePolicy(s *api.PolicySpec, b *decode.Budget) (state.Value, *api.Error) {
	p := policyParser{spec: s, budget: b}
	for _, step := range []func() *api.Error{p.place, p.isolate, p.log, p.appliedTo, p.rules} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &p.policy, nil
}

// place parses when the policy is evaluated.
func (p *policyParser) place() *api.Error {
	switch tier := p.spec.Tier; {
	case tier == "":
		return invalid("spec.tier", "is missing: name a Tier; create one if none exists (llcli tier add NAME --order NUMBER)")
	case len(tier) > maxName || !namePattern.MatchString(tier):
		return invalid("spec.tier", "%q is not a name of a Tier", decode.Shorten(tier))
	}
	p.policy.Tier, p.policy.Priority = p.spec.Tier, int(priorityOf(p.spec.Priority))
	stage, err := choose("spec.stage", p.spec.Stage, api.PolicyStages...)
	p.policy.Staged = stage == 1
	return err
}

func (p *policyParser) isolate() *api.Error {
	if err := setWords("spec.isolate", p.spec.Isolate, api.PolicyDirections, &p.policy.Isolates[policy.Ingress], &p.policy.Isolates[policy.Egress]); err != nil {
		return err
	}
	if p.spec.IsolateAction != "" && len(p.spec.Isolate) == 0 {
		return invalid("spec.isolateAction", "needs spec.isolate: set the directions in which the Policy isolates, or omit it")
	}
	action, err := choose("spec.isolateAction", p.spec.IsolateAction, api.IsolateActions...)
	p.policy.Rejects = action == 1
	return err
}

func (p *policyParser) log() *api.Error {
	return setWords("spec.log", p.spec.Log, api.PolicyLogs, &p.policy.LogsAllow, &p.policy.LogsDeny)
}

// setWords sets the flags that the words of a list stand for: of words, each at its place.
func setWords(field string, list, words []string, flags ...*bool) *api.Error {
	for i, word := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		n, err := chooseOne(at, word, words)
		if err != nil {
			return err
		}
		if *flags[n] {
			return invalid(at, "%s occurs twice", word)
		}
		*flags[n] = true
	}
	return nil
}

func (p *policyParser) appliedTo() *api.Error {
	if len(p.spec.AppliedTo) == 0 {
		return invalid("spec.appliedTo", "is missing: set at least one selector of the Entities to which the Policy applies; [{}] selects all of set %s", api.SetPods)
	}
	for i := range p.spec.AppliedTo {
		s := &p.spec.AppliedTo[i]
		selector, err := parseSelector(fmt.Sprintf("spec.appliedTo[%d]", i), s.Set, s.Namespaces, s.Entities)
		if err != nil {
			return err
		}
		p.policy.AppliedTo = append(p.policy.AppliedTo, selector)
	}
	return nil
}

func (p *policyParser) rules() *api.Error {
	names := map[string]int{}
	for i := range p.spec.Ingress {
		r := &p.spec.Ingress[i]
		if err := p.rule(policy.Ingress, i, policyRule{r.Name, r.Action, r.From, r.Ports}, names); err != nil {
			return err
		}
	}
	clear(names)
	for i := range p.spec.Egress {
		r := &p.spec.Egress[i]
		if err := p.rule(policy.Egress, i, policyRule{r.Name, r.Action, r.To, r.Ports}, names); err != nil {
			return err
		}
	}
	return nil
}

// rule parses one rule. names are the names of the rules before it.
func (p *policyParser) rule(d policy.Direction, index int, s policyRule, names map[string]int) *api.Error {
	field := fmt.Sprintf("spec.%s[%d]", d, index)
	if err := checkText(field+".name", s.name); err != nil {
		return err
	}
	if first, twice := names[s.name]; twice && s.name != "" {
		return invalid(field+".name", "%q is the name of %s[%d] already: use another name, or omit it", decode.Shorten(s.name), d, first)
	}
	names[s.name] = index
	switch s.action {
	case "drop":
		return invalid(field+".action", "\"drop\" is called deny here")
	case "accept":
		return invalid(field+".action", "\"accept\" is called allow here")
	}
	action, err := chooseOne(field+".action", s.action, api.PolicyActions)
	if err != nil {
		return err
	}
	r := policy.Rule{ID: p.identify(d, &s), Action: policy.Action(action)}
	list := [...]string{policy.Ingress: "from", policy.Egress: "to"}[d]
	for i := range s.peers {
		at := fmt.Sprintf("%s.%s[%d]", field, list, i)
		var groups []datapath.GroupName
		var peer policy.Peer
		if len(s.peers[i].Names) > 0 {
			peer, err = p.names(at, &s.peers[i], d, r.Action)
		} else {
			peer, groups, err = p.peer(at, &s.peers[i])
		}
		if err != nil {
			return err
		}
		r.Peers = append(r.Peers, peer)
		if len(groups) > 0 {
			p.policy.Groups = append(p.policy.Groups, state.PeerGroups{Direction: d, Rule: index, Peer: i, Names: groups})
		}
	}
	for i := range s.ports {
		port, err := parsePolicyPort(fmt.Sprintf("%s.ports[%d]", field, i), &s.ports[i])
		if err != nil {
			return err
		}
		r.Ports = append(r.Ports, port)
	}
	p.policy.Rules[d] = append(p.policy.Rules[d], r)
	return nil
}

// identify returns what a rule is known by after changes of the policy: its name, otherwise its
// content, and its place among rules with the same content.
func (p *policyParser) identify(d policy.Direction, s *policyRule) string {
	if s.name != "" {
		return "name " + s.name
	}
	text, _ := json.Marshal([]any{d, s.action, s.peers, s.ports}) // strings and numbers only
	sum := sha256.Sum256(text)
	if p.equal == nil {
		p.equal = make(map[[sha256.Size]byte]int)
	}
	p.equal[sum]++
	return fmt.Sprintf("content %x %d", sum[:16], p.equal[sum])
}

// peer parses a peer, and returns the groups to which it refers.
func (p *policyParser) peer(field string, s *api.PolicyPeer) (peer policy.Peer, groups []datapath.GroupName, err *api.Error) {
	selects := s.Set != "" || s.Namespaces != nil || s.Entities != nil
	switch {
	case selects && len(s.Prefixes)+len(s.Except) > 0:
		return peer, nil, invalid(field+".prefixes", "cannot be combined with a selector of Entities: a peer is one or the other; write two peers")
	case selects:
		selector, err := parseSelector(field, s.Set, s.Namespaces, s.Entities)
		peer.Entities = &selector
		return peer, nil, err
	case len(s.Prefixes) == 0 && len(s.Except) > 0:
		return peer, nil, invalid(field+".prefixes", "is missing: except limits prefixes; set the prefixes")
	case len(s.Prefixes) == 0:
		return peer, nil, invalid(field, "is empty: set namespaces, entities, prefixes or names; for all Entities of set %s write {\"entities\": {}}, for every peer omit the list", api.SetPods)
	}
	for i, w := range s.Prefixes {
		at := fmt.Sprintf("%s.prefixes[%d]", field, i)
		group, isGroup, gerr := parseGroup(string(w))
		if gerr != nil {
			return peer, nil, invalid(at, "%v", gerr)
		}
		if isGroup {
			groups = append(groups, group)
			continue
		}
		prefix, err := p.prefix(at, w)
		if err != nil {
			return peer, nil, err
		}
		peer.Prefixes = append(peer.Prefixes, prefix)
	}
	for i, w := range s.Except {
		at := fmt.Sprintf("%s.except[%d]", field, i)
		prefix, err := p.prefix(at, w)
		if err != nil {
			return peer, nil, err
		}
		within := func(whole netip.Prefix) bool { return whole.Bits() <= prefix.Bits() && whole.Contains(prefix.Addr()) }
		if len(groups) == 0 && !slices.ContainsFunc(peer.Prefixes, within) {
			return peer, nil, invalid(at, "%s is outside the prefixes of this peer, so there is nothing to except: omit it, or add the prefix that contains it", prefix)
		}
		peer.Except = append(peer.Except, prefix)
	}
	return peer, groups, nil
}

// prefix parses an address or prefix, and charges it to the budget.
func (p *policyParser) prefix(field string, w api.Word) (netip.Prefix, *api.Error) {
	prefix, err := parsePrefix(string(w))
	if err != nil {
		return prefix, invalid(field, "%q %v", decode.Shorten(string(w)), err)
	}
	return prefix, p.budget.TakePrefixes([]netip.Prefix{prefix}, field)
}

func parsePolicyPort(field string, s *api.PolicyPort) (policy.Port, *api.Error) {
	p := policy.Port{Name: s.Name, Last: math.MaxUint16}
	switch {
	case s.Name != "" && (s.Port != nil || s.End != nil):
		return p, invalid(field+".name", "cannot be combined with port and end: the Entity defines the port for this name")
	case s.Name != "" && s.Protocol == "":
		return policy.Port{Name: s.Name}, checkText(field+".name", s.Name)
	case s.Protocol == "" && s.Port == nil:
		return p, invalid(field, "is empty: set protocol, port or name; for every protocol omit the list")
	case s.Port == nil && s.End != nil:
		return p, invalid(field+".end", "%d has no first port: set port too", *s.End)
	}
	protocol, err := choose(field+".protocol", s.Protocol, api.ServiceProtocols...)
	if err != nil {
		return p, invalid(field+".protocol", "%q is not one of tcp, udp, sctp: a rule for other protocols has no ports, and matches every protocol", decode.Shorten(s.Protocol))
	}
	p.Protocol = portProtocols[protocol]
	if s.Name != "" {
		return policy.Port{Name: s.Name, Protocol: p.Protocol}, checkText(field+".name", s.Name)
	}
	if s.Port == nil {
		return p, nil
	}
	if err := checkPort(field+".port", *s.Port); err != nil {
		return p, err
	}
	p.First, p.Last = uint16(*s.Port), uint16(*s.Port)
	if s.End == nil {
		return p, nil
	}
	if err := checkPort(field+".end", *s.End); err != nil {
		return p, err
	}
	if *s.End < *s.Port {
		return p, invalid(field+".end", "%d is below the first port %d: swap them", *s.End, *s.Port)
	}
	p.Last = uint16(*s.End)
	return p, nil
}
