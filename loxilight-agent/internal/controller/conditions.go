// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
	"github.com/loxilight/loxilight/loxilight-agent/internal/policies"
)

// ConditionAccepted is the condition of a ClusterNetworkPolicy that says whether loxilight
// understands the whole policy. It does not say that nodes apply the policy: their daemons do.
const ConditionAccepted = "loxilight.io/Accepted"

// Reasons of [ConditionAccepted].
const (
	reasonAccepted  = "Accepted"
	reasonAmbiguous = "AmbiguousOrder" // accepted, but the API does not define its order among others
	reasonInvalid   = "Invalid"        // parts are not in force as written
)

// conditionsManager is the field manager of conditions.
const conditionsManager = "loxilight-controller"

// messageMax is the maximum length of the message of a condition, in bytes.
const messageMax = 4096

func trimPolicy(p *kube.ClusterNetworkPolicy) {
	m := p.ObjectMeta
	p.ObjectMeta = metav1.ObjectMeta{Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation}
	for _, name := range policies.Annotations {
		if value, there := m.Annotations[name]; there {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, name, value)
		}
	}
}

// policyChanged is called for each change to a ClusterNetworkPolicy.
func (c *Controller) policyChanged(_, _ *kube.ClusterNetworkPolicy) { c.wake() }

// tellConditions writes the conditions of ClusterNetworkPolicies that do not have them yet.
func (c *Controller) tellConditions(ctx context.Context) {
	all := c.policies.All()
	slices.SortFunc(all, func(a, b *kube.ClusterNetworkPolicy) int { return strings.Compare(a.Name, b.Name) })
	places, problems := map[string]policies.Place{}, map[string][]string{}
	for _, p := range all {
		t := policies.TranslateCluster(&policies.ClusterPolicy{Name: p.Name, Annotations: p.Annotations, Spec: p.Spec.Raw}, &policies.Node{})
		places[p.Name], problems[p.Name] = t.Place, t.Problems
	}
	equals := policies.Equals(places)
	for _, p := range all {
		conditions := conditionsOf(p, problems[p.Name], equals[p.Name], time.Now())
		if conditions == nil {
			continue
		}
		err := c.o.Kube.PatchClusterPolicyConditions(ctx, p, conditions, conditionsManager)
		switch {
		case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err): // the watch reports the change
		case ctx.Err() != nil:
			return
		default:
			c.o.Log.Warn("the conditions of a ClusterNetworkPolicy could not be written; it is retried", slog.String("name", p.Name), slog.Any("error", err))
		}
	}
}

// conditionsOf returns the new conditions of a ClusterNetworkPolicy, with the conditions of other
// writers, or nil if it has them.
func conditionsOf(p *kube.ClusterNetworkPolicy, problems []string, equal string, now time.Time) []metav1.Condition {
	want := metav1.Condition{
		Type: ConditionAccepted, Status: metav1.ConditionTrue, Reason: reasonAccepted, Message: "all parts are understood",
		ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(now),
	}
	switch {
	case len(problems) > 0:
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, reasonInvalid, strings.Join(problems, "; ")
	case equal != "":
		want.Reason, want.Message = reasonAmbiguous, equal
	}
	if len(want.Message) > messageMax {
		want.Message = strings.ToValidUTF8(want.Message[:messageMax], "")
	}
	conditions := slices.Clone(p.Status.Conditions)
	i := slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == ConditionAccepted })
	if i < 0 {
		return append(conditions, want)
	}
	is := &conditions[i]
	if is.Status == want.Status {
		want.LastTransitionTime = is.LastTransitionTime
	}
	if is.Status == want.Status && is.Reason == want.Reason && is.Message == want.Message && is.ObservedGeneration == want.ObservedGeneration {
		return nil
	}
	*is = want
	return conditions
}
