// SPDX-License-Identifier: Apache-2.0

package kernel

// The flags in keys and values, with the types of their fields. The enums are in
// ebpf-src/types_….h.
const (
	AnnouncedNot = uint32(AnnouncedFlagANNOUNCED_F_NOT)
	AnnouncedFor = uint32(AnnouncedFlagANNOUNCED_F_FOR)

	BackendUsable = uint16(BackendFlagBACKEND_F_USABLE)

	BridgePortGuarded = uint16(BridgePortFlagBRIDGE_PORT_F_GUARDED)
	BridgePortTunnel  = uint16(BridgePortFlagBRIDGE_PORT_F_TUNNEL)
	BridgePortFlat    = uint16(BridgePortFlagBRIDGE_PORT_F_FLAT)

	CtReply        = uint16(CtFlagCT_F_REPLY)
	CtDNAT         = uint16(CtFlagCT_F_DNAT)
	CtSNAT         = uint16(CtFlagCT_F_SNAT)
	CtSNATAtEgress = uint16(CtFlagCT_F_SNAT_AT_EGRESS)
	CtFromNode     = uint16(CtFlagCT_F_FROM_NODE)
	CtDenied       = uint16(CtFlagCT_F_DENIED)
	CtLasting      = uint16(CtFlagCT_F_LASTING)
	CtService      = uint16(CtFlagCT_F_SERVICE)
	CtDevice       = uint16(CtFlagCT_F_DEVICE)

	DevicePeer          = uint32(DeviceFlagDEVICE_F_PEER)
	DevicePort          = uint32(DeviceFlagDEVICE_F_PORT)
	DeviceMember        = uint32(DeviceFlagDEVICE_F_MEMBER)
	DeviceBorrowedAddr4 = uint32(DeviceFlagDEVICE_F_BORROWED_ADDR4)
	DeviceBorrowedAddr6 = uint32(DeviceFlagDEVICE_F_BORROWED_ADDR6)
	DeviceTunnel        = uint32(DeviceFlagDEVICE_F_TUNNEL)
	DeviceNoQdisc       = uint32(DeviceFlagDEVICE_F_NO_QDISC)
	DeviceXDPXmit       = uint32(DeviceFlagDEVICE_F_XDP_XMIT)
	DeviceUplink        = uint32(DeviceFlagDEVICE_F_UPLINK)
	DeviceLink          = uint32(DeviceFlagDEVICE_F_LINK)

	GuardOpen = uint16(GuardFlagGUARD_F_OPEN)

	MirrorIn       = uint32(MirrorFlagMIRROR_F_IN)
	MirrorOut      = uint32(MirrorFlagMIRROR_F_OUT)
	MirrorService  = uint32(MirrorFlagMIRROR_F_SERVICE)
	MirrorRule     = uint32(MirrorFlagMIRROR_F_RULE)
	MirrorUDP      = uint32(MirrorFlagMIRROR_F_UDP)
	MirrorIPv6     = uint32(MirrorFlagMIRROR_F_IPV6)
	MirrorIP       = uint32(MirrorFlagMIRROR_F_IP)
	MirrorProtocol = uint32(MirrorFlagMIRROR_F_PROTOCOL)

	NATOneToOne = uint8(NatFlagNAT_F_ONE_TO_ONE)
	NATMapping  = uint8(NatFlagNAT_F_MAPPING)
	NATOpen     = uint8(NatFlagNAT_F_OPEN)
	NATEachPort = uint8(NatFlagNAT_F_EACH_PORT)
	NATReplaced = uint8(NatFlagNAT_F_REPLACED)

	NetfilterRouted  = uint32(NetfilterFlagNETFILTER_F_ROUTED)
	NetfilterBridged = uint32(NetfilterFlagNETFILTER_F_BRIDGED)

	NexthopNoQdisc = uint32(NexthopFlagNEXTHOP_F_NO_QDISC)
	NexthopXDPXmit = uint32(NexthopFlagNEXTHOP_F_XDP_XMIT)

	PrefixHere   = uint32(PrefixFlagPREFIX_F_HERE)
	PrefixRouted = uint32(PrefixFlagPREFIX_F_ROUTED)

	RuleStateless = uint8(RuleFlagRULE_F_STATELESS)
	RuleLog       = uint8(RuleFlagRULE_F_LOG)

	RulesOut     = uint32(RulesFlagRULES_F_OUT)
	RulesPending = uint32(RulesFlagRULES_F_PENDING)
	RulesFrame   = uint32(RulesFlagRULES_F_FRAME)

	ServiceAddrDrop   = uint32(ServiceAddrFlagSERVICE_ADDR_DROP)
	ServiceAddrReject = uint32(ServiceAddrFlagSERVICE_ADDR_REJECT)

	ServiceSilent = uint32(ServiceFlagSERVICE_F_SILENT)
)

// The rule sets.
const (
	RulesFirewall = RuleSetRULES_FIREWALL
	RulesDNAT     = RuleSetRULES_DNAT
	RulesSNAT     = RuleSetRULES_SNAT
)
