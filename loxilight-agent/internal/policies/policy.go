// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/loxilight/loxilight/api"
)

// Annotations of a ClusterNetworkPolicy, of a NetworkPolicy, or of its namespace. The policy's own
// annotation precedes the annotation of its namespace.
const (
	// AnnotationStage is staged if the policy is evaluated but not in force.
	AnnotationStage = "loxilight.io/stage"
	// AnnotationDeny is reject if the senders of traffic that the policy denies are notified.
	AnnotationDeny = "loxilight.io/deny"
	// AnnotationLog is a list of the traffic about which the policy decides and that is reported: allow,
	// deny, separated by commas.
	AnnotationLog = "loxilight.io/log"
)

// Annotations are all of these.
var Annotations = []string{AnnotationStage, AnnotationDeny, AnnotationLog}

// The values of the annotations, besides [reject].
const (
	stageEnforced = "enforced"
	stageStaged   = "staged"
	denyDrop      = "drop"
)

// Words of a [api.PolicySpec].
const (
	ingress = "ingress"
	egress  = "egress"
	allow   = "allow"
	deny    = "deny"
	reject  = "reject"
	pass    = "pass"
)

// Translation is the translation of one NetworkPolicy.
type Translation struct {
	Object   api.Object
	Problems []string // parts that are not in force as written; each begins with the field
}

// Translate translates a NetworkPolicy. annotations are its namespace's; nil: none, or
// unknown.
func Translate(p *networkingv1.NetworkPolicy, annotations map[string]string) Translation {
	t := translation{namespace: p.Namespace}
	spec := api.PolicySpec{Tier: TierName, Stage: t.problems.stage(p.Annotations, annotations), Isolate: t.directions(&p.Spec), Log: t.problems.log(p.Annotations, annotations)}
	if t.problems.rejects(p.Annotations, annotations) {
		spec.IsolateAction = reject
	}
	selector, ok := t.problems.selector("spec.podSelector", &p.Spec.PodSelector)
	spec.AppliedTo = []api.EntitySelector{{Namespaces: t.here(), Entities: selector}}
	if !ok {
		t.problems.add("spec.podSelector", "all pods of the namespace are isolated, and the rules are ignored")
		return t.finish(p, spec)
	}
	// Rules for a direction that policyTypes does not name have no effect.
	if slices.Contains(spec.Isolate, ingress) {
		for i := range p.Spec.Ingress {
			r, field := &p.Spec.Ingress[i], fmt.Sprintf("spec.ingress[%d]", i)
			if peers, ports, ok := t.rule(field, field+".from", r.From, r.Ports); ok {
				spec.Ingress = append(spec.Ingress, api.IngressRule{Action: allow, From: peers, Ports: ports})
			}
		}
	}
	if slices.Contains(spec.Isolate, egress) {
		for i := range p.Spec.Egress {
			r, field := &p.Spec.Egress[i], fmt.Sprintf("spec.egress[%d]", i)
			if peers, ports, ok := t.rule(field, field+".to", r.To, r.Ports); ok {
				spec.Egress = append(spec.Egress, api.EgressRule{Action: allow, To: peers, Ports: ports})
			}
		}
	}
	return t.finish(p, spec)
}

// translation is the translation of one NetworkPolicy while it is made.
type translation struct {
	namespace string
	problems  problems
}

func (t *translation) finish(p *networkingv1.NetworkPolicy, spec api.PolicySpec) Translation {
	labels := map[string]string{LabelNamespace: p.Namespace, LabelPolicy: p.Name}
	return Translation{object(api.KindPolicy, PolicyName(p.Namespace, p.Name), labels, spec), t.problems}
}

// here selects the namespace of the policy.
func (t *translation) here() *api.NamespaceSelector {
	return &api.NamespaceSelector{Names: []string{t.namespace}}
}

// annotation returns the value of an annotation of a policy, or else of its namespace, and what problems
// call it.
func annotation(name string, own, namespace map[string]string) (value, field string) {
	if value = own[name]; value != "" {
		return value, "annotation " + name
	}
	return namespace[name], "annotation of the namespace " + name
}

