// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"net/netip"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Lease is held by one of several candidates, as long as it is renewed. Only one goroutine may use
// it.
type Lease struct {
	Client          *Client
	Namespace, Name string
	Holder          string        // our name
	Duration        time.Duration // if it is not renewed for this long, another candidate takes it

	renewed  time.Time // when we renewed it last; zero: it is not ours
	since    time.Time // since when it has been ours
	observed string    // the last holder and time of renewal, as in the object
	seen     time.Time // when we saw that first
}

// Held returns since when the lease has been ours, or the zero time if it is not ours.
func (l *Lease) Held() time.Time {
	if l.renewed.IsZero() || time.Since(l.renewed) > l.Duration*2/3 { // the others' clocks may be faster
		return time.Time{}
	}
	return l.since
}

// Try takes the lease, or renews it after a third of its duration.
func (l *Lease) Try(ctx context.Context) error {
	if !l.renewed.IsZero() && time.Since(l.renewed) < l.Duration/3 {
		return nil
	}
	var there coordinationv1.Lease
	err := l.Client.coordination[0].Get().Namespace(l.Namespace).Resource("leases").Name(l.Name).Do(ctx).Into(&there)
	begin := time.Now()
	switch {
	case apierrors.IsNotFound(err):
		there = coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}}
		l.fill(&there, begin)
		err = l.Client.coordination[0].Post().Namespace(l.Namespace).Resource("leases").Body(&there).Do(ctx).Error()
	case err != nil:
		return err
	case !l.free(&there, begin):
		l.renewed, l.since = time.Time{}, time.Time{}
		return nil
	default:
		l.fill(&there, begin)
		err = l.Client.coordination[0].Put().Namespace(l.Namespace).Resource("leases").Name(l.Name).Body(&there).Do(ctx).Error()
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) { // another client was faster
		l.renewed, l.since = time.Time{}, time.Time{}
		return nil
	}
	if err != nil {
		return err
	}
	if l.since.IsZero() {
		l.since = begin
	}
	l.renewed = begin
	return nil
}

// free reports whether a lease can be ours: it already is, or its holder has not renewed it for its
// whole duration, by our clock.
func (l *Lease) free(there *coordinationv1.Lease, now time.Time) bool {
	holder := there.Spec.HolderIdentity
	if holder == nil || *holder == "" || *holder == l.Holder {
		return true
	}
	word := *holder
	if there.Spec.RenewTime != nil {
		word += " " + there.Spec.RenewTime.String()
	}
	if word != l.observed {
		l.observed, l.seen = word, now
	}
	return now.Sub(l.seen) > l.Duration
}

func (l *Lease) fill(there *coordinationv1.Lease, now time.Time) {
	at, seconds := metav1.NewMicroTime(now), int32(l.Duration/time.Second)
	if h := there.Spec.HolderIdentity; h == nil || *h != l.Holder {
		var transitions int32
		if there.Spec.LeaseTransitions != nil {
			transitions = *there.Spec.LeaseTransitions + 1
		}
		there.Spec.AcquireTime, there.Spec.LeaseTransitions = &at, &transitions
	}
	there.Spec.HolderIdentity, there.Spec.LeaseDurationSeconds, there.Spec.RenewTime = &l.Holder, &seconds, &at
}

// Release gives the lease up, so that others need not wait until it expires.
func (l *Lease) Release(ctx context.Context) error {
	if l.Held().IsZero() {
		return nil
	}
	l.renewed, l.since = time.Time{}, time.Time{}
	var there coordinationv1.Lease
	if err := l.Client.coordination[0].Get().Namespace(l.Namespace).Resource("leases").Name(l.Name).Do(ctx).Into(&there); err != nil {
		return err
	}
	if h := there.Spec.HolderIdentity; h == nil || *h != l.Holder {
		return nil
	}
	noHolder := ""
	there.Spec.HolderIdentity = &noHolder
	return l.Client.coordination[0].Put().Namespace(l.Namespace).Resource("leases").Name(l.Name).Body(&there).Do(ctx).Error()
}

// PatchServiceAddresses sets the load-balancer addresses of a Service, unless another client has
// changed it since. The Service then names manager as the field manager of the addresses.
func (c *Client) PatchServiceAddresses(ctx context.Context, s *corev1.Service, addresses []netip.Addr, manager string) error {
	var ingress []corev1.LoadBalancerIngress // nil: null, which removes the existing addresses
	vip := corev1.LoadBalancerIPModeVIP
	for _, a := range addresses {
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &vip})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": s.ResourceVersion},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": ingress}},
	})
	if err != nil {
		return err
	}
	return c.core[0].Patch("application/merge-patch+json").Namespace(s.Namespace).Resource("services").Name(s.Name).SubResource("status").Param("fieldManager", manager).Body(patch).Do(ctx).Error()
}
