// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/policies"
)

func trimClusterPolicy(p *kube.ClusterNetworkPolicy) {
	trimMeta(&p.ObjectMeta, func(string) bool { return false }, ours)
	p.Status = kube.ClusterNetworkPolicyStatus{}
}

// clusterPolicyChanged is called for each change to a ClusterNetworkPolicy. Changes of its status are
// not translated.
func (a *Agent) clusterPolicyChanged(old, now *kube.ClusterNetworkPolicy) {
	if old != nil && now != nil && bytes.Equal(old.Spec.Raw, now.Spec.Raw) && maps.Equal(old.Annotations, now.Annotations) && old.UID == now.UID {
		return
	}
	a.queue.put(item{itemClusterPolicy, either(now, old).Name}, time.Time{})
}

// clusterState is the state of the translation of ClusterNetworkPolicies.
type clusterState struct {
	places     map[string]policies.Place // by name
	nodeLabels map[string][]string       // by name: the names of labels by which the policy selects nodes
	named      map[string]bool           // all of them
	equals     map[string]string         // by name: the last reported text about policies with the same place
}

func newClusterState() clusterState {
	return clusterState{map[string]policies.Place{}, map[string][]string{}, map[string]bool{}, map[string]string{}}
}

// translateClusterPolicy translates one ClusterNetworkPolicy; settleClusterPolicies must follow.
func (a *Agent) translateClusterPolicy(name string) {
	s := a.participants
	p := a.clusterPolicies.Get(name)
	if p == nil {
		delete(s.problems, name)
		delete(s.cluster.places, name)
		delete(s.cluster.nodeLabels, name)
		a.syncer.Set(groupClusterPolicy+name, nil, time.Time{})
		return
	}
	t := policies.TranslateCluster(&policies.ClusterPolicy{Name: p.Name, Annotations: p.Annotations, Spec: p.Spec.Raw}, &s.node)
	s.cluster.places[name], s.cluster.nodeLabels[name] = t.Place, t.NodeLabels
	a.syncer.Set(groupClusterPolicy+name, []api.Object{t.Object}, time.Time{})
	a.reportInvalid(s.problems, name, aboutClusterPolicy(p), t.Problems)
}

func aboutClusterPolicy(p *kube.ClusterNetworkPolicy) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: kube.ClusterPolicyReference.APIVersion, Kind: kube.ClusterPolicyReference.Kind, Name: p.Name, UID: p.UID}
}

// settleClusterPolicies reports policies whose order the API leaves open, and translates the nodes
// again if policies select nodes by other labels than before.
func (a *Agent) settleClusterPolicies() {
	s := &a.participants.cluster
	for name, text := range policies.Equals(s.places) {
		if s.equals[name] != text {
			if p := a.clusterPolicies.Get(name); p != nil {
				a.reportProblem(aboutClusterPolicy(p), reasonAmbiguous, fmt.Errorf("%s", text))
			}
		}
	}
	s.equals = policies.Equals(s.places)
	named := map[string]bool{}
	for _, keys := range s.nodeLabels {
		for _, key := range keys {
			named[key] = true
		}
	}
	if !maps.Equal(named, s.named) {
		s.named = named
		a.translateNodeEntities()
	}
}

// translateNodeEntities translates the Entities of all nodes.
func (a *Agent) translateNodeEntities() {
	all := a.nodes.All()
	a.participants.nodeAddresses = policies.NodeAddresses{}
	for _, n := range all {
		a.participants.nodeAddresses.Set(n.Name, n)
	}
	a.tellNodeEntities(a.o.NodeName, a.self())
	for _, n := range all {
		a.tellNodeEntities(n.Name, n)
	}
	for _, group := range a.syncer.Groups() {
		if name, ok := strings.CutPrefix(group, groupNodeEntity); ok && a.nodes.Get(name) == nil {
			a.tellNodeEntities(name, nil)
		}
	}
}

// translateNodeEntity translates the Entities of one node, and of the nodes that gain or lose an
// address as a result.
func (a *Agent) translateNodeEntity(name string) {
	n := a.nodes.Get(name)
	affected := a.participants.nodeAddresses.Set(name, n)
	a.tellNodeEntities(name, n)
	for _, other := range affected {
		a.tellNodeEntities(other, a.nodes.Get(other))
	}
}

// tellNodeEntities sets the Entities of a node; n is nil if the node does not exist. The Entities of
// this node stay.
func (a *Agent) tellNodeEntities(name string, n *corev1.Node) {
	s, group := a.participants, groupNodeEntity+name
	switch {
	case n != nil:
		a.syncer.Set(group, s.node.NodeEntities(n, &s.nodeAddresses, s.cluster.named), time.Time{})
	case name == a.o.NodeName:
		refs := policies.NodeRefs(name)
		a.syncer.Keep(group, refs...)
	default:
		a.syncer.Set(group, nil, time.Time{})
	}
}

// translateClusterPolicies translates all ClusterNetworkPolicies.
func (a *Agent) translateClusterPolicies() {
	names := map[string]bool{}
	for _, p := range a.clusterPolicies.All() {
		names[p.Name] = true
	}
	for _, group := range a.syncer.Groups() {
		if name, ok := strings.CutPrefix(group, groupClusterPolicy); ok {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a.translateClusterPolicy(name)
	}
	a.settleClusterPolicies()
}
