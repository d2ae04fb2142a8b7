// SPDX-License-Identifier: Apache-2.0

// Package million opens a million TCP connections through one Service while the connection table
// grows from its minimum and the daemon is killed and started again, and checks that every
// connection still works. make million runs it; a small version runs with the other tests.
package million
