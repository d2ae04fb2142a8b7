// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// rigTuple is the tuple of a packet, as in the tables of connections.
type rigTuple struct {
	proto    uint8
	src, dst netip.AddrPort
}

func (t rigTuple) String() string { return fmt.Sprintf("%d %s > %s", t.proto, t.src, t.dst) }

// turned returns the tuple of the replies.
func (t rigTuple) turned() rigTuple { return rigTuple{t.proto, t.dst, t.src} }

// rigMeta is the common part of the entries of both families.
type rigMeta struct {
	PacketCount, ByteCount      uint64
	LastSeenTick, CreatedTick   uint32
	Nexthop, InPort             uint16
	ServiceID, BackendID, TCPAk uint32
	TCPWindow                   uint16
	TCPScale, State             uint8
	Flags, NATID                uint16
}

// rigConn is an entry of a connection.
type rigConn struct {
	rigMeta
	half   bool     // in the table of half-open connections
	leaves rigTuple // tuple with which packets that match the key leave
}

// tables returns the names of the two tables that may hold the entry of t.
func (t rigTuple) tables() (established, half string) {
	if t.src.Addr().Is4() {
		return kernel.MapLlCt4, kernel.MapLlHalf4
	}
	return kernel.MapLlCt6, kernel.MapLlHalf6
}

// key encodes t as struct ct4_key or ct6_key.
func (t rigTuple) key() []byte {
	b := append(t.src.Addr().AsSlice(), t.dst.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, t.src.Port())
	b = binary.BigEndian.AppendUint16(b, t.dst.Port())
	return append(b, t.proto, 0, 0, 0)
}

const rigMetaSize = 48

// conn returns the entry of t; false if it does not exist.
func (r *rig) conn(t rigTuple) (c rigConn, found bool) {
	r.t.Helper()
	raw, half := r.raw(t)
	if raw == nil {
		return c, false
	}
	_, err := binary.Decode(raw, binary.NativeEndian, &c.rigMeta)
	r.ok(err)
	size := len(t.src.Addr().AsSlice())
	addrs, ports := raw[rigMetaSize:], raw[rigMetaSize+2*size:]
	src, _ := netip.AddrFromSlice(addrs[:size])
	dst, _ := netip.AddrFromSlice(addrs[size : 2*size])
	c.half = half
	c.leaves = rigTuple{t.proto, netip.AddrPortFrom(src, binary.BigEndian.Uint16(ports)),
		netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ports[2:]))}
	return c, true
}

func (r *rig) raw(t rigTuple) (raw []byte, half bool) {
	established, halfOpen := t.tables()
	if r.maps[established].Lookup(t.key(), &raw) == nil {
		return raw, false
	}
	if r.maps[halfOpen].Lookup(t.key(), &raw) == nil {
		return raw, true
	}
	return nil, false
}

// change edits the entry of t.
func (r *rig) change(t rigTuple, edit func(*rigMeta)) {
	r.t.Helper()
	raw, half := r.raw(t)
	if raw == nil {
		r.t.Fatalf("no connection %s", t)
	}
	var m rigMeta
	_, err := binary.Decode(raw, binary.NativeEndian, &m)
	r.ok(err)
	edit(&m)
	_, err = binary.Encode(raw, binary.NativeEndian, &m)
	r.ok(err)
	established, halfOpen := t.tables()
	if half {
		established = halfOpen
	}
	r.put(established, t.key(), raw)
}

// forget deletes the entry of t.
func (r *rig) forget(t rigTuple) {
	r.t.Helper()
	established, half := t.tables()
	if r.maps[established].Delete(t.key()) != nil {
		r.ok(r.maps[half].Delete(t.key()))
	}
}

// count returns the number of entries of a map.
func (r *rig) count(name string) (n int) {
	r.t.Helper()
	var key, value []byte
	for it := r.maps[name].Iterate(); it.Next(&key, &value); n++ {
	}
	return n
}

// rigTick returns the time of the programs' clock, in units of 2^27 ns.
func rigTick() uint32 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts) // every kernel has this clock
	return uint32(ts.Nano() >> 27)
}

// rigBackend is a backend as in the tables; id is its index.
type rigBackend struct {
	id     uint32
	addr   netip.AddrPort
	weight uint32 // 0 means 1
}

// rigService is a service as in the tables: backends are assigned to slots in turn.
type rigService struct {
	id        uint32
	proto     uint8
	frontend  netip.AddrPort
	backends  []rigBackend
	algorithm kernel.Algorithm
	source    kernel.SourceMode
	affinity  uint32 // ticks
	ranges    []netip.Prefix
}

// service enters s into the tables. Its selection table has the service's id.
func (r *rig) service(s rigService) {
	r.t.Helper()
	var chunk kernel.SlotChunk
	for i, b := range s.backends {
		entry := kernel.Backend{Port: rigPortOnWire(b.addr.Port()), Flags: 1, ServiceId: s.id, Weight: max(b.weight, 1)}
		entry.Addr.Word = rigWords(b.addr.Addr().String())
		r.put(kernel.MapLlBackend, b.id, entry)
		chunk.BackendId[i] = b.id
	}
	r.put(kernel.MapLlSlot, kernel.SlotKey{TableId: s.id}, chunk)
	r.put(kernel.MapLlServiceStats, s.id, make([]kernel.ServiceStats, ebpf.MustPossibleCPU()))
	value := kernel.Service{
		Id: s.id, TableId: s.id, SlotCount: uint32(len(s.backends)), AffinityTicks: s.affinity,
		Algorithm: s.algorithm, Source: s.source,
	}
	for _, p := range s.ranges {
		value.RangeSetId = s.id
		bits, family := 32+p.Bits(), uint8(6)
		if p.Addr().Is4() {
			bits, family = bits+96, 4
		}
		key := kernel.SourceRangeKey{PrefixLen: uint32(bits), SetId: s.id}
		key.Addr.Word = rigWords(p.Addr().String())
		r.put(kernel.MapLlSourceRange, key, family)
	}
	key := kernel.ServiceKey{Port: rigPortOnWire(s.frontend.Port()), Proto: s.proto}
	key.Addr.Word = rigWords(s.frontend.Addr().String())
	r.put(kernel.MapLlService, key, value)
}

// stats returns the counters of the service, summed over all CPUs.
func (r *rig) stats(id uint32) (sum kernel.ServiceStats) {
	r.t.Helper()
	var each []kernel.ServiceStats
	r.ok(r.maps[kernel.MapLlServiceStats].Lookup(id, &each))
	for _, s := range each {
		sum.ConnectionCount += s.ConnectionCount
		for i, n := range s.DropCount {
			sum.DropCount[i] += n
		}
	}
	return sum
}
