// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// entry is one direction of a connection: conn.Entry.
type entry struct {
	meta          kernel.CtMeta
	protocol      datapath.Protocol
	comes, leaves datapath.Tuple
	namespace     uint8
}

func (e *entry) Meta() *kernel.CtMeta                   { return &e.meta }
func (e *entry) Protocol() datapath.Protocol            { return e.protocol }
func (e *entry) Namespace() uint8                       { return e.namespace }
func (e *entry) Tuples() (comes, leaves datapath.Tuple) { return e.comes, e.leaves }

// connection is a translated connection, with an entry for each direction.
type connection struct {
	translated               // its addresses and ports
	inbound, ends bool       // a remote opened it; it ends during the next pass
	entries       [2]*entry  // the opener's first
	seen          [2]traffic // when the last pass saw it
	asked         bool       // the last pass did not end it at once
}

// open returns a new connection through outer. An inbound one was opened by the remote.
func open(t translated, remote netip.AddrPort, inbound bool, now uint32) *connection {
	inside, outside := datapath.Tuple{Source: t.inner, Destination: remote}, datapath.Tuple{Source: t.outer, Destination: remote}
	turned := func(t datapath.Tuple) datapath.Tuple {
		return datapath.Tuple{Source: t.Destination, Destination: t.Source}
	}
	c := &connection{translated: t, inbound: inbound}
	away, towards := &entry{comes: inside, leaves: outside}, &entry{comes: turned(outside), leaves: turned(inside)}
	c.entries = [2]*entry{away, towards}
	flag := kernel.CtSNAT
	if inbound {
		c.entries, flag = [2]*entry{towards, away}, kernel.CtDNAT
	}
	for i, e := range c.entries {
		e.protocol = datapath.Protocol(t.proto)
		e.meta = kernel.CtMeta{NatId: t.nat, Flags: flag | uint16(i)*kernel.CtReply, CreatedTick: now, LastSeenTick: now, PacketCount: 1, ByteCount: 60}
	}
	return c
}

// logBook contains the mappings, blocks and connections that this run has logged as created, and
// not as deleted.
type logBook struct {
	t    *testing.T
	open map[string]bool
}

func (b *logBook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logBook) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *logBook) WithGroup(string) slog.Handler            { return b }

func (b *logBook) Handle(_ context.Context, r slog.Record) error {
	line := ""
	r.Attrs(func(a slog.Attr) bool {
		line += a.String() + " "
		return true
	})
	created := r.Message == "NAT mapping created"
	if !created && r.Message != "NAT mapping deleted" || b.open[line] == created {
		b.t.Errorf("%s: %s, although it is logged as open: %t", r.Message, line, b.open[line])
	}
	if b.open[line] = true; !created {
		delete(b.open, line)
	}
	return nil
}

// holding is a mapping or a block, with its history.
type holding struct {
	translated
	nth             uint8
	created, opened uint32 // opened: when its last connection began
	ended           uint32 // last packet of connections that ended
	recorded        uint32 // a use that is in the tables
	half            bool   // a failed pass deleted its inner side
}

// used returns the tick of the last use.
func (h *holding) used() uint32 {
	if int32(h.ended-h.opened) > 0 {
		return h.ended
	}
	return h.opened
}

// passSite has NATs, and does what the programs do: it opens connections, for which it creates
// mappings and blocks.
type passSite struct {
	*natSite
	clock    uint32
	outer    int // number of outer ports that were given out
	conns    []*connection
	mappings map[translated]*holding
	blocks   map[translated]*holding
	ended    map[uint16]traffic // of ended connections, by id
	nameOf   map[uint16]datapath.NATName
	book     *logBook
}

const blockSize = 128

// passNATs returns the NATs of a passSite, one of each kind.
func passNATs() map[datapath.NATName]datapath.NAT {
	v := datapath.NAT{Addresses: prefixes("203.0.0.0/16"), Log: true}
	mapped, open, block := v, v, v
	mapped.Mapping = datapath.EndpointIndependent
	open.Mapping, open.Filtering, open.Log = datapath.EndpointIndependent, datapath.EndpointIndependent, false
	block.BlockSize = blockSize
	return map[datapath.NATName]datapath.NAT{"mapped": mapped, "open": open, "block": block, "plain": v}
}

