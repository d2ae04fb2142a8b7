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
type rigMeta = kernel.CtMeta

// rigConn is an entry of a connection.
type rigConn struct {
	rigMeta
	half   bool     // half-open
	leaves rigTuple // tuple with which packets that match the key leave
}

// key4 and key6 encode t as the key of its entry; only the one of its family is valid.
func (t rigTuple) key4() kernel.Ct4Key {
	return kernel.Ct4Key{Saddr: kernel.AddrOf(t.src.Addr()).Word[3], Daddr: kernel.AddrOf(t.dst.Addr()).Word[3],
		Sport: kernel.Swap16(t.src.Port()), Dport: kernel.Swap16(t.dst.Port()), Proto: t.proto}
}

func (t rigTuple) key6() kernel.Ct6Key {
	return kernel.Ct6Key{Saddr: kernel.AddrOf(t.src.Addr()), Daddr: kernel.AddrOf(t.dst.Addr()),
		Sport: kernel.Swap16(t.src.Port()), Dport: kernel.Swap16(t.dst.Port()), Proto: t.proto}
}

func (t rigTuple) is4() bool { return t.src.Addr().Is4() }

// conn returns the entry of t; false if it does not exist.
func (r *rig) conn(t rigTuple) (c rigConn, found bool) {
	r.t.Helper()
	var err error
	if t.is4() {
		var v kernel.Ct4Val
		if found, err = r.tables.Ct4.Find(t.key4(), &v); found {
			k := kernel.Ct4Key{Saddr: v.Saddr, Daddr: v.Daddr, Sport: v.Sport, Dport: v.Dport}
			c.rigMeta, c.leaves = v.Meta, rigTuple{t.proto, k.Tuple().Source, k.Tuple().Destination}
		}
	} else {
		var v kernel.Ct6Val
		if found, err = r.tables.Ct6.Find(t.key6(), &v); found {
			k := kernel.Ct6Key{Saddr: v.Saddr, Daddr: v.Daddr, Sport: v.Sport, Dport: v.Dport}
			c.rigMeta, c.leaves = v.Meta, rigTuple{t.proto, k.Tuple().Source, k.Tuple().Destination}
		}
	}
	r.ok(err)
	c.half = c.Flags&kernel.CtLasting == 0
	return c, found
}

// write writes the entry of t. It is half-open if c says so.
func (r *rig) write(t rigTuple, c rigConn) {
	r.t.Helper()
	c.Flags &^= kernel.CtLasting
	if !c.half {
		c.Flags |= kernel.CtLasting
	}
	if t.is4() {
		k := c.leaves.key4()
		r.ok(r.tables.Ct4.Put(t.key4(), kernel.Ct4Val{Meta: c.rigMeta, Saddr: k.Saddr, Daddr: k.Daddr, Sport: k.Sport, Dport: k.Dport}))
		return
	}
	k := c.leaves.key6()
	r.ok(r.tables.Ct6.Put(t.key6(), kernel.Ct6Val{Meta: c.rigMeta, Saddr: k.Saddr, Daddr: k.Daddr, Sport: k.Sport, Dport: k.Dport}))
}

// change edits the entry of t.
func (r *rig) change(t rigTuple, edit func(*rigMeta)) {
	r.t.Helper()
	c, found := r.conn(t)
	if !found {
		r.t.Fatalf("no connection %s", t)
	}
	edit(&c.rigMeta)
	r.write(t, c)
}

// forget deletes the entry of t.
func (r *rig) forget(t rigTuple) {
	r.t.Helper()
	if t.is4() {
		r.ok(r.tables.Ct4.Delete(t.key4()))
	} else {
		r.ok(r.tables.Ct6.Delete(t.key6()))
	}
}

// entriesByClass returns the number of half-open and of lasting entries of both families.
func (r *rig) entriesByClass() (half, lasting int) {
	count := func(m kernel.CtMeta) {
		if m.Flags&kernel.CtLasting == 0 {
			half++
		} else {
			lasting++
		}
	}
	r.ok(r.tables.Ct4.Batches(func(_ []kernel.Ct4Key, values []kernel.Ct4Val) error {
		for i := range values {
			count(values[i].Meta)
		}
		return nil
	}))
	r.ok(r.tables.Ct6.Batches(func(_ []kernel.Ct6Key, values []kernel.Ct6Val) error {
		for i := range values {
			count(values[i].Meta)
		}
		return nil
	}))
	return half, lasting
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

// rigService is a service as in the tables: backends are assigned to slots in turn, in order, or as
// spread says.
type rigService struct {
	id        uint32
	proto     uint8
	frontend  netip.AddrPort
	backends  []rigBackend
	algorithm kernel.Algorithm
	source    kernel.SourceMode
	affinity  uint32 // ticks
	ranges    []netip.Prefix
	spread    []int // for each slot the index of a backend; the selection table then has a list
}

// rigIdle are the idle times of services: 30 units for TCP, 20 for UDP, 10 for SCTP.
var rigIdle = [...]uint16{30, 20, 10}

// service enters s into the tables. Its selection table has the service's id.
func (r *rig) service(s rigService) {
	r.t.Helper()
	var words []uint32
	for _, b := range s.backends {
		entry := kernel.Backend{Port: rigPortOnWire(b.addr.Port()), Flags: 1, ServiceId: s.id, Weight: max(b.weight, 1)}
		entry.Addr.Word = rigWords(b.addr.Addr().String())
		r.ok(r.tables.Backend.Put(b.id, entry))
		words = append(words, b.id)
	}
	slots, members := len(words), 0
	if s.spread != nil {
		slots, members = len(s.spread), len(words)
		words = append(words, rigIndexes(s.spread, members > 256)...)
	}
	for i := 0; i*len(kernel.SlotChunk{}.Word) < len(words); i++ {
		var chunk kernel.SlotChunk
		copy(chunk.Word[:], words[i*len(chunk.Word):])
		r.put(kernel.MapLlSlot, kernel.SlotKey{TableId: s.id, Chunk: uint32(i)}, chunk)
	}
	r.put(kernel.MapLlServiceStats, s.id, make([]kernel.ServiceStats, ebpf.MustPossibleCPU()))
	value := kernel.Service{
		Id: s.id, TableId: s.id, SlotCount: uint32(slots), MemberCount: uint32(members), AffinityTicks: s.affinity,
		Algorithm: s.algorithm, Source: s.source, Idle: rigIdle,
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

// rigIndexes returns indexes, of one byte or two bytes, as words.
func rigIndexes(indexes []int, wide bool) (words []uint32) {
	var b []byte
	for _, i := range indexes {
		if wide {
			b = binary.LittleEndian.AppendUint16(b, uint16(i))
		} else {
			b = append(b, byte(i))
		}
	}
	for b = append(b, 0, 0, 0); len(b) >= 4; b = b[4:] {
		words = append(words, binary.LittleEndian.Uint32(b))
	}
	return words
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
