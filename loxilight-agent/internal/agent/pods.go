// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
	"github.com/loxilight/loxilight/loxilight-agent/internal/policies"
)

// participants holds the state of the translation of pods and policies. Only the goroutine that
// sends to the daemon uses it.
type participants struct {
	node      policies.Node
	addresses policies.Addresses
	cluster   clusterState
	sent      map[string]string // pods with an Entity, by namespace/name: the uid
	checked   map[string]string // pods of this node whose policies are known, by namespace/name: the uid
	// problems are the last reported texts, of NetworkPolicies by namespace/name and of
	// ClusterNetworkPolicies by name.
	problems map[string]string
	// local are the pods of this node that policies may select, by namespace and namespace/name. The
	// policies of other namespaces concern no Endpoint of this node.
	local map[string]map[string]struct{}
	view  view

	nodeAddresses policies.NodeAddresses
}

func newParticipants(node string) *participants {
	return &participants{node: policies.Node{Name: node}, sent: map[string]string{}, checked: map[string]string{}, problems: map[string]string{}, cluster: newClusterState(), local: map[string]map[string]struct{}{}}
}

// packPod converts a pod, or a packed one, to its stored form.
func packPod(obj any) (*policies.Pod, bool) {
	if p, ok := obj.(*corev1.Pod); ok {
		return policies.NewPod(p), true
	}
	p, ok := obj.(*policies.Pod)
	return p, ok
}

func trimNamespace(n *corev1.Namespace) {
	trimMeta(&n.ObjectMeta, func(string) bool { return true }, ours)
	n.Spec, n.Status = corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
}

// podChanged is called for each change to a pod. Most changes concern conditions and containers
// only, and are not translated.
func (a *Agent) podChanged(old, now *policies.Pod) {
	if !old.Equal(now) {
		a.queue.put(item{itemPod, either(now, old).Key()}, time.Time{})
	}
}

// namespaceChanged is called for each change to a namespace. A pod has no Entity while its namespace
// is unknown: a selector for namespaces without a label would match it.
func (a *Agent) namespaceChanged(old, now *corev1.Namespace) {
	name := either(now, old).Name
	a.queue.put(item{itemNamespace, name}, time.Time{})
	if old == nil || now == nil {
		for _, p := range a.pods.By(name) {
			a.queue.put(item{itemPod, p.Key()}, time.Time{})
		}
	}
	if !maps.Equal(annotationsOf(old), annotationsOf(now)) {
		for _, p := range a.policies.By(name) {
			a.queue.put(item{itemNetworkPolicy, kube.Key(p.Namespace, p.Name)}, time.Time{})
		}
	}
}

func annotationsOf(n *corev1.Namespace) map[string]string {
	if n == nil {
		return nil
	}
	return n.Annotations
}

// takeItems returns what must be translated, and notes how current the view of policies and
// namespaces is. The order matters: the content of the view is translated with the items or before.
func (a *Agent) takeItems() map[item]time.Time {
	a.participants.view = view{a.policies.Version(), a.namespaces.Version(), a.clusterPolicies.Version()}
	items := a.queue.take()
	for _, i := range slices.Collect(maps.Keys(items)) {
		if i.kind == itemChecked {
			items[item{itemPod, a.noteChecked(i.key)}] = time.Time{}
		}
	}
	return items
}

// translateParticipants translates all namespaces, policies and pods.
func (a *Agent) translateParticipants() {
	a.syncer.Set(groupTier, policies.Tiers(), time.Time{})
	for _, n := range a.namespaces.All() {
		a.translateNamespace(n.Name)
	}
	for _, p := range a.policies.All() {
		a.translatePolicy(kube.Key(p.Namespace, p.Name))
	}
	a.translateClusterPolicies()
	a.translateNodeEntities()
	a.translatePods()
	for _, group := range a.syncer.Groups() {
		if name, ok := strings.CutPrefix(group, groupNamespace); ok && a.namespaces.Get(name) == nil {
			a.translateNamespace(name)
		}
		if key, ok := strings.CutPrefix(group, groupPolicy); ok && a.policies.Get(key) == nil {
			a.translatePolicy(key)
		}
		if key, ok := strings.CutPrefix(group, groupPod); ok && a.pods.Get(key) == nil {
			a.translatePod(key)
		}
	}
}

