// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"maps"
	"slices"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// passing is a pass, and what the site knows about it.
type passing struct {
	*Pass
	began uint32
	seen  []*connection      // all connections that the pass has seen
	late  map[uint16]traffic // traffic of ended connections after the pass saw them, by id
	open  map[string]bool    // what the log contained as open before it ended
}

func (a traffic) plus(b traffic) traffic { return traffic{a.packets + b.packets, a.bytes + b.bytes} }

// sweep begins a pass, and shows it all connections. It deletes the connections that end, as a
// sweeper does; some of them carry another packet just before.
func (s *passSite) sweep() *passing {
	r := s.Random
	p := &passing{Pass: s.PassBegins(1).(*Pass), began: s.clock, seen: s.conns, late: map[uint16]traffic{}}
	p.Resumed()
	s.conns = nil
	for _, c := range p.seen {
		s.clock += uint32(r.IntN(2))
		c.asked = !c.ends || r.IntN(2) == 0
		for i, e := range c.entries {
			p.Seen(e)
			c.seen[i] = traffic{e.meta.PacketCount, e.meta.ByteCount}
			if c.asked && p.Ends(e) {
				s.t.Error("a connection ends although no device has lost its address")
			}
		}
		if !c.ends {
			s.conns = append(s.conns, c)
			continue
		}
		if r.IntN(2) == 0 {
			s.carries(c, r.IntN(2))
		}
		for i, e := range c.entries {
			p.Deleted(e)
			last := traffic{e.meta.PacketCount, e.meta.ByteCount}
			if s.ids[s.nameOf[c.nat]] == c.nat { // otherwise a later NAT may get the same id after a restart
				s.ended[c.nat] = s.ended[c.nat].plus(last)
			}
			p.late[c.nat] = p.late[c.nat].plus(traffic{last.packets - c.seen[i].packets, last.bytes - c.seen[i].bytes})
			s.used(c, e.meta.LastSeenTick)
		}
	}
	for range r.IntN(3) { // opened since
		s.connect()
	}
	return p
}

// carries lets a connection carry packets in one direction.
func (s *passSite) carries(c *connection, direction int) {
	m := &c.entries[direction].meta
	m.LastSeenTick = s.clock
	m.PacketCount += uint64(direction + 1)
	m.ByteCount += 1000
}

// of reports whether a connection uses h.
func (h *holding) of(c *connection) bool {
	if h.size > 0 {
		n := int(c.outer.Port()) - int(h.outer.Port())
		return h.nat == c.nat && h.outer.Addr() == c.outer.Addr() && n >= 0 && n < h.size
	}
	return h.translated == c.translated
}

// used notes the last packet of a direction of a connection that ended.
func (s *passSite) used(c *connection, tick uint32) {
	for _, all := range []map[translated]*holding{s.mappings, s.blocks} {
		for _, h := range all {
			if s.shares(c.nat) && h.of(c) && int32(tick-h.ended) > 0 {
				h.ended = tick
			}
		}
	}
}

// keeps reports whether a mapping or block must outlast a pass.
func (s *passSite) keeps(p *passing, h *holding, idle uint32) bool {
	if int32(h.created-p.began) >= 0 {
		return true
	}
	recent := int32(p.began-h.used()) <= int32(idle)
	return s.shares(h.nat) && (recent || slices.ContainsFunc(p.seen, func(c *connection) bool { return c.asked && h.of(c) }))
}

// wantMappings compares the mappings with those that must be left after a pass. If the pass failed,
// others may be left too, but none without its outer side: no pass would find it.
func (s *passSite) wantMappings(p *passing, failed bool) {
	s.t.Helper()
	for t, h := range s.mappings {
		innerKey, outerKey := t.keys()
		var inner, outer kernel.Mapping
		hasOuter, err := s.all.MappingOuter.Find(outerKey, &outer)
		s.must(err)
		hasInner, err := s.all.Mapping.Find(innerKey, &inner)
		s.must(err)
		hasInner = hasInner && endpoint(inner.Addr, inner.Port) == t.outer
		keeps := s.keeps(p, h, mappingTimeout)
		last := outer.UsedTick
		if hasInner && int32(inner.UsedTick-last) > 0 {
			last = inner.UsedTick
		}
		switch {
		case keeps && (!hasOuter || hasInner == h.half), !keeps && !failed && (hasOuter || hasInner), hasInner && !hasOuter:
			s.t.Errorf("mapping %+v: stays %t, failed %t, has outer side %t, inner %t; %+v", t, keeps, failed, hasOuter, hasInner, *h)
		case !hasOuter:
			delete(s.mappings, t)
		case !hasInner && !h.half:
			h.half, h.opened = true, h.created
		case !failed:
			s.wantUsed(p, h, last)
		}
	}
	inners, outers := count(s.all.Mapping.Iterate()), count(s.all.MappingOuter.Iterate())
	if n, _ := s.Entries(); !failed && (inners != len(s.mappings) || outers != len(s.mappings) || n != uint64(outers)) {
		s.t.Errorf("%d inner and %d outer sides of mappings, reported as %d, want %d", inners, outers, n, len(s.mappings))
	}
}

