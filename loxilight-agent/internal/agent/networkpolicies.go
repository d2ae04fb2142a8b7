// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/nodes"
	"github.com/loxilight/loxilight/loxilight-agent/internal/policies"
)

// packedPolicy is a NetworkPolicy in its stored form: a large cluster has ten thousand.
type packedPolicy struct {
	metav1.ObjectMeta
	raw []byte // the spec, as the API server sends it
}

// packPolicy converts a NetworkPolicy, or a packed one, to its stored form.
func packPolicy(obj any) (*packedPolicy, bool) {
	n, ok := obj.(*networkingv1.NetworkPolicy)
	if !ok {
		p, ok := obj.(*packedPolicy)
		return p, ok
	}
	p := &packedPolicy{ObjectMeta: n.ObjectMeta}
	trimMeta(&p.ObjectMeta, func(string) bool { return false }, ours)
	raw, err := n.Spec.Marshal()
	if err != nil {
		return nil, false // it was unmarshalled a moment ago
	}
	p.raw = raw
	return p, true
}

// policy returns the NetworkPolicy, without the trimmed fields.
func (p *packedPolicy) policy() *networkingv1.NetworkPolicy {
	n := &networkingv1.NetworkPolicy{ObjectMeta: p.ObjectMeta}
	if err := n.Spec.Unmarshal(p.raw); err != nil {
		panic(err) // it was marshalled here
	}
	return n
}

// policyChanged is called for each change to a NetworkPolicy.
func (a *Agent) policyChanged(old, now *packedPolicy) {
	p := either(now, old)
	a.queue.put(item{itemNetworkPolicy, kube.Key(p.Namespace, p.Name)}, time.Time{})
}

func (a *Agent) translatePolicy(key string) {
	p := a.policies.Get(key)
	if p == nil || len(a.participants.local[p.Namespace]) == 0 {
		delete(a.participants.problems, key)
		a.syncer.Set(groupPolicy+key, nil, time.Time{})
		return
	}
	var annotations map[string]string
	if n := a.namespaces.Get(p.Namespace); n != nil {
		annotations = n.Annotations
	}
	t := policies.Translate(p.policy(), annotations)
	a.syncer.Set(groupPolicy+key, []api.Object{t.Object}, time.Time{})
	a.reportInvalid(a.participants.problems, key, aboutPolicy(p), t.Problems)
}

func aboutPolicy(p *packedPolicy) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// aboutParticipant returns the cluster object of a Policy, an Entity or a Namespace, or nil.
func (a *Agent) aboutParticipant(ref api.ObjectRef) *corev1.ObjectReference {
	switch ref.Kind {
	case api.KindPolicy:
		if name, ok := strings.CutPrefix(ref.Name, "cnp/"); ok {
			if p := a.clusterPolicies.Get(name); p != nil {
				return new(aboutClusterPolicy(p))
			}
			return nil
		}
		if p := a.policies.Get(strings.TrimPrefix(ref.Name, "np/")); p != nil {
			return new(aboutPolicy(p))
		}
	case api.KindEntity:
		if name, ok := strings.CutPrefix(ref.Name, "node/"); ok {
			return new(nodeOf(name))
		}
		if p := a.pods.Get(strings.TrimPrefix(ref.Name, "pod/")); p != nil {
			return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace(), Name: p.Name()}
		}
	case api.KindNamespace:
		if n := a.namespaces.Get(ref.Name); n != nil {
			return &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: n.Name, UID: n.UID}
		}
	}
	return nil
}

// confirmRemoved returns nil if the NetworkPolicies and namespaces that the daemon has from an
// earlier agent, but the first lists lack, do not exist any more, according to a second list.
func (a *Agent) confirmRemoved(ctx context.Context) error {
	removed := func(kind string, key func(o *api.Object) string, exists func(key string) bool) (keys []string, err error) {
		for o, err := range a.o.Daemon.List(ctx, api.ListParams{Kind: kind, Owner: nodes.Owner}) {
			if err != nil {
				return nil, err
			}
			if k := key(&o); !exists(k) {
				keys = append(keys, k)
			}
		}
		return keys, nil
	}
	keys, err := removed(api.KindPolicy, func(o *api.Object) string {
		return kube.Key(o.Labels[policies.LabelNamespace], o.Labels[policies.LabelPolicy])
	}, func(key string) bool { return a.policies.Get(key) != nil || a.clusterPolicies.Get(key) != nil })
	if err != nil {
		return fmt.Errorf("policies: %w", err)
	}
	isCluster := func(key string) bool { return !strings.Contains(key, "/") }
	if gone := slices.DeleteFunc(slices.Clone(keys), isCluster); len(gone) > 0 {
		if err := a.policies.ConfirmGone(ctx, gone); err != nil {
			return fmt.Errorf("networkpolicies: %w", err)
		}
	}
	if gone := slices.DeleteFunc(keys, func(key string) bool { return !isCluster(key) }); len(gone) > 0 {
		if err := a.clusterPolicies.ConfirmGone(ctx, gone); err != nil {
			return fmt.Errorf("clusternetworkpolicies: %w", err)
		}
	}
	keys, err = removed(api.KindNamespace, func(o *api.Object) string { return o.Name }, func(key string) bool { return a.namespaces.Get(key) != nil })
	if err == nil && len(keys) > 0 {
		err = a.namespaces.ConfirmGone(ctx, keys)
	}
	if err != nil {
		return fmt.Errorf("namespaces: %w", err)
	}
	return nil
}
