// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/loxilight/loxilight/api"
)

// clusterRule is a rule of a ClusterNetworkPolicy in either direction.
type clusterRule struct {
	Name      string            `json:"name"`
	Action    json.RawMessage   `json:"action"`
	From      []json.RawMessage `json:"from"`
	To        []json.RawMessage `json:"to"`
	Protocols []json.RawMessage `json:"protocols"`

	isOpaque bool // it is not understood
}

// clusterPeer is a peer. Exactly one field is set.
type clusterPeer struct {
	Namespaces  json.RawMessage `json:"namespaces"`
	Pods        json.RawMessage `json:"pods"`
	Nodes       json.RawMessage `json:"nodes"`
	Networks    []string        `json:"networks"`
	DomainNames []string        `json:"domainNames"`
}

// clusterProtocol is a protocol with ports, or the name of a port. Exactly one field is set.
type clusterProtocol struct {
	TCP                  *clusterPorts `json:"tcp"`
	UDP                  *clusterPorts `json:"udp"`
	SCTP                 *clusterPorts `json:"sctp"`
	DestinationNamedPort string        `json:"destinationNamedPort"`
}

type clusterPorts struct {
	DestinationPort *struct {
		Number *int `json:"number"`
		Range  *struct {
			Start int `json:"start"`
			End   int `json:"end"`
		} `json:"range"`
	} `json:"destinationPort"`
}

// rules decodes a list of rules.
func (t *clusterTranslation) rules(field string, raw json.RawMessage) []clusterRule {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		t.problems.add(field, "is not a list of rules; all traffic is denied")
		return []clusterRule{{isOpaque: true}}
	}
	rules := make([]clusterRule, len(list))
	for i := range list {
		if err := strict(list[i], &rules[i]); err != nil {
			t.problems.add(fmt.Sprintf("%s[%d]", field, i), "%v", err)
			rules[i].isOpaque = true
		}
	}
	return rules
}

// outcome is what becomes of a rule.
type outcome struct {
	action   string
	name     string
	peers    []api.PolicyPeer
	ports    []api.PolicyPort
	denies   bool // everything, whatever its peers and ports are
	isAbsent bool // it matches nothing
}

// rule translates a rule; list is the field of its peers.
func (t *clusterTranslation) rule(field, list string, r *clusterRule, peers []json.RawMessage) (o outcome) {
	before := len(t.problems)
	isUnderstood := !r.isOpaque
	var action string
	_ = json.Unmarshal(r.Action, &action) // another type is as unknown as another word
	if len(peers) == 0 && isUnderstood {
		t.problems.add(field+"."+list, "is empty")
		isUnderstood = false
	}
	for i, raw := range peers {
		if peer, ok := t.peer(fmt.Sprintf("%s.%s[%d]", field, list, i), raw, list == "to", action); ok {
			o.peers = append(o.peers, peer)
		} else {
			isUnderstood = false
		}
	}
	if list == "to" && t.matchesEverything(o.peers) {
		o.peers = append(o.peers, ownNode())
	}
	if r.Protocols != nil && len(r.Protocols) == 0 {
		t.problems.add(field+".protocols", "is empty")
		isUnderstood = false
	}
	for i, raw := range r.Protocols {
		if port, ok := t.port(fmt.Sprintf("%s.protocols[%d]", field, i), raw); ok {
			o.ports = append(o.ports, port)
		} else {
			isUnderstood = false
		}
	}
	switch {
	case action == actionAccept:
		o.action, o.isAbsent = allow, t.isClosed || !isUnderstood
	case action == actionPass && !t.isClosed:
		o.action = pass
	case action == actionPass, action == actionDeny:
		o.action = t.deny
	default:
		o.action = t.deny
		if !r.isOpaque {
			t.problems.add(field+".action", "%s is not one of Accept, Deny, Pass; the rule denies", short(r.Action))
		}
	}
	o.denies = !isUnderstood && !o.isAbsent
	switch {
	case len(t.problems) == before || isUnderstood:
	case o.denies:
		t.problems.add(field, "is not understood; the rule denies everything")
	default:
		t.problems.add(field, "is not understood; the rule matches nothing")
	}
	o.name = ruleName(r.Name)
	return o
}

// matchesEverything reports whether the prefixes of peers contain all addresses of the families that
// pods of this node have. Prefixes do not match this node itself, which has one of these addresses.
func (t *clusterTranslation) matchesEverything(peers []api.PolicyPeer) bool {
	whole := 0
	for family := range t.families {
		if slices.ContainsFunc(peers, func(p api.PolicyPeer) bool { return slices.Contains(p.Prefixes, api.Word(family)) }) {
			whole++
		}
	}
	return whole > 0 && whole == len(t.families)
}

