// SPDX-License-Identifier: Apache-2.0

package datapath

// Limits on the objects of network policies on a node.
const (
	EntityMax    = 1 << 16
	NamespaceMax = 1 << 14
	TierMax      = 64
	PolicyMax    = 1 << 14
	NameMax      = 1 << 12 // DNS names in all Policies
)
