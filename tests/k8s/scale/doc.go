// SPDX-License-Identifier: Apache-2.0

// Package scale fills a real API server with thousands of Services, and measures how the agent with
// its daemon, and kube-proxy for comparison, follow it. make scale-k8s runs it.
package scale
