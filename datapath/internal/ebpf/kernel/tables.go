// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"io"
	"iter"
	"net/netip"
	"reflect"
	"strings"
	"unicode"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
)

// Tables are the maps of maps.h with keys and values of one type; field BackendTraffic is
// ll_backend_traffic. TestTables compares the types with maps.h.
type Tables struct {
	Ct4            bpfmap.Map[Ct4Key, Ct4Val]
	Ct6            bpfmap.Map[Ct6Key, Ct6Val]
	CtSize         bpfmap.Map[uint32, CtSize]
	Shares         bpfmap.Map[uint32, Shares]
	Nexthop        bpfmap.Map[uint32, Nexthop]
	NexthopId      bpfmap.Map[NexthopKey, uint32]
	Device         bpfmap.Map[DeviceKey, Device]
	Local          bpfmap.Map[LocalKey, uint8]
	BridgePort     bpfmap.Map[BridgePortKey, BridgePort]
	Bridged        bpfmap.Map[uint32, uint64]
	BridgeSeen     bpfmap.Map[uint32, BridgeSeen]
	Guard          bpfmap.Map[GuardKey, Guard]
	Guarded        bpfmap.Map[uint32, uint64]
	PortUsed       bpfmap.Map[uint32, uint64]
	Netfilter      bpfmap.Map[uint32, uint32]
	Service        bpfmap.Map[ServiceKey, Service]
	ServiceId      bpfmap.Map[ServiceIdKey, Service]
	Divert         bpfmap.Map[SourceRangeKey, Divert]
	ServiceAddr    bpfmap.Map[Addr, uint32]
	Slot           bpfmap.Map[SlotKey, SlotChunk]
	Backend        bpfmap.Map[uint32, Backend] // BackendLoad and BackendTotal are other parts of its entries
	BackendLoad    bpfmap.Map[uint32, uint32]
	BackendTotal   bpfmap.Map[uint32, BackendTotal]
	BackendTraffic bpfmap.Map[uint32, Traffic]
	ServiceTraffic bpfmap.Map[uint32, Traffic]
	ServiceName    bpfmap.Map[uint32, ServiceName]
	Turn           bpfmap.Map[uint32, uint32]
	Affinity       bpfmap.Map[AffinityKey, Affinity]
	SourceRange    bpfmap.Map[SourceRangeKey, uint8]
	ServiceStats   bpfmap.PerCPU[uint32, ServiceStats]
	Fragment       bpfmap.Map[FragmentKey, Fragment]
	Rules          bpfmap.Map[uint32, Rules]
	PolicyAddr     bpfmap.Map[Addr, PolicyAddr]
	PolicyPort     bpfmap.Map[uint32, PolicyPort]
	PolicyHits     bpfmap.PerCPU[uint32, PolicyHits]
	PolicyRule     bpfmap.Map[uint32, PolicyRule]
	Name           bpfmap.Map[NameText, NameIds]
	NameStats      bpfmap.Map[uint32, NameStats]
	Resolver       bpfmap.Map[ResolverKey, Resolver]
	Learned        bpfmap.Map[LearnedKey, Learned]
	Shadow         bpfmap.Map[uint32, uint32]
	Epoch          bpfmap.Map[uint32, Epoch]
	RuleHits       bpfmap.PerCPU[uint32, RuleHits]
	RuleName       bpfmap.Map[uint32, RuleName]
	SnatPorts      bpfmap.Map[uint32, uint16]
	SnatNext       bpfmap.Map[SnatTarget, uint32]
	PortTaken      bpfmap.Map[uint32, uint64]
	NatRule        bpfmap.Map[uint32, NatRule]
	NatPool        bpfmap.Map[uint32, NatPrefix]
	NatPair        bpfmap.Map[NatPairKey, NatPrefix]
	NatName        bpfmap.Map[uint32, NatName]
	NatStats       bpfmap.PerCPU[uint32, NatStats]
	NatTraffic     bpfmap.Map[uint32, Traffic]
	Announced      bpfmap.Map[AnnounceKey, Announced]
	Mapping        bpfmap.Map[MappingKey, Mapping]
	MappingOuter   bpfmap.Map[MappingKey, Mapping]
	Block          bpfmap.Map[BlockKey, Block]
	BlockOwner     bpfmap.Map[BlockOwnerKey, BlockKey]
	TunnelGate     bpfmap.Map[uint32, TunnelGate]
	Tunnel         bpfmap.Map[TunnelKey, Tunnel]
	Peer           bpfmap.Map[uint32, Peer]
	PeerId         bpfmap.Map[PeerKey, uint32]
	PeerPrefix     bpfmap.Map[PeerPrefixKey, uint32]
	TunnelName     bpfmap.Map[uint32, PeerName]
	PeerName       bpfmap.Map[uint32, PeerName]
	PeerNexthop    bpfmap.Map[uint32, uint32]
	PeerPmtu       bpfmap.Map[uint32, PeerPmtu]
	PeerStats      bpfmap.PerCPU[uint32, PeerStats]
	Mirror         bpfmap.Map[uint32, Mirror]
	MirrorName     bpfmap.Map[uint32, MirrorName]
	MirrorPort     bpfmap.Map[DeviceKey, MirrorPort]
	MirrorStats    bpfmap.PerCPU[uint32, MirrorStats]
	Drops          bpfmap.PerCPU[uint32, uint64]
	Verdicts       bpfmap.PerCPU[uint32, uint64]
	PortDrops      bpfmap.PerCPU[PortDropKey, uint64]
	Rate           bpfmap.PerCPU[uint32, RateBucket]

	mapped   []mappedTable
	backends []*Segmented
	idle4    idleSetter[Ct4Key]
	idle6    idleSetter[Ct6Key]
}