// ownNode selects this node.
func ownNode() api.PolicyPeer {
	return api.PolicyPeer{Set: SetNodes, Entities: &api.LabelSelector{MatchLabels: map[string]string{labelHere: "true"}}}
}

// ruleName returns the name of a rule as the daemon accepts it.
func ruleName(name string) string {
	const most = 240 // with room for a number
	if len(name) > most || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return ""
	}
	return name
}

// distinctName returns another name for a rule whose name an earlier rule of its list has.
func distinctName(name, field string) string {
	return fmt.Sprintf("%s (%s)", name, strings.TrimPrefix(field, "spec."))
}

func (t *clusterTranslation) addIngress(field string, r clusterRule) {
	if len(r.To) > 0 {
		t.problems.add(field+".to", "is not a field of ingress rules")
		r.isOpaque = true
	}
	o := t.rule(field, "from", &r, r.From)
	for o.name != "" && slices.ContainsFunc(t.spec.Ingress, func(r api.IngressRule) bool { return r.Name == o.name }) {
		o.name = distinctName(o.name, field)
	}
	switch {
	case o.isAbsent:
	case o.denies:
		t.spec.Ingress = append(t.spec.Ingress, t.denyIngress(o.name)...)
	default:
		t.spec.Ingress = append(t.spec.Ingress, api.IngressRule{Name: o.name, Action: o.action, From: o.peers, Ports: o.ports})
	}
}

func (t *clusterTranslation) addEgress(field string, r clusterRule) {
	if len(r.From) > 0 {
		t.problems.add(field+".from", "is not a field of egress rules")
		r.isOpaque = true
	}
	o := t.rule(field, "to", &r, r.To)
	for o.name != "" && slices.ContainsFunc(t.spec.Egress, func(r api.EgressRule) bool { return r.Name == o.name }) {
		o.name = distinctName(o.name, field)
	}
	switch {
	case o.isAbsent:
	case o.denies:
		t.spec.Egress = append(t.spec.Egress, t.denyEgress(o.name)...)
	default:
		t.spec.Egress = append(t.spec.Egress, api.EgressRule{Name: o.name, Action: o.action, To: o.peers, Ports: o.ports})
	}
}

// denyIngress denies everything, except what the pod's own node sends: no peer of an ingress rule can
// be a node, and the kubelet's probes must reach the pod.
func (t *clusterTranslation) denyIngress(name string) []api.IngressRule {
	return []api.IngressRule{{Action: pass, From: []api.PolicyPeer{ownNode()}}, {Name: name, Action: t.deny}}
}

func (t *clusterTranslation) denyEgress(name string) []api.EgressRule {
	return []api.EgressRule{{Name: name, Action: t.deny}}
}

// labels translates a selector of labels; nil selects everything. ok is false if it is not
// understood.
func (t *clusterTranslation) labels(field string, raw json.RawMessage) (selector *api.LabelSelector, ok bool) {
	var s metav1.LabelSelector
	if err := strict(raw, &s); err != nil {
		t.problems.add(field, "%v", err)
		return nil, false
	}
	return t.problems.selector(field, &s)
}

// peer translates one peer of a rule with an action. ok is false if it is not understood.
func (t *clusterTranslation) peer(field string, raw json.RawMessage, egress bool, action string) (peer api.PolicyPeer, ok bool) {
	var p clusterPeer
	if err := strict(raw, &p); err != nil {
		t.problems.add(field, "%v", err)
		return peer, false
	}
	set := 0
	for _, has := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, p.Networks != nil, p.DomainNames != nil} {
		if has {
			set++
		}
	}
	if set != 1 {
		t.problems.add(field, "has not exactly one of namespaces, pods, nodes, networks, domainNames")
		return peer, false
	}
	switch {
	case p.Namespaces != nil:
		peer.Namespaces, ok = t.namespaces(field+".namespaces", p.Namespaces)
	case p.Pods != nil:
		var s api.EntitySelector
		s, ok = t.pods(field+".pods", p.Pods)
		peer.Namespaces, peer.Entities = s.Namespaces, s.Entities
	case !egress:
		t.problems.add(field, "has a field that only peers of egress rules have")
	case p.Nodes != nil:
		peer.Set = SetNodes
		if peer.Entities, ok = t.labels(field+".nodes", p.Nodes); ok {
			t.noteNodeLabels(peer.Entities)
		}
	case p.Networks != nil:
		peer.Prefixes, ok = t.networks(field+".networks", p.Networks)
	case action != actionAccept:
		t.problems.add(field+".domainNames", "is only for rules with action Accept")
	default:
		peer.Names, ok = t.domainNames(field+".domainNames", p.DomainNames)
	}
	return peer, ok
}

