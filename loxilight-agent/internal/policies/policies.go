// SPDX-License-Identifier: Apache-2.0

// Package policies translates pods, namespaces and NetworkPolicies into Entities, Namespaces and
// Policies. It is a pure translation, and neither watches nor sends.
//
// All rules of a NetworkPolicy allow. So what this version does not understand is left out, and a
// rule of which nothing remains is omitted: an empty list would match everything.
package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
)

// TierName is the Tier of NetworkPolicies.
const TierName = "namespaces"

// tierOrder leaves room for tiers before and after NetworkPolicies.
const tierOrder = 200

// Labels of the Policies of the agent: the NetworkPolicy from which each was made.
const (
	LabelNamespace = "namespace"
	LabelPolicy    = "policy"
)

// nameMax is the maximum length of the name of an object, and keyMax of the name of a label of an
// Entity, in bytes. Kubernetes permits longer ones.
const nameMax, keyMax = 253, 253

// Tier returns the Tier of NetworkPolicies. Kubernetes never isolates a pod from itself or from its
// node.
func Tier() api.Object {
	order := int32(tierOrder)
	return object(api.KindTier, TierName, nil, api.TierSpec{Order: &order, Always: []string{"self", "node"}})
}

// Namespace translates a namespace.
func Namespace(n *corev1.Namespace) api.Object {
	labels := make(map[string]string, len(n.Labels))
	for key, value := range n.Labels {
		labels[labelKey(key)] = value
	}
	return object(api.KindNamespace, n.Name, nil, api.NamespaceSpec{Labels: labels})
}

// EntityName returns the name of the Entity of a pod.
func EntityName(namespace, pod string) string { return shorten("pod/"+namespace+"/"+pod, nameMax) }

// PolicyName returns the name of the Policy of a NetworkPolicy.
func PolicyName(namespace, name string) string { return shorten("np/"+namespace+"/"+name, nameMax) }

// labelKey returns the name of a label as the daemon accepts it, for Entities and for selectors.
func labelKey(key string) string { return shorten(key, keyMax) }

// shorten replaces the end of a name that is longer than most bytes with its hash.
func shorten(name string, most int) string {
	if len(name) <= most {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	end := "-" + hex.EncodeToString(sum[:16])
	return name[:most-len(end)] + end
}

func object(kind, name string, labels map[string]string, spec any) api.Object {
	raw, err := json.Marshal(spec)
	if err != nil {
		panic(err) // specs are plain data
	}
	return api.Object{Kind: kind, Name: name, Owner: api.OwnerK8s, Labels: labels, Spec: raw}
}

// problems collects why parts of a NetworkPolicy are not in force, for its user.
type problems []string

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, field+": "+fmt.Sprintf(format, args...))
}