// translatePods translates all pods.
func (a *Agent) translatePods() {
	all := a.pods.All()
	a.participants.addresses = policies.Addresses{}
	for _, p := range all {
		a.participants.addresses.Set(p.Key(), p)
	}
	for _, p := range all {
		a.tellPod(p.Key(), p)
	}
}

func (a *Agent) translateNamespace(name string) {
	var objects []api.Object
	if n := a.namespaces.Get(name); n != nil {
		objects = []api.Object{policies.Namespace(n)}
	}
	a.syncer.Set(groupNamespace+name, objects, time.Time{})
}

// translatePod translates one pod, and the pods that gain or lose an address as a result.
func (a *Agent) translatePod(key string) {
	p := a.pods.Get(key)
	affected := a.participants.addresses.Set(key, p)
	a.tellPod(key, p)
	for _, other := range affected {
		// Not the store's version, which may be a newer one with other addresses.
		a.tellPod(other, a.participants.addresses.Get(other))
	}
}

// noteLocal records whether a pod is one of this node's that policies may select. With the first of
// a namespace, the policies of the namespace are translated, with the last one they are removed.
func (a *Agent) noteLocal(key string, p *policies.Pod) {
	s := a.participants
	namespace, _, _ := strings.Cut(key, "/")
	before := len(s.local[namespace]) > 0
	if p.Participates() && p.On(s.node.Name) {
		if !before {
			s.local[namespace] = map[string]struct{}{}
		}
		s.local[namespace][key] = struct{}{}
	} else if before {
		delete(s.local[namespace], key)
		if len(s.local[namespace]) == 0 {
			delete(s.local, namespace)
		}
	}
	if len(s.local[namespace]) > 0 != before {
		for _, policy := range a.policies.By(namespace) {
			a.translatePolicy(kube.Key(policy.Namespace, policy.Name))
		}
	}
}

// tellPod sets the Entity of a pod; p is nil if the pod does not exist.
func (a *Agent) tellPod(key string, p *policies.Pod) {
	s, group := a.participants, groupPod+key
	a.noteLocal(key, p)
	if p == nil {
		delete(s.checked, key)
	}
	var entity *api.Object
	if p != nil && a.namespaces.Get(p.Namespace()) != nil {
		entity = s.node.Entity(p, &s.addresses)
	}
	if entity == nil {
		delete(s.sent, key)
		a.syncer.Set(group, nil, time.Time{})
		return
	}
	if p.On(s.node.Name) && !a.isChecked(p) {
		if uid, ok := s.sent[key]; ok && uid != p.UID() { // the Entity of the previous pod ends with it
			delete(s.sent, key)
			a.syncer.Set(group, nil, time.Time{})
		}
		// The Entity of an earlier agent stays: if it is for this pod, the pod is not new.
		a.syncer.Keep(group, api.ObjectRef{Kind: api.KindEntity, Name: entity.Name})
		return
	}
	s.sent[key] = p.UID()
	a.syncer.Set(group, []api.Object{*entity}, time.Time{})
}

// setSubnets notes the subnets of this node's pods, and reports whether they have changed. While
// they are unknown, the previous ones count.
func (a *Agent) setSubnets() (changed bool) {
	node := a.self()
	if node == nil {
		return false
	}
	cidrs, err := nodes.PodCIDRs(node)
	if err != nil || len(cidrs) == 0 {
		return false
	}
	subnets := make([]netip.Prefix, len(cidrs))
	for i, text := range cidrs {
		subnets[i] = netip.MustParsePrefix(text) // PodCIDRs has parsed it
	}
	if slices.Equal(subnets, a.participants.node.Subnets) {
		return false
	}
	a.participants.node.Subnets = subnets
	return true
}
