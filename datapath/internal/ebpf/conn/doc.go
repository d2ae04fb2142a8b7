// SPDX-License-Identifier: Apache-2.0

// Package conn lists and deletes connections. A sweeper goes over their tables again and again: it
// deletes connections that are idle or that a [Judge] ends.
package conn
