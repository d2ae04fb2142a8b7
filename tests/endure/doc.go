// SPDX-License-Identifier: Apache-2.0

// Package endure loads a node for minutes: with its daemon stopped, with a full connection table whose
// clients reuse their ports, under attack, and with as many Services as fit. make endure runs it; small
// versions run with the other tests.
package endure