func newPassSite(t *testing.T, seed uint64) *passSite {
	s := &passSite{
		natSite: newNATSite(t, seed), clock: ^uint32(0) - 20000, mappings: map[translated]*holding{}, blocks: map[translated]*holding{},
		ended: map[uint16]traffic{}, nameOf: map[uint16]datapath.NATName{}, book: &logBook{t: t, open: map[string]bool{}},
	}
	s.foreign = true // programs change tables too
	s.log = s.book
	s.natSite.desired.Rules = passNATs()
	s.again()
	return s
}

// again starts a new run.
func (s *passSite) again() {
	s.t.Helper()
	s.restart()
	s.Now = func() uint32 { return s.clock }
	clear(s.book.open)
	s.configure()
}

// configure applies the desired rules.
func (s *passSite) configure() {
	s.t.Helper()
	s.reconcile()
	for name, id := range s.ids {
		s.nameOf[id] = name
	}
}

// shares reports whether the NAT with this id has mappings or blocks.
func (s *passSite) shares(id uint16) bool {
	v, ok := s.desired.Rules[s.nameOf[id]]
	return ok && s.ids[s.nameOf[id]] == id && (v.BlockSize != 0 || v.Mapping == datapath.EndpointIndependent)
}

// logs reports whether the NAT with this id logs.
func (s *passSite) logs(id uint16) bool {
	return s.ids[s.nameOf[id]] == id && s.desired.Rules[s.nameOf[id]].Log
}

// freshOuter returns an outer address and port, the first of a block that nothing else uses.
func (s *passSite) freshOuter() netip.AddrPort {
	s.outer++
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(s.outer / 400), 9}), 1024+uint16(s.outer%400)*blockSize)
}

// connect opens a connection through a random NAT, as the programs do.
func (s *passSite) connect() {
	s.t.Helper()
	r := s.Random
	name := []datapath.NATName{"mapped", "open", "block", "plain"}[r.IntN(4)]
	id := s.ids[name]
	if id == 0 {
		return
	}
	inner := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + r.IntN(3))}), uint16(5000+r.IntN(2)))
	remote := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(256))}), uint16(1024+r.IntN(60000)))
	proto := []uint8{6, 17}[r.IntN(2)]
	t := translated{nat: id, proto: proto, inner: inner}
	inbound := false
	switch v := s.desired.Rules[name]; {
	case v.BlockSize != 0:
		t.outer = s.portOfBlock(id, inner.Addr(), uint8(r.IntN(2)))
	case v.Mapping == datapath.EndpointIndependent:
		inbound = name == "open" && r.IntN(3) == 0
		if t.outer = s.mappedTo(t, inbound); !t.outer.IsValid() {
			return // no mapping for the remote to use
		}
	default:
		t.outer = s.freshOuter()
	}
	s.conns = append(s.conns, open(t, remote, inbound, s.clock))
}

// keys returns the keys of a mapping.
func (t *translated) keys() (inner, outer kernel.MappingKey) {
	outer = kernel.MappingKey{Addr: kernel.AddrOf(t.outer.Addr()), Port: kernel.Swap16(t.outer.Port()), Proto: t.proto}
	inner = kernel.MappingKey{Addr: kernel.AddrOf(t.inner.Addr()), Port: kernel.Swap16(t.inner.Port()), Proto: t.proto}
	inner.NatId = uint32(t.nat) | portsHash(kernel.AddrOf(t.outer.Addr()))<<16
	return inner, outer
}

