// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// The tiers of ClusterNetworkPolicies in the API.
const (
	tierAdmin    = "Admin"
	tierBaseline = "Baseline"
)

// The actions of ClusterNetworkPolicies in the API.
const (
	actionAccept = "Accept"
	actionDeny   = "Deny"
	actionPass   = "Pass"
)

// ClusterPolicy is a ClusterNetworkPolicy.
type ClusterPolicy struct {
	Name        string
	Annotations map[string]string
	Spec        []byte // JSON, which may have parts that this version does not know
}

// ClusterTranslation is the translation of a ClusterNetworkPolicy.
type ClusterTranslation struct {
	Translation
	Place Place
	// NodeLabels are the names of labels by which rules select nodes.
	NodeLabels []string
}

// Place is where a ClusterNetworkPolicy is evaluated. Policies with the same place are evaluated in
// the order of their names, which the API leaves open.
type Place struct {
	Tier     string // of the channel
	Priority int32
}

// clusterTranslation is the translation of one ClusterNetworkPolicy while it is made.
//
// What this version does not understand fails closed: an Accept rule matches nothing, a Deny or Pass
// rule denies everything. If that is so of the tier or the subject, the Policy is evaluated first, or
// has more subjects: its Accept rules match nothing, and its Pass rules deny.
type clusterTranslation struct {
	problems   problems
	spec       api.PolicySpec
	deny       string // the action of Deny rules
	isClosed   bool   // the tier or the subject is not understood
	nodeLabels map[string]bool
	families   map[string]bool // of the pods of this node: the prefixes of all addresses of each
}

// TranslateCluster translates a ClusterNetworkPolicy for a node.
func TranslateCluster(p *ClusterPolicy, n *Node) ClusterTranslation {
	t := clusterTranslation{deny: deny, nodeLabels: map[string]bool{}, families: map[string]bool{}}
	for _, subnet := range n.Subnets {
		t.families[allOf(subnet)] = true
	}
	t.spec.Stage, t.spec.Log = t.problems.stage(p.Annotations, nil), t.problems.log(p.Annotations, nil)
	if t.problems.rejects(p.Annotations, nil) {
		t.deny = reject
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(p.Spec, &fields); err != nil {
		t.problems.add("spec", "is not an object: all traffic of all pods is denied")
		fields = map[string]json.RawMessage{"ingress": nil, "egress": nil}
	}
	priority := int32(0)
	t.tier(fields["tier"])
	t.priority(fields["priority"], &priority)
	t.subject(fields["subject"])
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch name {
		case "tier", "priority", "subject", "ingress", "egress":
		default:
			t.close("spec."+name, "is not understood")
		}
	}
	if raw, exists := fields[ingress]; exists {
		for i, r := range t.rules("spec.ingress", raw) {
			t.addIngress(fmt.Sprintf("spec.ingress[%d]", i), r)
		}
	}
	if raw, exists := fields[egress]; exists {
		for i, r := range t.rules("spec.egress", raw) {
			t.addEgress(fmt.Sprintf("spec.egress[%d]", i), r)
		}
	}
	labels := map[string]string{LabelPolicy: p.Name}
	return ClusterTranslation{
		Translation: Translation{object(api.KindPolicy, ClusterPolicyName(p.Name), labels, t.spec), t.problems},
		Place:       Place{t.spec.Tier, priority}, NodeLabels: slices.Sorted(maps.Keys(t.nodeLabels)),
	}
}

// allOf returns the prefix of all addresses of the family of p.
func allOf(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "0.0.0.0/0"
	}
	return "::/0"
}

// close reports a part without which the rules cannot be trusted.
func (t *clusterTranslation) close(field, format string, args ...any) {
	t.problems.add(field, format+": Accept rules match nothing, and Pass rules deny", args...)
	t.isClosed = true
}

func (t *clusterTranslation) tier(raw json.RawMessage) {
	var word string
	_ = json.Unmarshal(raw, &word) // another type is as unknown as another word
	switch word {
	case tierAdmin:
		t.spec.Tier = TierAdmin
	case tierBaseline:
		t.spec.Tier = TierBaseline
	default:
		t.spec.Tier = TierAdmin
		t.close("spec.tier", "%s is not one of Admin, Baseline; it is evaluated as Admin", short(raw))
	}
}

func (t *clusterTranslation) priority(raw json.RawMessage, priority *int32) {
	if err := json.Unmarshal(raw, priority); err != nil {
		t.close("spec.priority", "%s is not a priority; it is evaluated as 0", short(raw))
		*priority = 0
	}
	t.spec.Priority = priority
}