func (t *clusterTranslation) noteNodeLabels(s *api.LabelSelector) {
	if s == nil {
		return
	}
	for key := range s.MatchLabels {
		t.nodeLabels[key] = true
	}
	for _, e := range s.MatchExpressions {
		t.nodeLabels[e.Key] = true
	}
}

func (t *clusterTranslation) networks(field string, list []string) (prefixes api.Words, ok bool) {
	if len(list) == 0 {
		t.problems.add(field, "is empty")
		return nil, false
	}
	for i, text := range list {
		prefix, ok := parseCIDR(text)
		if !ok {
			t.problems.add(fmt.Sprintf("%s[%d]", field, i), "%q is not a prefix", text)
			return nil, false
		}
		prefixes = append(prefixes, api.Word(prefix.String()))
	}
	return prefixes, true
}

// domainName is the pattern of the API, in lower case and without a dot at the end. The API's own
// pattern also permits [ \ ] ^ and ` at the beginning of a label, which no name has.
var domainName = regexp.MustCompile(`^(\*\.)?([a-z0-9_]([-a-z0-9_]*[a-z0-9])?\.)+[a-z0-9_]([-a-z0-9_]*[a-z0-9])?$`)

// The longest name and the longest label (RFC 1035, section 2.3.4).
const domainNameMax, domainLabelMax = 253, 63

func (t *clusterTranslation) domainNames(field string, list []string) (names []string, ok bool) {
	if len(list) == 0 {
		t.problems.add(field, "is empty")
		return nil, false
	}
	for i, text := range list {
		name := strings.ToLower(strings.TrimSuffix(text, "."))
		_, err := netip.ParseAddr(strings.TrimPrefix(name, "*."))
		longest := slices.MaxFunc(strings.Split(name, "."), func(a, b string) int { return len(a) - len(b) })
		if err == nil || len(name) > domainNameMax || len(longest) > domainLabelMax || !domainName.MatchString(name) {
			t.problems.add(fmt.Sprintf("%s[%d]", field, i), "%q is not a domain name, such as www.example.org or *.example.org", text)
			return nil, false
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, true
}

// port translates an element of protocols. ok is false if it is not understood.
func (t *clusterTranslation) port(field string, raw json.RawMessage) (port api.PolicyPort, ok bool) {
	var p clusterProtocol
	if err := strict(raw, &p); err != nil {
		t.problems.add(field, "%v", err)
		return port, false
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(raw, &fields) // it is an object
	for name, value := range fields {
		if bytes.Equal(value, []byte("null")) {
			delete(fields, name)
		}
	}
	if len(fields) != 1 {
		t.problems.add(field, "has not exactly one of tcp, udp, sctp, destinationNamedPort")
		return port, false
	}
	for word, ports := range map[string]*clusterPorts{"tcp": p.TCP, "udp": p.UDP, "sctp": p.SCTP} {
		if ports != nil {
			port.Protocol = word
			ok = t.numbers(field+"."+word+".destinationPort", ports, &port)
			return port, ok
		}
	}
	port.Name = p.DestinationNamedPort
	if faults := validation.IsValidPortName(port.Name); len(faults) > 0 {
		t.problems.add(field+".destinationNamedPort", "%q is not the name of a port: %s", port.Name, strings.Join(faults, ", "))
		return port, false
	}
	return port, true
}

// numbers translates a port or a range of ports.
func (t *clusterTranslation) numbers(field string, p *clusterPorts, port *api.PolicyPort) bool {
	isPort := func(n int) bool { return n >= 1 && n <= 65535 }
	d := p.DestinationPort
	switch {
	case d == nil:
		t.problems.add(field, "is missing")
		return false
	case (d.Number == nil) == (d.Range == nil):
		t.problems.add(field, "has not exactly one of number, range")
		return false
	case d.Number != nil && !isPort(*d.Number):
		t.problems.add(field+".number", "%d is not between 1 and 65535", *d.Number)
		return false
	case d.Number != nil:
		port.Port = d.Number
		return true
	case !isPort(d.Range.Start) || !isPort(d.Range.End) || d.Range.Start > d.Range.End:
		t.problems.add(field+".range", "%d to %d is not a range of ports", d.Range.Start, d.Range.End)
		return false
	}
	port.Port, port.End = &d.Range.Start, &d.Range.End
	return true
}
