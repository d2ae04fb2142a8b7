// SPDX-License-Identifier: Apache-2.0

package services

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selectors select the Services and EndpointSlices that are ours to watch. A Service's own label
// names its proxy. The label of slices is a copy, which is missing on slices that were not made for
// a Service's selector. Without a proxy name, the selection is the same as in kube-proxy, which
// leaves out slices that have the label.
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
