// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"reflect"
	"strings"
	"unicode"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
)

// tables are the maps of maps.h with keys and values of one type; field BackendLoad is
// ll_backend_load. TestTables compares the types with maps.h.
type tables struct {
	Ct4            bpfmap.Map[kernelCt4Key, kernelCt4Val]
	Ct6            bpfmap.Map[kernelCt6Key, kernelCt6Val]
	Half4          bpfmap.Map[kernelCt4Key, kernelCt4Val]
	Half6          bpfmap.Map[kernelCt6Key, kernelCt6Val]
	Shares         bpfmap.Map[uint32, kernelShares]
	Nexthop        bpfmap.Map[uint32, kernelNexthop]
	NexthopId      bpfmap.Map[kernelNexthopKey, uint32]
	Device         bpfmap.Map[kernelDeviceKey, kernelDevice]
	Local          bpfmap.Map[kernelLocalKey, uint8]
	BridgePort     bpfmap.Map[kernelBridgePortKey, kernelBridgePort]
	Bridged        bpfmap.Map[uint32, uint64]
	Guard          bpfmap.Map[kernelGuardKey, kernelGuard]
	Guarded        bpfmap.Map[uint32, uint64]
	PortUsed       bpfmap.Map[uint32, uint64]
	Netfilter      bpfmap.Map[uint32, uint32]
	Service        bpfmap.Map[kernelServiceKey, kernelService]
	ServiceId      bpfmap.Map[kernelServiceIdKey, kernelService]
	Divert         bpfmap.Map[kernelSourceRangeKey, kernelDivert]
	ServiceAddr    bpfmap.Map[kernelAddr, uint32]
	Slot           bpfmap.Map[kernelSlotKey, kernelSlotChunk]
	Backend        bpfmap.Map[uint32, kernelBackend]
	BackendLoad    bpfmap.Map[uint32, uint32]
	BackendTotal   bpfmap.Map[uint32, kernelBackendTotal]
	BackendTraffic bpfmap.Map[uint32, kernelTraffic]
	ServiceTraffic bpfmap.Map[uint32, kernelTraffic]
	ServiceName    bpfmap.Map[uint32, kernelServiceName]
	Turn           bpfmap.Map[uint32, uint32]
	Affinity       bpfmap.Map[kernelAffinityKey, kernelAffinity]
	SourceRange    bpfmap.Map[kernelSourceRangeKey, uint8]
	ServiceStats   bpfmap.PerCPU[uint32, kernelServiceStats]
	Fragment       bpfmap.Map[kernelFragmentKey, kernelFragment]
	Rules          bpfmap.Map[uint32, kernelRules]
	Shadow         bpfmap.Map[uint32, uint32]
	Epoch          bpfmap.Map[uint32, kernelEpoch]
	RuleHits       bpfmap.PerCPU[uint32, kernelRuleHits]
	RuleName       bpfmap.Map[uint32, kernelRuleName]
	SnatPorts      bpfmap.Map[uint32, uint16]
	SnatNext       bpfmap.Map[kernelSnatTarget, uint32]
	PortTaken      bpfmap.Map[uint32, uint64]
	NatRule        bpfmap.Map[uint32, kernelNatRule]
	NatPool        bpfmap.Map[uint32, kernelNatPrefix]
	NatPair        bpfmap.Map[kernelNatPairKey, kernelNatPrefix]
	NatName        bpfmap.Map[uint32, kernelNatName]
	NatStats       bpfmap.PerCPU[uint32, kernelNatStats]
	NatTraffic     bpfmap.Map[uint32, kernelTraffic]
	Announced      bpfmap.Map[kernelAnnounceKey, kernelAnnounced]
	Mapping        bpfmap.Map[kernelMappingKey, kernelMapping]
	MappingOuter   bpfmap.Map[kernelMappingKey, kernelMapping]
	Block          bpfmap.Map[kernelBlockKey, kernelBlock]
	BlockOwner     bpfmap.Map[kernelBlockOwnerKey, kernelBlockKey]
	TunnelGate     bpfmap.Map[uint32, kernelTunnelGate]
	Tunnel         bpfmap.Map[kernelTunnelKey, kernelTunnel]
	Peer           bpfmap.Map[uint32, kernelPeer]
	PeerId         bpfmap.Map[kernelPeerKey, uint32]
	PeerPrefix     bpfmap.Map[kernelPeerPrefixKey, uint32]
	TunnelName     bpfmap.Map[uint32, kernelPeerName]
	PeerName       bpfmap.Map[uint32, kernelPeerName]
	PeerNexthop    bpfmap.Map[uint32, uint32]
	PeerPmtu       bpfmap.Map[uint32, kernelPeerPmtu]
	PeerStats      bpfmap.PerCPU[uint32, kernelPeerStats]
	Drops          bpfmap.PerCPU[uint32, uint64]
	Verdicts       bpfmap.PerCPU[uint32, uint64]
	PortDrops      bpfmap.PerCPU[kernelPortDropKey, uint64]
	Rate           bpfmap.PerCPU[uint32, kernelRateBucket]
}

// tablesOf returns the maps with their types.
func tablesOf(maps map[string]*ebpf.Map) *tables {
	t := &tables{}
	all := reflect.ValueOf(t).Elem()
	for i := range all.NumField() {
		if m := maps[mapName(all.Type().Field(i).Name)]; m != nil { // some tests have only some maps
			all.Field(i).Addr().Interface().(interface{ Bind(*ebpf.Map) }).Bind(m)
		}
	}
	return t
}

// mapName returns the name of the map of a field of tables.
func mapName(field string) string {
	var b strings.Builder
	b.WriteString("ll")
	for _, r := range field {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
