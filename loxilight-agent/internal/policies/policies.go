// SPDX-License-Identifier: Apache-2.0

// Package policies translates pods, nodes, namespaces, NetworkPolicies and ClusterNetworkPolicies
// into Entities, Namespaces and Policies. It is a pure translation, and neither watches nor sends.
//
// All rules of a NetworkPolicy allow. So what this version does not understand is left out, and a
// rule of which nothing remains is omitted: an empty list would match everything. Rules of a
// ClusterNetworkPolicy that are not understood match nothing or deny everything.
package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
)

// The Tiers: of ClusterNetworkPolicies that NetworkPolicies cannot override, of NetworkPolicies, and
// of ClusterNetworkPolicies that they override.
const (
	TierAdmin    = "admin"
	TierName     = "namespaces"
	TierBaseline = "baseline"
)

// SetNodes is the set of the Entities of nodes.
const SetNodes = "nodes"

// Labels of the Policies of the agent: the policy from which each was made. A ClusterNetworkPolicy
// has no namespace.
const (
	LabelNamespace = "namespace"
	LabelPolicy    = "policy"
)

// The beginnings of the names of objects.
const (
	policyPrefix  = "np/"
	clusterPrefix = "cnp/"
	podPrefix     = "pod/"
	nodePrefix    = "node/"
)

// nameMax is the maximum length of the name of an object, and keyMax of the name of a label of an
// Entity, in bytes. Kubernetes permits longer ones.
const nameMax, keyMax = 253, 253

// Tiers returns the Tiers, with room for others before and between them. NetworkPolicies never
// isolate a pod from itself or from its node; ClusterNetworkPolicies do not isolate.
func Tiers() []api.Object {
	tier := func(name string, order int32, always ...string) api.Object {
		return object(api.KindTier, name, nil, api.TierSpec{Order: &order, Always: always})
	}
	return []api.Object{tier(TierAdmin, 100), tier(TierName, 200, "self", "node"), tier(TierBaseline, 300)}
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
func EntityName(namespace, pod string) string { return shorten(podPrefix+namespace+"/"+pod, nameMax) }

// PolicyName returns the name of the Policy of a NetworkPolicy.
func PolicyName(namespace, name string) string {
	return shorten(policyPrefix+namespace+"/"+name, nameMax)
}

// ClusterPolicyName returns the name of the Policy of a ClusterNetworkPolicy.
func ClusterPolicyName(name string) string { return shorten(clusterPrefix+name, nameMax) }

// NodeName returns the name of the Entity of a node.
func NodeName(name string) string { return shorten(nodePrefix+name, nameMax) }

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

// problems collects why parts of a policy are not in force, for its user.
type problems []string

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, field+": "+fmt.Sprintf(format, args...))
}