// wantUsed compares the last use of a mapping or block in the tables. A use that is older than any
// idle time need not be there.
func (s *passSite) wantUsed(p *passing, h *holding, last uint32) {
	s.t.Helper()
	if last != h.used() && int32(p.began-h.used()) <= int32(mappingTimeout) {
		s.t.Errorf("%+v was last used at %d according to the tables, want %d", h.translated, last, h.used())
	}
	h.recorded = last
}

// wantBlocks does the same for blocks, each of which has one owner.
func (s *passSite) wantBlocks(p *passing, failed bool) {
	s.t.Helper()
	for t, h := range s.blocks {
		key, ownerKey := h.blockKeys()
		var block kernel.Block
		var owner kernel.BlockKey
		hasBlock, err := s.all.Block.Find(key, &block)
		s.must(err)
		hasOwner, err := s.all.BlockOwner.Find(ownerKey, &owner)
		s.must(err)
		keeps := s.keeps(p, h, blockTimeout)
		switch {
		case keeps && !(hasBlock && hasOwner && owner == key && endpoint(block.Outer, kernel.Swap16(block.First)) == t.outer),
			!keeps && !failed && (hasBlock || hasOwner), hasBlock && !hasOwner:
			s.t.Errorf("block %+v: stays %t, failed %t, exists %t, has owner %t; %+v", t, keeps, failed, hasBlock, hasOwner, *h)
		case !hasBlock:
			delete(s.blocks, t)
		case !failed:
			s.wantUsed(p, h, block.UsedTick)
		}
	}
	blocks, owners := count(s.all.Block.Iterate()), count(s.all.BlockOwner.Iterate())
	if _, n := s.Entries(); !failed && (blocks != len(s.blocks) || owners != len(s.blocks) || n != uint64(owners)) {
		s.t.Errorf("%d blocks and %d owners, reported as %d, want %d", blocks, owners, n, len(s.blocks))
	}
}

// count returns the number of entries of a table.
func count[K, V any](it interface{ Next(*K, *V) bool }) (n int) {
	var key K
	var value V
	for it.Next(&key, &value) {
		n++
	}
	return n
}

// wantLog compares the lines of the log: the creation of each mapping and block of a NAT that logs, and
// of each connection of a NAT that has neither; and the deletion of each whose creation was logged.
func (s *passSite) wantLog(p *passing) {
	s.t.Helper()
	want := map[string]bool{}
	add := func(t translated) {
		if line := s.line(t); s.logs(t.nat) || p.open[line] {
			want[line] = true
		}
	}
	for _, all := range []map[translated]*holding{s.mappings, s.blocks} {
		for t := range all {
			add(t)
		}
	}
	for _, c := range p.seen {
		if c.asked && !c.inbound && !s.shares(c.nat) {
			add(c.translated)
		}
	}
	if !maps.Equal(want, s.book.open) {
		s.t.Errorf("logged as open: %v\nwant %v", slices.Sorted(maps.Keys(s.book.open)), slices.Sorted(maps.Keys(want)))
	}
}

// wantCounters compares the traffic of each NAT with the sum over its connections. It is too low by
// what connections that ended have carried since the pass saw them.
func (s *passSite) wantCounters(p *passing) {
	s.t.Helper()
	for name, id := range s.ids {
		want := s.ended[id]
		for _, c := range p.seen {
			if c.nat == id && !c.ends {
				want = want.plus(c.seen[0]).plus(c.seen[1])
			}
		}
		want.packets -= p.late[id].packets
		want.bytes -= p.late[id].bytes
		got, ok, err := s.Counters(name)
		if s.must(err); !ok || got.Packets != want.packets || got.Bytes != want.bytes || got.Connections != 0 || len(got.Drops) != 0 {
			s.t.Errorf("counters of %s: %+v, %t; want %+v", name, got, ok, want)
		}
	}
}

