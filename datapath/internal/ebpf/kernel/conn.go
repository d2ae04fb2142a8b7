// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"structs"
	"unsafe"

	"github.com/loxilight/loxilight/datapath"
)

// CtMeta is what both families have in an entry of the connection table: struct ct_meta and struct
// ct_more.
type CtMeta struct {
	PacketCount  uint64
	ByteCount    uint64 // of whole frames
	LastSeenTick uint32
	CreatedTick  uint32
	RuleId       uint32 // of the FirewallRule that allows the connection, or with [CtDenied] denies it; 0: none
	BackendId    uint32 // with [CtService]
	TcpAck       uint32
	TcpWindow    uint16
	TcpScale     uint8
	State        uint8
	Nexthop      uint16
	InPort       uint16
	Flags        uint16
	NatId        uint16
	Idle         uint16 // see [IdleUnits]
}

// Ct4Val is an entry of IPv4 without its key: the leaving tuple, in network byte order.
type Ct4Val struct {
	Meta  CtMeta
	Saddr uint32
	Daddr uint32
	Sport uint16
	Dport uint16
}

// Ct6Val is an entry of IPv6 without its key: the leaving tuple, in network byte order.
type Ct6Val struct {
	Meta  CtMeta
	Saddr Addr
	Daddr Addr
	Sport uint16
	Dport uint16
}

// ctMeta is struct ct_meta.
type ctMeta = struct {
	_               structs.HostLayout
	ByteCount       uint64
	PacketCount     uint32
	LastSeenTick    uint32
	TcpAck          uint32
	TcpWindow       uint16
	TcpScale        uint8
	State           uint8
	Nexthop         uint16
	InPort          uint16
	Flags           uint16
	PacketCountHigh uint16
}

// MetaOf joins the parts of an entry.
func MetaOf(m *ctMeta, more *CtMore) CtMeta {
	return CtMeta{
		PacketCount: uint64(m.PacketCount) | uint64(m.PacketCountHigh)<<32, ByteCount: m.ByteCount,
		LastSeenTick: m.LastSeenTick, CreatedTick: more.CreatedTick, RuleId: more.RuleId, BackendId: more.BackendId,
		TcpAck: m.TcpAck, TcpWindow: m.TcpWindow, TcpScale: m.TcpScale, State: m.State,
		Nexthop: m.Nexthop, InPort: m.InPort, Flags: m.Flags, NatId: more.NatId, Idle: more.Idle,
	}
}

// Split writes the parts of an entry.
func (c *CtMeta) Split(m *ctMeta, more *CtMore) {
	*m = ctMeta{
		ByteCount: c.ByteCount, PacketCount: uint32(c.PacketCount), PacketCountHigh: uint16(c.PacketCount >> 32),
		LastSeenTick: c.LastSeenTick, TcpAck: c.TcpAck, TcpWindow: c.TcpWindow, TcpScale: c.TcpScale, State: c.State,
		Nexthop: c.Nexthop, InPort: c.InPort, Flags: c.Flags,
	}
	*more = CtMore{CreatedTick: c.CreatedTick, RuleId: c.RuleId, BackendId: c.BackendId, NatId: c.NatId, Idle: c.Idle}
}

func (b *Ct4Block) entry(slot uint32) (*Ct4, *CtMore) { return &b.Entry[slot], &b.More[slot] }

func (b *Ct4Block) usedBits() *uint64 { return &b.Used }

func (b *Ct6Block) entry(slot uint32) (*Ct6, *CtMore) { return &b.Entry[slot], &b.More[slot] }

func (b *Ct6Block) usedBits() *uint64 { return &b.Used }

func (e *Ct4) parts() connParts {
	return connParts{(*uint64)(unsafe.Pointer(&e.Key.Sport)), &e.Chain, &e.Meta.LastSeenTick, &e.Meta}
}

func (e *Ct4) key() Ct4Key { return e.Key }

func (e *Ct4) setKey(k *Ct4Key) { e.Key.Saddr, e.Key.Daddr = k.Saddr, k.Daddr }

func (e *Ct4) read(v *Ct4Val, more *CtMore) {
	*v = Ct4Val{MetaOf(&e.Meta, more), e.Saddr, e.Daddr, e.Sport, e.Dport}
}

func (e *Ct4) write(v *Ct4Val, more *CtMore) {
	v.Meta.Split(&e.Meta, more)
	e.Saddr, e.Daddr, e.Sport, e.Dport = v.Saddr, v.Daddr, v.Sport, v.Dport
}

func (e *Ct4) leavesAs(o *Ct4) bool {
	return e.Saddr == o.Saddr && e.Daddr == o.Daddr && e.Sport == o.Sport && e.Dport == o.Dport
}

func (e *Ct6) leavesAs(o *Ct6) bool {
	return e.Saddr == o.Saddr && e.Daddr == o.Daddr && e.Sport == o.Sport && e.Dport == o.Dport
}