// stage returns the stage of the policy; empty: in force.
func (p *problems) stage(own, namespace map[string]string) string {
	value, field := annotation(AnnotationStage, own, namespace)
	switch value {
	case stageStaged:
		return stageStaged
	case "", stageEnforced:
	default:
		p.add(field, "%q is not one of enforced, staged; the policy is enforced", value)
	}
	return ""
}

// rejects reports whether denied traffic is rejected, so that its sender is notified.
func (p *problems) rejects(own, namespace map[string]string) bool {
	value, field := annotation(AnnotationDeny, own, namespace)
	switch value {
	case reject:
		return true
	case "", denyDrop:
	default:
		p.add(field, "%q is not one of drop, reject; denied traffic is dropped", value)
	}
	return false
}

// log returns which traffic is reported.
func (p *problems) log(own, namespace map[string]string) (list []string) {
	value, field := annotation(AnnotationLog, own, namespace)
	for word := range strings.SplitSeq(value, ",") {
		switch word = strings.TrimSpace(word); {
		case word == "" || slices.Contains(list, word):
		case word == allow || word == deny:
			list = append(list, word)
		default:
			p.add(field, "%q is not one of allow, deny, and is ignored", word)
		}
	}
	return list
}

// directions returns the directions in which the policy isolates its pods. An unknown type may be
// either.
func (t *translation) directions(spec *networkingv1.NetworkPolicySpec) (list []string) {
	in, out := false, false
	for i, kind := range spec.PolicyTypes {
		switch kind {
		case networkingv1.PolicyTypeIngress:
			in = true
		case networkingv1.PolicyTypeEgress:
			out = true
		default:
			t.problems.add(fmt.Sprintf("spec.policyTypes[%d]", i), "%q is not one of Ingress, Egress; the policy isolates both directions", kind)
			in, out = true, true
		}
	}
	if len(spec.PolicyTypes) == 0 {
		in, out = true, len(spec.Egress) > 0
	}
	if in {
		list = append(list, ingress)
	}
	if out {
		list = append(list, egress)
	}
	return list
}

// rule translates one rule; list is the field of its peers. ok is false if the rule must be omitted.
func (t *translation) rule(field, list string, from []networkingv1.NetworkPolicyPeer, on []networkingv1.NetworkPolicyPort) (peers []api.PolicyPeer, ports []api.PolicyPort, ok bool) {
	for i := range from {
		if peer, ok := t.peer(fmt.Sprintf("%s[%d]", list, i), &from[i]); ok {
			peers = append(peers, peer)
		}
	}
	for i := range on {
		if port, ok := t.port(fmt.Sprintf("%s.ports[%d]", field, i), &on[i]); ok {
			ports = append(ports, port)
		}
	}
	// Without peers or ports, the rule would match all of them.
	return peers, ports, (len(peers) > 0) == (len(from) > 0) && (len(ports) > 0) == (len(on) > 0)
}

// Fallback returns the Policy that is in force in place of a Policy that the daemon refused: it
// isolates the same pods in the same directions, and allows nothing. If that was refused too,
// attempt is 2, and the Policy isolates all pods of the namespace. For a ClusterNetworkPolicy, see
// [clusterFallback]. It returns nil if nothing else is left.
func Fallback(refused *api.Object, attempt int) *api.Object {
	var spec api.PolicySpec
	if refused.Kind != api.KindPolicy || json.Unmarshal(refused.Spec, &spec) != nil {
		return nil
	}
	if spec.Tier != TierName {
		if !clusterFallback(&spec, attempt) {
			return nil
		}
		o := object(refused.Kind, refused.Name, refused.Labels, spec)
		return &o
	}
	spec.Ingress, spec.Egress = nil, nil
	switch attempt {
	case 1:
	case 2:
		for i := range spec.AppliedTo {
			spec.AppliedTo[i].Entities = nil
		}
	default:
		return nil
	}
	o := object(refused.Kind, refused.Name, refused.Labels, spec)
	return &o
}