// killed starts a new run. The history loses what only the old run knew: uses of mappings and
// blocks, and traffic of ended connections, that were not in a table yet.
func (s *passSite) killed() {
	s.t.Helper()
	s.again()
	lose := func(h *holding, last uint32) {
		if int32(last-h.recorded) < 0 || int32(last-h.used()) > 0 {
			s.t.Errorf("%+v was last used at %d, want %d to %d", h.translated, last, h.recorded, h.used())
		}
		h.opened, h.ended, h.recorded = last, last, last
	}
	for t, h := range s.mappings {
		innerKey, outerKey := t.keys()
		var inner, outer kernel.Mapping
		_, err := s.all.MappingOuter.Find(outerKey, &outer)
		s.must(err)
		if has, err := s.all.Mapping.Find(innerKey, &inner); has && err == nil && !h.half && int32(inner.UsedTick-outer.UsedTick) > 0 {
			outer.UsedTick = inner.UsedTick
		}
		if h.half {
			h.recorded = outer.UsedTick
		}
		lose(h, outer.UsedTick)
	}
	for _, h := range s.blocks {
		key, _ := h.blockKeys()
		var block kernel.Block
		_, err := s.all.Block.Find(key, &block)
		s.must(err)
		lose(h, block.UsedTick)
	}
	for id, most := range s.ended {
		var past kernel.Traffic
		_, err := s.all.NatTraffic.Find(uint32(id), &past)
		if s.must(err); past.PacketCount > most.packets || past.ByteCount > most.bytes {
			s.t.Errorf("traffic of %d: %+v, want at most %+v", id, past, most)
		}
		s.ended[id] = traffic{past.PacketCount, past.ByteCount}
	}
}

// live lets time pass, in which connections begin, carry packets, and end.
func (s *passSite) live() {
	r := s.Random
	for range r.IntN(12) {
		s.clock += uint32(r.IntN(200))
		s.connect()
	}
	for _, c := range s.conns {
		s.clock += uint32(r.IntN(30))
		if r.IntN(2) == 0 {
			s.carries(c, r.IntN(2))
		}
		c.ends = r.IntN(3) == 0
	}
	s.clock += uint32(r.IntN(1200))
}

// reconfigure changes a rule: whether it logs, or has mappings, or whether it exists.
func (s *passSite) reconfigure() {
	names := slices.Sorted(maps.Keys(passNATs()))
	name := names[s.Random.IntN(len(names))]
	v, ok := s.desired.Rules[name]
	switch kind := s.Random.IntN(3); {
	case !ok:
		s.desired.Rules[name] = passNATs()[name]
	case kind == 0:
		delete(s.desired.Rules, name)
		delete(s.ended, s.ids[name])
	case kind == 1:
		v.Log = !v.Log
		s.desired.Rules[name] = v
	case name == "mapped":
		v.Mapping = map[datapath.NATBehaviour]datapath.NATBehaviour{
			datapath.EndpointIndependent: datapath.AddressAndPortDependent, datapath.AddressAndPortDependent: datapath.EndpointIndependent,
		}[v.Mapping]
		s.desired.Rules[name] = v
	}
	s.configure()
}

// TestNATPasses compares the tables, the log and the counters after each pass with the history of
// all connections. A mapping or block stays while a connection uses it, and for its idle time after
// the last packet in either direction, also if passes are given up or fail at any of their changes
// in between. A pass that is repeated leaves what an undisturbed one leaves.
func TestNATPasses(t *testing.T) {
	failures, kills := 0, 0
	for seed := range uint64(15) {
		s := newPassSite(t, seed)
		for range 40 {
			if s.live(); s.Random.IntN(5) == 0 {
				s.reconfigure()
			}
			p := s.sweep()
			if s.Random.IntN(6) == 0 {
				continue // given up
			}
			p.open = maps.Clone(s.book.open)
			s.Rate = []float64{0, 0, 0.05, 0.3}[s.Random.IntN(4)]
			err := p.PassEnded()
			s.Rate = 0
			s.wantMappings(p, err != nil)
			s.wantBlocks(p, err != nil)
			if err == nil {
				s.wantLog(p)
				s.wantCounters(p)
			}
			if s.Killed || s.Random.IntN(12) == 0 {
				s.killed()
				kills++
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		failures += s.Failures
	}
	if t.Logf("%d failures, %d restarts", failures, kills); failures < 50 || kills < 20 {
		t.Error("too few failures")
	}
}
