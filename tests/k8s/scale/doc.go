// SPDX-License-Identifier: Apache-2.0

// Package scale has a real API server hold thousands of Services, and measures how the
// agent with its daemon, and kube-proxy beside them, follow it. make scale-k8s runs it.
package scale
