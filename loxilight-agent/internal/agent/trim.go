// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/pools"
)

// The agent keeps only those fields of the cluster's objects that it uses, because there are
// thousands of objects.

const annotationPrefix = "loxilight.io/"

func trimMeta(m *metav1.ObjectMeta, label, annotation func(string) bool) {
	*m = metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		ResourceVersion: m.ResourceVersion,
		Labels:          only(m.Labels, label), Annotations: only(m.Annotations, annotation),
	}
}

func only(m map[string]string, keep func(string) bool) map[string]string {
	var kept map[string]string
	for name, value := range m {
		if keep(name) {
			if kept == nil {
				kept = make(map[string]string, 2)
			}
			kept[name] = value
		}
	}
	return kept
}

// ours reports whether an annotation is one of loxilight's.
func ours(name string) bool { return strings.HasPrefix(name, annotationPrefix) }

func trimNode(n *corev1.Node) {
	trimMeta(&n.ObjectMeta, func(string) bool { return true }, ours) // policies select nodes by labels
	n.Spec = corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs, Taints: n.Spec.Taints}
	conditions := n.Status.Conditions[:0:0]
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady || c.Type == corev1.NodeNetworkUnavailable {
			conditions = append(conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message, LastTransitionTime: c.LastTransitionTime})
		}
	}
	for i := range conditions {
		if conditions[i].Type == corev1.NodeReady {
			conditions[i].Reason, conditions[i].Message, conditions[i].LastTransitionTime = "", "", metav1.Time{}
		}
	}
	n.Status = corev1.NodeStatus{Addresses: n.Status.Addresses, Conditions: conditions}
}

func trimService(s *corev1.Service) {
	given := pools.Given(s)
	trimMeta(&s.ObjectMeta, func(name string) bool {
		return name == labelProxyName || name == corev1.IsHeadlessService
	}, func(name string) bool {
		return ours(name) || name == corev1.AnnotationTopologyMode
	})
	s.ManagedFields = given
	s.Spec.Selector = nil
	s.Status.Conditions = nil
}

const labelProxyName = "service.kubernetes.io/service-proxy-name"

// packed is an EndpointSlice in its stored form: a large cluster has a hundred thousand endpoints.
type packed struct {
	metav1.ObjectMeta
	raw []byte // the rest, as the API server sends it
}

// pack converts an EndpointSlice, or a packed one, to its stored form.
func pack(obj any) (*packed, bool) {
	s, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		p, ok := obj.(*packed)
		return p, ok
	}
	p := &packed{ObjectMeta: s.ObjectMeta}
	trimMeta(&p.ObjectMeta, func(name string) bool { return name == discoveryv1.LabelServiceName },
		func(name string) bool { return name == corev1.EndpointsLastChangeTriggerTime })
	p.CreationTimestamp, p.UID, p.ResourceVersion = metav1.Time{}, "", ""
	rest := discoveryv1.EndpointSlice{AddressType: s.AddressType, Ports: s.Ports, Endpoints: slices.Clone(s.Endpoints)}
	for i := range rest.Endpoints {
		e := &rest.Endpoints[i]
		e.Addresses = e.Addresses[:min(len(e.Addresses), 1)] // only the first one counts
		e.Hostname, e.TargetRef, e.DeprecatedTopology, e.Zone = nil, nil, nil, nil
	}
	raw, err := rest.Marshal()
	if err != nil {
		return nil, false // it was unmarshalled a moment ago
	}
	p.raw = raw
	return p, true
}

// slice returns the EndpointSlice, without the trimmed fields.
func (p *packed) slice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{}
	if err := s.Unmarshal(p.raw); err != nil {
		panic(err) // it was marshalled here
	}
	s.ObjectMeta = p.ObjectMeta
	return s
}

func unpack(list []*packed) []*discoveryv1.EndpointSlice {
	all := make([]*discoveryv1.EndpointSlice, len(list))
	for i, p := range list {
		all[i] = p.slice()
	}
	return all
}
