// SPDX-License-Identifier: Apache-2.0

// Package conn lists and deletes connections. A sweeper passes over their tables repeatedly, and
// deletes connections that are idle or that a [Judge] ends.
package conn