// subject translates which pods are selected: at least those that are meant.
func (t *clusterTranslation) subject(raw json.RawMessage) {
	everything := api.EntitySelector{Namespaces: &api.NamespaceSelector{}}
	var s struct {
		Namespaces json.RawMessage `json:"namespaces"`
		Pods       json.RawMessage `json:"pods"`
	}
	selected, whole := everything, false
	switch err := strict(raw, &s); {
	case err != nil:
		t.close("spec.subject", "%v; all pods are selected", err)
	case (s.Namespaces == nil) == (s.Pods == nil):
		t.close("spec.subject", "has not exactly one of namespaces, pods; all pods are selected")
	case s.Namespaces != nil:
		if selected.Namespaces, whole = t.namespaces("spec.subject.namespaces", s.Namespaces); !whole {
			selected = everything
			t.close("spec.subject.namespaces", "is not understood; all pods are selected")
		}
	default:
		if selected, whole = t.pods("spec.subject.pods", s.Pods); !whole {
			if selected.Namespaces == nil {
				selected.Namespaces = everything.Namespaces
			}
			t.close("spec.subject.pods", "is not understood; more pods may be selected")
		}
	}
	t.spec.AppliedTo = []api.EntitySelector{selected}
}

// pods translates a selector of pods. If ok is false, it is not understood, and selected has the
// parts that are.
func (t *clusterTranslation) pods(field string, raw json.RawMessage) (selected api.EntitySelector, ok bool) {
	var s struct {
		NamespaceSelector json.RawMessage `json:"namespaceSelector"`
		PodSelector       json.RawMessage `json:"podSelector"`
	}
	if err := strict(raw, &s); err != nil {
		t.problems.add(field, "%v", err)
		return selected, false
	}
	if s.NamespaceSelector == nil {
		s.NamespaceSelector = json.RawMessage("{}") // all namespaces
	}
	var inNamespaces, inPods bool
	selected.Namespaces, inNamespaces = t.namespaces(field+".namespaceSelector", s.NamespaceSelector)
	selected.Entities, inPods = t.labels(field+".podSelector", s.PodSelector)
	return selected, inNamespaces && inPods
}

// namespaces translates a selector of namespaces; ok is false, and selected nil, if it is not
// understood.
func (t *clusterTranslation) namespaces(field string, raw json.RawMessage) (selected *api.NamespaceSelector, ok bool) {
	labels, ok := t.labels(field, raw)
	if !ok {
		return nil, false
	}
	selected = &api.NamespaceSelector{}
	if labels != nil {
		selected.MatchLabels, selected.MatchExpressions = labels.MatchLabels, labels.MatchExpressions
	}
	return selected, true
}

// strict decodes an object that must not have unknown fields.
func strict(raw json.RawMessage, into any) error {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return errors.New("is missing")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("is not understood (%s)", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// short returns a value for a message.
func short(raw json.RawMessage) string {
	const most = 40
	text := string(raw)
	switch {
	case text == "":
		return `""`
	case len(text) > most:
		return text[:most] + "…"
	}
	return text
}

// clusterFallback changes the spec of a ClusterNetworkPolicy's Policy that the daemon refused: it
// denies all traffic of the same pods in the directions for which the spec has rules. With each
// attempt, it selects more pods. It returns false if nothing else is left.
func clusterFallback(spec *api.PolicySpec, attempt int) bool {
	t := clusterTranslation{deny: deny}
	if len(spec.Ingress) > 0 {
		t.spec.Ingress = t.denyIngress("")
	}
	if len(spec.Egress) > 0 {
		t.spec.Egress = t.denyEgress("")
	}
	spec.Ingress, spec.Egress = t.spec.Ingress, t.spec.Egress
	for i := range spec.AppliedTo {
		s := &spec.AppliedTo[i]
		if attempt >= 2 {
			s.Entities = nil
		}
		if attempt >= 3 {
			s.Namespaces = &api.NamespaceSelector{}
		}
	}
	return attempt <= 3
}

// Equals returns a text about each ClusterNetworkPolicy whose place others have too, by name.
func Equals(places map[string]Place) map[string]string {
	at := map[Place][]string{}
	for name, place := range places {
		at[place] = append(at[place], name)
	}
	texts := map[string]string{}
	for place, names := range at {
		if len(names) < 2 {
			continue
		}
		slices.Sort(names)
		for _, name := range names {
			others := slices.DeleteFunc(slices.Clone(names), func(other string) bool { return other == name })
			const most = 3
			more := ""
			if len(others) > most {
				more, others = fmt.Sprintf(" and %d others", len(others)-most), others[:most]
			}
			texts[name] = fmt.Sprintf("spec.priority: %d in tier %s is also the priority of %s%s; they are evaluated in the order of their names, on all nodes",
				place.Priority, place.Tier, strings.Join(others, ", "), more)
		}
	}
	return texts
}