func (s *passSite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// mappedTo returns the outer side of the mapping of t's inner side, which it creates unless the
// connection is inbound.
func (s *passSite) mappedTo(t translated, inbound bool) netip.AddrPort {
	s.t.Helper()
	for _, h := range s.mappings {
		inner, _ := h.keys()
		var v kernel.Mapping
		if h.nat != t.nat || h.proto != t.proto || h.inner != t.inner || h.half {
			continue
		}
		if ok, err := s.all.Mapping.Find(inner, &v); !ok || err != nil || endpoint(v.Addr, v.Port) != h.outer {
			s.t.Fatalf("mapping %+v has no inner side: %v", h.translated, err)
		}
		if !inbound {
			v.UsedTick = s.clock
			s.must(s.all.Mapping.Put(inner, v))
			h.opened, h.recorded = s.clock, s.clock
		}
		return h.outer
	}
	if inbound {
		return netip.AddrPort{}
	}
	t.outer = s.freshOuter()
	inner, outer := t.keys()
	v := kernel.Mapping{Addr: inner.Addr, Port: inner.Port, NatId: t.nat, CreatedTick: s.clock, UsedTick: s.clock}
	s.must(s.all.MappingOuter.Put(outer, v))
	v.Addr, v.Port = outer.Addr, outer.Port
	s.must(s.all.Mapping.Put(inner, v))
	s.mappings[t] = &holding{translated: t, created: s.clock, opened: s.clock, ended: s.clock, recorded: s.clock}
	return t.outer
}

// blockKeys returns the keys of a block.
func (h *holding) blockKeys() (kernel.BlockKey, kernel.BlockOwnerKey) {
	return kernel.BlockKey{Inner: kernel.AddrOf(h.inner.Addr()), NatId: h.nat, Nth: h.nth},
		kernel.BlockOwnerKey{Outer: kernel.AddrOf(h.outer.Addr()), First: h.outer.Port()}
}

// portOfBlock returns a port of the nth block of an inner address, which it creates if necessary.
// At times, another CPU has taken a block at the same time, which nothing uses.
func (s *passSite) portOfBlock(id uint16, inner netip.Addr, nth uint8) netip.AddrPort {
	s.t.Helper()
	at := func(h *holding) netip.AddrPort {
		return netip.AddrPortFrom(h.outer.Addr(), h.outer.Port()+uint16(s.Random.IntN(blockSize)))
	}
	for _, h := range s.blocks {
		if h.nat != id || h.inner.Addr() != inner || h.nth != nth {
			continue
		}
		key, _ := h.blockKeys()
		var v kernel.Block
		if ok, err := s.all.Block.Find(key, &v); !ok || err != nil {
			s.t.Fatalf("block %+v does not exist: %v", h.translated, err)
		}
		v.UsedTick = s.clock
		s.must(s.all.Block.Put(key, v))
		h.opened, h.recorded = s.clock, s.clock
		return at(h)
	}
	t := translated{nat: id, inner: netip.AddrPortFrom(inner, 0), outer: s.freshOuter(), size: blockSize}
	h := &holding{translated: t, nth: nth, created: s.clock, opened: s.clock, ended: s.clock, recorded: s.clock}
	key, owner := h.blockKeys()
	s.must(s.all.BlockOwner.Put(owner, key))
	v := kernel.Block{Outer: owner.Outer, First: owner.First, Size: blockSize, CreatedTick: s.clock, UsedTick: s.clock}
	s.must(s.all.Block.Put(key, v))
	if s.Random.IntN(3) == 0 {
		lost := s.freshOuter()
		s.must(s.all.BlockOwner.Put(kernel.BlockOwnerKey{Outer: kernel.AddrOf(lost.Addr()), First: lost.Port()}, key))
	}
	s.blocks[t] = h
	return at(h)
}

// line returns a holding or connection as the log shows it.
func (s *passSite) line(t translated) string {
	if t.size > 0 {
		return fmt.Sprintf("nat=%s inner=%s outer=%s ports=%d-%d ", s.nameOf[t.nat], t.inner.Addr(), t.outer.Addr(), t.outer.Port(), int(t.outer.Port())+t.size-1)
	}
	return fmt.Sprintf("nat=%s protocol=%s inner=%s outer=%s ", s.nameOf[t.nat], datapath.Protocol(t.proto), t.inner, t.outer)
}
