// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// The resource of ClusterNetworkPolicies, which a CustomResourceDefinition adds to a cluster.
const (
	clusterPolicies     = "clusternetworkpolicies"
	clusterPolicyGroup  = "policy.networking.k8s.io"
	clusterPolicyKind   = "ClusterNetworkPolicy"
	clusterPolicyServed = "v1alpha2"
)

var clusterPolicyVersion = schema.GroupVersion{Group: clusterPolicyGroup, Version: clusterPolicyServed}

// ClusterPolicyReference is the kind of ClusterNetworkPolicies, as events name it.
var ClusterPolicyReference = metav1.TypeMeta{APIVersion: clusterPolicyVersion.String(), Kind: clusterPolicyKind}

// ClusterNetworkPolicy is a ClusterNetworkPolicy. Its spec is not decoded: parts that this version
// does not know must be detected.
type ClusterNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              runtime.RawExtension       `json:"spec"`
	Status            ClusterNetworkPolicyStatus `json:"status"`
}

// ClusterNetworkPolicyStatus is the status of a [ClusterNetworkPolicy].
type ClusterNetworkPolicyStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClusterNetworkPolicyList is a list of ClusterNetworkPolicies.
type ClusterNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []ClusterNetworkPolicy `json:"items"`
}

// DeepCopyObject implements [runtime.Object].
func (p *ClusterNetworkPolicy) DeepCopyObject() runtime.Object {
	c := *p
	c.ObjectMeta = *p.ObjectMeta.DeepCopy()
	p.Spec.DeepCopyInto(&c.Spec)
	c.Status.Conditions = nil
	for _, condition := range p.Status.Conditions {
		c.Status.Conditions = append(c.Status.Conditions, *condition.DeepCopy())
	}
	return &c
}

// DeepCopyObject implements [runtime.Object].
func (l *ClusterNetworkPolicyList) DeepCopyObject() runtime.Object {
	c := *l
	c.ListMeta = *l.ListMeta.DeepCopy()
	c.Items = make([]ClusterNetworkPolicy, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*ClusterNetworkPolicy)
	}
	return &c
}

// addClusterPolicies registers the types of ClusterNetworkPolicies.
func addClusterPolicies(s *runtime.Scheme) error {
	s.AddKnownTypes(clusterPolicyVersion, &ClusterNetworkPolicy{}, &ClusterNetworkPolicyList{})
	metav1.AddToGroupVersion(s, clusterPolicyVersion)
	return nil
}

// ClusterPolicies fills a store with all converted ClusterNetworkPolicies. The cluster may lack the
// resource: then the store is empty, and the resource is looked for again every few seconds.
func ClusterPolicies[T any](ctx context.Context, w *Watcher, c *Client, s *Store[T]) {
	run(ctx, w, resource{clients: c.policy, name: clusterPolicies, sample: &ClusterNetworkPolicy{}, optional: true}, s)
}

// ClusterPolicies lists the ClusterNetworkPolicies, not older than a resourceVersion. The list is
// empty if the cluster lacks the resource.
func (c *Client) ClusterPolicies(ctx context.Context, version string) (*Listing, error) {
	all, err := notOlderThan(ctx, c.policy[0], clusterPolicies, "", version, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return &Listing{}, nil
	}
	return all, err
}

// errOtherVersion is wrapped if a server serves a resource, but in other versions than ours.
var errOtherVersion = errors.New("is served in another version only, which this agent does not read")

// isServed reports whether a server serves a resource, according to the server's lists of groups and
// resources. The error wraps [errOtherVersion] if it serves other versions only: its objects exist.
func isServed(ctx context.Context, c *rest.RESTClient, name string) (bool, error) {
	gv := c.APIVersion()
	var group metav1.APIGroup
	if found, err := discover(ctx, c, "/apis/"+gv.Group, &group); err != nil || !found {
		return false, err
	}
	other := false
	for _, v := range group.Versions {
		var list metav1.APIResourceList
		found, err := discover(ctx, c, "/apis/"+v.GroupVersion, &list)
		if err != nil {
			return false, err
		}
		for _, r := range list.APIResources {
			if found && r.Name == name && v.Version == gv.Version {
				return true, nil
			}
			other = other || found && r.Name == name
		}
	}
	if other {
		return false, fmt.Errorf("%s of group %s: %w", name, gv.Group, errOtherVersion)
	}
	return false, nil
}

// discover reads a document of an API server; found is false if it does not exist.
func discover(ctx context.Context, c *rest.RESTClient, path string, into any) (found bool, err error) {
	raw, err := c.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
}

// PatchClusterPolicyConditions replaces the conditions of a ClusterNetworkPolicy, unless another
// client has changed the policy since. manager is the field manager of the conditions.
func (c *Client) PatchClusterPolicyConditions(ctx context.Context, p *ClusterNetworkPolicy, conditions []metav1.Condition, manager string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": p.ResourceVersion},
		"status":   ClusterNetworkPolicyStatus{Conditions: conditions},
	})
	if err != nil {
		return err
	}
	return c.policy[0].Patch("application/merge-patch+json").Resource(clusterPolicies).Name(p.Name).SubResource("status").Param("fieldManager", manager).Body(patch).Do(ctx).Error()
}
