// SPDX-License-Identifier: Apache-2.0

package ebpf

// The flags of keys and values, of the types of their fields. The enums are in ebpf-src/types_….h.
const (
	announcedNot = uint32(kernelAnnouncedFlagANNOUNCED_F_NOT)
	announcedFor = uint32(kernelAnnouncedFlagANNOUNCED_F_FOR)

	backendUsable = uint16(kernelBackendFlagBACKEND_F_USABLE)

	bridgePortGuarded = uint16(kernelBridgePortFlagBRIDGE_PORT_F_GUARDED)
	bridgePortTunnel  = uint16(kernelBridgePortFlagBRIDGE_PORT_F_TUNNEL)
	bridgePortFlat    = uint16(kernelBridgePortFlagBRIDGE_PORT_F_FLAT)

	ctReply        = uint16(kernelCtFlagCT_F_REPLY)
	ctDNAT         = uint16(kernelCtFlagCT_F_DNAT)
	ctSNAT         = uint16(kernelCtFlagCT_F_SNAT)
	ctSNATAtEgress = uint16(kernelCtFlagCT_F_SNAT_AT_EGRESS)
	ctDenied       = uint16(kernelCtFlagCT_F_DENIED)
	ctDevice       = uint16(kernelCtFlagCT_F_DEVICE)

	devicePeer          = uint32(kernelDeviceFlagDEVICE_F_PEER)
	devicePort          = uint32(kernelDeviceFlagDEVICE_F_PORT)
	deviceMember        = uint32(kernelDeviceFlagDEVICE_F_MEMBER)
	deviceBorrowedAddr4 = uint32(kernelDeviceFlagDEVICE_F_BORROWED_ADDR4)
	deviceBorrowedAddr6 = uint32(kernelDeviceFlagDEVICE_F_BORROWED_ADDR6)
	deviceTunnel        = uint32(kernelDeviceFlagDEVICE_F_TUNNEL)
	deviceNoQdisc       = uint32(kernelDeviceFlagDEVICE_F_NO_QDISC)
	deviceXDPXmit       = uint32(kernelDeviceFlagDEVICE_F_XDP_XMIT)
	deviceUplink        = uint32(kernelDeviceFlagDEVICE_F_UPLINK)

	guardOpen = uint16(kernelGuardFlagGUARD_F_OPEN)

	natOneToOne = uint8(kernelNatFlagNAT_F_ONE_TO_ONE)
	natMapping  = uint8(kernelNatFlagNAT_F_MAPPING)
	natOpen     = uint8(kernelNatFlagNAT_F_OPEN)
	natEachPort = uint8(kernelNatFlagNAT_F_EACH_PORT)
	natReplaced = uint8(kernelNatFlagNAT_F_REPLACED)

	netfilterRouted  = uint32(kernelNetfilterFlagNETFILTER_F_ROUTED)
	netfilterBridged = uint32(kernelNetfilterFlagNETFILTER_F_BRIDGED)

	nexthopNoQdisc = uint32(kernelNexthopFlagNEXTHOP_F_NO_QDISC)
	nexthopXDPXmit = uint32(kernelNexthopFlagNEXTHOP_F_XDP_XMIT)

	prefixHere   = uint32(kernelPrefixFlagPREFIX_F_HERE)
	prefixRouted = uint32(kernelPrefixFlagPREFIX_F_ROUTED)

	ruleStateless = uint8(kernelRuleFlagRULE_F_STATELESS)
	ruleLog       = uint8(kernelRuleFlagRULE_F_LOG)

	rulesOut     = uint32(kernelRulesFlagRULES_F_OUT)
	rulesPending = uint32(kernelRulesFlagRULES_F_PENDING)
	rulesFrame   = uint32(kernelRulesFlagRULES_F_FRAME)

	serviceAddrDrop   = uint32(kernelServiceAddrFlagSERVICE_ADDR_DROP)
	serviceAddrReject = uint32(kernelServiceAddrFlagSERVICE_ADDR_REJECT)

	serviceSilent = uint32(kernelServiceFlagSERVICE_F_SILENT)
)
