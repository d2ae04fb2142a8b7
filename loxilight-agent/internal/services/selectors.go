// SPDX-License-Identifier: Apache-2.0

package services

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selectors choose the Services and EndpointSlices that are ours to look at. Whose a
// Service is its own label says: that of slices is a copy, which those lack that were not
// made for a Service's selector. Without a name it is as with kube-proxy, which leaves out
// slices that have the label.
func Selectors(proxyName string) (services, slices labels.Selector) {
	must := func(name string, op selection.Operator, values ...string) labels.Requirement {
		r, err := labels.NewRequirement(name, op, values)
		if err != nil {
			panic(err) // the names are constants, and the value was checked
		}
		return *r
	}
	all := labels.NewSelector().Add(must(corev1.IsHeadlessService, selection.DoesNotExist))
	if proxyName == "" {
		unnamed := all.Add(must(labelProxyName, selection.DoesNotExist))
		return unnamed, unnamed
	}
	return all.Add(must(labelProxyName, selection.Equals, proxyName)), all
}
