// SPDX-License-Identifier: Apache-2.0

package kernel

// PolicyPortID is how the tables of policies name a port: its ifindex, with the highest bit set in the
// switch's network namespace.
type PolicyPortID uint32

const policyPortSwitch = 1 << 31 // POLICY_PORT_SWITCH

// PolicyPortHere stands for this node itself, in place of a port.
const PolicyPortHere PolicyPortID = 0x7fffffff // POLICY_PORT_HERE

// PolicyPortOf returns the id of a port; netns: 0 host, 1 switch.
func PolicyPortOf(ifindex, netns uint32) PolicyPortID {
	return PolicyPortID(ifindex&^policyPortSwitch | netns<<31)
}

// EpochOfPort returns the index of the epoch of a port in ll_epoch.
func EpochOfPort(id PolicyPortID) uint32 {
	const half = 4096 // EPOCH_PORT_COUNT / 2, for each netns
	return uint32(EpochOfEPOCH_PORTS) + id.Ifindex()%half + uint32(id)>>31*half
}

// Ifindex returns the ifindex of the port.
func (id PolicyPortID) Ifindex() uint32 { return uint32(id) &^ policyPortSwitch }
