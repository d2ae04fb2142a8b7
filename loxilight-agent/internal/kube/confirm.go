// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
)

// Listing is a list of the objects of one resource, without their content.
type Listing struct {
	Version string            // the resourceVersion of the list
	Objects map[string]string // resourceVersion by namespace/name, or by name without a namespace
}

// pageSize is the number of objects in each answer.
const pageSize = 500

// acceptMetadata requests objects without their content.
const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// versions lists the objects that o selects, of one namespace or, if it is empty, of all.
func versions(ctx context.Context, c *rest.RESTClient, resource, namespace string, o metav1.ListOptions) (*Listing, error) {
	all := &Listing{Objects: map[string]string{}}
	o.Limit = pageSize
	for {
		raw, err := c.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).SetHeader("Accept", acceptMetadata).
			VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Raw()
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", resource, err)
		}
		var page metav1.PartialObjectMetadataList
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("list %s: %w", resource, err)
		}
		for i := range page.Items {
			m := &page.Items[i]
			all.Objects[Key(m.Namespace, m.Name)] = m.ResourceVersion
		}
		all.Version = page.ResourceVersion
		if o.Continue = page.Continue; o.Continue == "" {
			return all, nil
		}
		o.ResourceVersion, o.ResourceVersionMatch = "", ""
	}
}

// notOlderThan is like versions; the list is not older than a resourceVersion of any resource.
// Versions of one cluster are comparable. If the server cannot answer for this version, the list is
// read consistently: that is from after the version, too, because the caller has received it.
func notOlderThan(ctx context.Context, c *rest.RESTClient, resource, namespace, version string, o metav1.ListOptions) (*Listing, error) {
	if _, err := resourceversion.CompareResourceVersion(version, version); err == nil {
		least := o
		least.ResourceVersion, least.ResourceVersionMatch = version, metav1.ResourceVersionMatchNotOlderThan
		all, err := versions(ctx, c, resource, namespace, least)
		if err == nil || !cannotWait(err) {
			return all, err
		}
	}
	return versions(ctx, c, resource, namespace, o)
}

// cannotWait reports whether a server does not have a version yet, or no longer, or does not
// understand the request.
func cannotWait(err error) bool {
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)
}

// NetworkPoliciesOf lists the NetworkPolicies of a namespace, not older than a resourceVersion.
func (c *Client) NetworkPoliciesOf(ctx context.Context, namespace, version string) (*Listing, error) {
	return notOlderThan(ctx, c.networking[0], "networkpolicies", namespace, version, metav1.ListOptions{})
}

// Namespace lists the namespace of a name, if it exists, not older than a resourceVersion.
func (c *Client) Namespace(ctx context.Context, name, version string) (*Listing, error) {
	return notOlderThan(ctx, c.core[0], "namespaces", "", version, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
}

// NotOlder reports whether a resourceVersion is equal to another one or later.
func NotOlder(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	if err != nil { // unknown, or in a form of the server's own
		return version == other && version != ""
	}
	return order >= 0
}

// Version returns a resourceVersion: all changes up to it are in the store, and have been reported
// to Changed. It is empty if it is unknown.
func (s *Store[T]) Version() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// Contains reports whether the objects in the store that by returns are at least as new as those in
// a list, and whether those that the list lacks are gone, or newer than the list.
func (s *Store[T]) Contains(list *Listing, by func() []*T) bool {
	for key, version := range list.Objects {
		t := s.Get(key)
		if t == nil || !NotOlder(metaOf(t).GetResourceVersion(), version) {
			return false
		}
	}
	for _, t := range by() {
		if _, listed := list.Objects[s.key(t)]; !listed && NotOlder(list.Version, metaOf(t).GetResourceVersion()) {
			return false
		}
	}
	return true
}

// ConfirmGone returns nil if none of the objects with these keys exists, according to another API
// server if there are several. If one exists, the error wraps [ErrImplausible], and the objects are
// listed and watched anew, at the other server.
func (s *Store[T]) ConfirmGone(ctx context.Context, keys []string) error {
	s.mu.RLock()
	elsewhere := s.elsewhere
	s.mu.RUnlock()
	if elsewhere == nil {
		return nil // there is no API server, as in tests of the store alone
	}
	there, err := elsewhere(ctx)
	if err != nil {
		return fmt.Errorf("a list lacks %s, and no second list can be read: %w", abbreviated(keys), err)
	}
	exist := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { _, ok := there[key]; return !ok })
	if len(exist) == 0 {
		return nil
	}
	select {
	case s.again <- struct{}{}:
	default: // it was requested already
	}
	return fmt.Errorf("%w: it lacks %s, which a second list contains", ErrImplausible, abbreviated(exist))
}

// abbreviated names a few of the objects with these keys.
func abbreviated(keys []string) string {
	const most = 3
	slices.Sort(keys)
	if len(keys) <= most {
		return strings.Join(keys, ", ")
	}
	return fmt.Sprintf("%s and %d others", strings.Join(keys[:most], ", "), len(keys)-most)
}