// mappedTable is a connection table in memory.
type mappedTable interface {
	io.Closer
	ConnTable
	forgetNexthops(netns uint8, to func(netip.Addr) bool)
}

type idleSetter[K any] interface{ setIdle(k *K, units uint16) }

// ForgetNexthops takes the next hops off all connections that are routed in a netns to an address that
// to selects. Their next packets learn a next hop again.
func (t *Tables) ForgetNexthops(netns uint8, to func(netip.Addr) bool) {
	for _, m := range t.mapped {
		m.forgetNexthops(netns, to)
	}
}

// ConnTables returns the connection tables that are mapped into memory, IPv4 first.
func (t *Tables) ConnTables() (all []ConnTable) {
	for _, m := range t.mapped {
		all = append(all, m)
	}
	return all
}

// SetIdle4 sets the idle time in the entry of a key, if it exists.
func (t *Tables) SetIdle4(k *Ct4Key, units uint16) {
	if t.idle4 != nil {
		t.idle4.setIdle(k, units)
	}
}

// SetIdle6 sets the idle time in the entry of a key, if it exists.
func (t *Tables) SetIdle6(k *Ct6Key, units uint16) {
	if t.idle6 != nil {
		t.idle6.setIdle(k, units)
	}
}

// TablesOf returns the maps with their types. The connection table also needs [Tables.MapConnections],
// and the tables of backends need [Tables.MapBackends].
func TablesOf(maps map[string]*ebpf.Map) *Tables {
	t := &Tables{}
	all := reflect.ValueOf(t).Elem()
	for i := range all.NumField() {
		f := all.Type().Field(i)
		if m := maps[MapName(f.Name)]; m != nil && f.IsExported() { // some tests have only some maps
			all.Field(i).Addr().Interface().(interface{ Bind(*ebpf.Map) }).Bind(m)
		}
	}
	return t
}

// MapConnections maps the connection table into memory. [PrepareConnTable] must have been called.
// The caller closes the tables, before the maps.
func (t *Tables) MapConnections(maps map[string]*ebpf.Map) error {
	t4, err := newConnTable[Ct4Block, Ct4, Ct4Key, Ct4Val](maps, MapLlCt4)
	if err != nil {
		return err
	}
	t.Ct4.BindStore(t4)
	t.idle4 = t4
	t.mapped = append(t.mapped, t4)
	t6, err := newConnTable[Ct6Block, Ct6, Ct6Key, Ct6Val](maps, MapLlCt6)
	if err != nil {
		return errors.Join(err, t.Close())
	}
	t.Ct6.BindStore(t6)
	t.idle6 = t6
	t.mapped = append(t.mapped, t6)
	return nil
}

// MapBackends maps the tables of backends into memory, for ids up to last. specs are the
// specifications of all maps. The caller closes the tables, before the maps.
func (t *Tables) MapBackends(maps map[string]*ebpf.Map, specs map[string]*ebpf.MapSpec, last uint32) error {
	var all [2]*Segmented
	for i, name := range []string{MapLlBackend, MapLlBackendTraffic} {
		s, err := OpenSegmented(maps[name], specs[name].InnerMap, last+1)
		if err != nil {
			return err
		}
		all[i], t.backends = s, append(t.backends, s)
	}
	t.Backend.BindStore(partOf[Backend]{all[0], unsafe.Offsetof(BackendEntry{}.Backend)})
	t.BackendLoad.BindStore(partOf[uint32]{all[0], unsafe.Offsetof(BackendEntry{}.Load)})
	t.BackendTotal.BindStore(partOf[BackendTotal]{all[0], unsafe.Offsetof(BackendEntry{}.Total)})
	t.BackendTraffic.BindStore(partOf[Traffic]{all[1], 0})
	return nil
}

// RestoreBackends makes the entries of backends visible to the programs again, if another program has
// hidden them, and reports whether it had to.
func (t *Tables) RestoreBackends(ids iter.Seq[uint32]) (restored bool, err error) {
	for _, s := range t.backends {
		was, e := s.restore(ids)
		restored, err = restored || was, errors.Join(err, e)
	}
	return restored, err
}

// Close releases memory. The tables must not be used any more.
func (t *Tables) Close() (err error) {
	for _, m := range t.mapped {
		err = errors.Join(err, m.Close())
	}
	for _, s := range t.backends {
		err = errors.Join(err, s.Close())
	}
	t.mapped, t.backends = nil, nil
	return err
}

// MapName returns the name of the map that a field of Tables refers to, or is a part of.
func MapName(field string) string {
	switch field {
	case "BackendLoad", "BackendTotal":
		return MapLlBackend
	}
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
