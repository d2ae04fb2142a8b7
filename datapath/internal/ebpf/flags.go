// SPDX-License-Identifier: Apache-2.0

package ebpf

import "github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"

// The flags of keys and values, of the types of their fields. The enums are in ebpf-src/types_….h.
const (
	announcedNot = uint32(kernel.AnnouncedFlagANNOUNCED_F_NOT)
	announcedFor = uint32(kernel.AnnouncedFlagANNOUNCED_F_FOR)

	backendUsable = uint16(kernel.BackendFlagBACKEND_F_USABLE)

	bridgePortGuarded = uint16(kernel.BridgePortFlagBRIDGE_PORT_F_GUARDED)
	bridgePortTunnel  = uint16(kernel.BridgePortFlagBRIDGE_PORT_F_TUNNEL)
	bridgePortFlat    = uint16(kernel.BridgePortFlagBRIDGE_PORT_F_FLAT)

	ctReply        = uint16(kernel.CtFlagCT_F_REPLY)
	ctDNAT         = uint16(kernel.CtFlagCT_F_DNAT)
	ctSNAT         = uint16(kernel.CtFlagCT_F_SNAT)
	ctSNATAtEgress = uint16(kernel.CtFlagCT_F_SNAT_AT_EGRESS)
	ctDenied       = uint16(kernel.CtFlagCT_F_DENIED)
	ctDevice       = uint16(kernel.CtFlagCT_F_DEVICE)

	devicePeer          = uint32(kernel.DeviceFlagDEVICE_F_PEER)
	devicePort          = uint32(kernel.DeviceFlagDEVICE_F_PORT)
	deviceMember        = uint32(kernel.DeviceFlagDEVICE_F_MEMBER)
	deviceBorrowedAddr4 = uint32(kernel.DeviceFlagDEVICE_F_BORROWED_ADDR4)
	deviceBorrowedAddr6 = uint32(kernel.DeviceFlagDEVICE_F_BORROWED_ADDR6)
	deviceTunnel        = uint32(kernel.DeviceFlagDEVICE_F_TUNNEL)
	deviceNoQdisc       = uint32(kernel.DeviceFlagDEVICE_F_NO_QDISC)
	deviceXDPXmit       = uint32(kernel.DeviceFlagDEVICE_F_XDP_XMIT)
	deviceUplink        = uint32(kernel.DeviceFlagDEVICE_F_UPLINK)

	guardOpen = uint16(kernel.GuardFlagGUARD_F_OPEN)

	natOneToOne = uint8(kernel.NatFlagNAT_F_ONE_TO_ONE)
	natMapping  = uint8(kernel.NatFlagNAT_F_MAPPING)
	natOpen     = uint8(kernel.NatFlagNAT_F_OPEN)
	natEachPort = uint8(kernel.NatFlagNAT_F_EACH_PORT)
	natReplaced = uint8(kernel.NatFlagNAT_F_REPLACED)

	netfilterRouted  = uint32(kernel.NetfilterFlagNETFILTER_F_ROUTED)
	netfilterBridged = uint32(kernel.NetfilterFlagNETFILTER_F_BRIDGED)

	nexthopNoQdisc = uint32(kernel.NexthopFlagNEXTHOP_F_NO_QDISC)
	nexthopXDPXmit = uint32(kernel.NexthopFlagNEXTHOP_F_XDP_XMIT)

	prefixHere   = uint32(kernel.PrefixFlagPREFIX_F_HERE)
	prefixRouted = uint32(kernel.PrefixFlagPREFIX_F_ROUTED)

	ruleStateless = uint8(kernel.RuleFlagRULE_F_STATELESS)
	ruleLog       = uint8(kernel.RuleFlagRULE_F_LOG)

	rulesOut     = uint32(kernel.RulesFlagRULES_F_OUT)
	rulesPending = uint32(kernel.RulesFlagRULES_F_PENDING)
	rulesFrame   = uint32(kernel.RulesFlagRULES_F_FRAME)

	serviceAddrDrop   = uint32(kernel.ServiceAddrFlagSERVICE_ADDR_DROP)
	serviceAddrReject = uint32(kernel.ServiceAddrFlagSERVICE_ADDR_REJECT)

	serviceSilent = uint32(kernel.ServiceFlagSERVICE_F_SILENT)
)
