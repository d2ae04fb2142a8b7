// SPDX-License-Identifier: Apache-2.0

// Package k8s runs a real Kubernetes cluster with loxilight as its only network: no other CNI
// plugin, no kube-proxy. make test-k8s runs it; without LOXILIGHT_K8S in the environment (1, ipv4
// or ipv6: the address families) nothing is built, and its tests are skipped.
package k8s
