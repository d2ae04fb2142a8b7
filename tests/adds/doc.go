// SPDX-License-Identifier: Apache-2.0

// Package adds tests what pods send and receive while they start, under network policies that forbid it,
// and while the agent, the API server or the daemon fails.
package adds