// way returns the next hop of an entry, its netns, and the address to which its packets leave, which is
// not valid if they are bridged.
func (e *Ct4) way() (nexthop *uint16, netns uint8, to netip.Addr) {
	if e.Key.Domain == 0 {
		to = Addr4(e.Daddr)
	}
	return &e.Meta.Nexthop, e.Key.Netns, to
}

func (e *Ct6) parts() connParts {
	return connParts{(*uint64)(unsafe.Pointer(&e.Key.Sport)), &e.Chain, &e.Meta.LastSeenTick, &e.Meta}
}

func (e *Ct6) way() (nexthop *uint16, netns uint8, to netip.Addr) {
	if e.Key.Domain == 0 {
		to = e.Daddr.Addr()
	}
	return &e.Meta.Nexthop, e.Key.Netns, to
}

func (e *Ct6) key() Ct6Key { return e.Key }

func (e *Ct6) setKey(k *Ct6Key) { e.Key.Saddr, e.Key.Daddr = k.Saddr, k.Daddr }

func (e *Ct6) read(v *Ct6Val, more *CtMore) {
	*v = Ct6Val{MetaOf(&e.Meta, more), e.Saddr, e.Daddr, e.Sport, e.Dport}
}

func (e *Ct6) write(v *Ct6Val, more *CtMore) {
	v.Meta.Split(&e.Meta, more)
	e.Saddr, e.Daddr, e.Sport, e.Dport = v.Saddr, v.Daddr, v.Sport, v.Dport
}

// Tuple returns the addresses and ports of the key, in host byte order.
func (k *Ct4Key) Tuple() datapath.Tuple {
	return datapath.Tuple{
		Source:      netip.AddrPortFrom(Addr4(k.Saddr), Swap16(k.Sport)),
		Destination: netip.AddrPortFrom(Addr4(k.Daddr), Swap16(k.Dport)),
	}
}

// Tuple returns the addresses and ports of the key, in host byte order.
func (k *Ct6Key) Tuple() datapath.Tuple {
	return datapath.Tuple{
		Source:      netip.AddrPortFrom(k.Saddr.Addr(), Swap16(k.Sport)),
		Destination: netip.AddrPortFrom(k.Daddr.Addr(), Swap16(k.Dport)),
	}
}

// Protocol returns the number of the protocol.
func (k *Ct4Key) Protocol() uint8 { return k.Proto }

// Protocol returns the number of the protocol.
func (k *Ct6Key) Protocol() uint8 { return k.Proto }

// Namespace returns the netns of the connection, as in struct ct4_key.
func (k *Ct4Key) Namespace() uint8 { return k.Netns }

// Namespace returns the netns of the connection, as in struct ct6_key.
func (k *Ct6Key) Namespace() uint8 { return k.Netns }

// Common returns the part of the value that both families have.
func (v *Ct4Val) Common() *CtMeta { return &v.Meta }

// Common returns the part of the value that both families have.
func (v *Ct6Val) Common() *CtMeta { return &v.Meta }

// Twin returns the key of the other direction; k is the key of v.
func (v *Ct4Val) Twin(k *Ct4Key) Ct4Key {
	return Ct4Key{Saddr: v.Daddr, Daddr: v.Saddr, Sport: v.Dport, Dport: v.Sport, Proto: k.Proto, Netns: k.Netns, Domain: k.Domain}
}

// Twin returns the key of the other direction; k is the key of v.
func (v *Ct6Val) Twin(k *Ct6Key) Ct6Key {
	return Ct6Key{Saddr: v.Daddr, Daddr: v.Saddr, Sport: v.Dport, Dport: v.Sport, Proto: k.Proto, Netns: k.Netns, Domain: k.Domain}
}

// Expire fills in the keys of the connection to be deleted; twin is the key of the other direction.
func (k *Ct4Key) Expire(e *ExpirerExpire, twin *Ct4Key) {
	e.Family = 4
	e.Key4.Saddr, e.Key4.Daddr, e.Key4.Sport, e.Key4.Dport = k.Saddr, k.Daddr, k.Sport, k.Dport
	e.Key4.Proto, e.Key4.Netns, e.Key4.Domain = k.Proto, k.Netns, k.Domain
	e.Twin4 = e.Key4
	e.Twin4.Saddr, e.Twin4.Daddr, e.Twin4.Sport, e.Twin4.Dport = twin.Saddr, twin.Daddr, twin.Sport, twin.Dport
}

// Expire fills in the keys of the connection to be deleted; twin is the key of the other direction.
func (k *Ct6Key) Expire(e *ExpirerExpire, twin *Ct6Key) {
	e.Family = 6
	e.Key6.Saddr.Word, e.Key6.Daddr.Word, e.Key6.Sport, e.Key6.Dport = k.Saddr.Word, k.Daddr.Word, k.Sport, k.Dport
	e.Key6.Proto, e.Key6.Netns, e.Key6.Domain = k.Proto, k.Netns, k.Domain
	e.Twin6 = e.Key6
	e.Twin6.Saddr.Word, e.Twin6.Daddr.Word, e.Twin6.Sport, e.Twin6.Dport = twin.Saddr.Word, twin.Daddr.Word, twin.Sport, twin.Dport
}
