// SPDX-License-Identifier: Apache-2.0

// Package announce maintains the table of the addresses for which the programs answer ARP and NDP
// requests although no device of the node has them, and announces new ones to the neighbours. It
// answers no request itself.
package announce
