// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// entriesOf returns all entries of a table.
func entriesOf[K comparable, V any](m *bpfmap.Map[K, V]) map[K]V {
	all := make(map[K]V)
	var key K
	var value V
	for it := m.Iterate(); it.Next(&key, &value); {
		all[key] = value
	}
	return all
}

// restore makes all the only entries of a table.
func restore[K comparable, V any](t *testing.T, m *bpfmap.Map[K, V], all map[K]V) {
	t.Helper()
	for key := range entriesOf(m) {
		if _, ok := all[key]; !ok {
			if err := m.Delete(key); err != nil {
				t.Fatal(err)
			}
		}
	}
	for key, value := range all {
		if err := m.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
}

// passTables are the entries of the tables that a pass changes.
type passTables struct {
	inner, outer map[kernel.MappingKey]kernel.Mapping
	block        map[kernel.BlockKey]kernel.Block
	owner        map[kernel.BlockOwnerKey]kernel.BlockKey
	traffic      map[uint32]kernel.Traffic
}

func (s *passSite) tables() passTables {
	return passTables{
		entriesOf(&s.all.Mapping), entriesOf(&s.all.MappingOuter), entriesOf(&s.all.Block), entriesOf(&s.all.BlockOwner), entriesOf(&s.all.NatTraffic),
	}
}

func (s *passSite) reset(to passTables) {
	s.t.Helper()
	restore(s.t, &s.all.Mapping, to.inner)
	restore(s.t, &s.all.MappingOuter, to.outer)
	restore(s.t, &s.all.Block, to.block)
	restore(s.t, &s.all.BlockOwner, to.owner)
	restore(s.t, &s.all.NatTraffic, to.traffic)
}

// grown returns a site with connections that have been opened during several passes, of which two
// thirds have ended since the last pass.
func grown(t *testing.T, seed uint64) *passSite {
	s := newPassSite(t, seed)
	for range 4 {
		s.live()
		p := s.sweep()
		s.must(p.PassEnded())
		s.wantMappings(p, false)
		s.wantBlocks(p, false)
	}
	s.clock += mappingTimeout / 2
	for i, c := range s.conns {
		c.ends = i%3 != 0
	}
	return s
}

// pass returns a pass that has seen all connections, and is about to end. It has deleted those that
// end, unless a pass before it did.
func (s *passSite) pass(ends bool) *Pass {
	p := s.NewPass()
	for _, c := range s.conns {
		for _, e := range c.entries {
			if !c.ends || ends {
				p.Seen(e)
			}
			switch {
			case !c.ends:
				p.Ends(e)
			case ends:
				p.Deleted(e)
			}
		}
	}
	return p
}

// state describes the results of a pass.
func (s *passSite) state() string {
	mappings, blocks := s.Entries()
	text := fmt.Sprintln(s.tables(), mappings, blocks)
	for _, name := range []datapath.NATName{"block", "mapped", "open", "plain"} {
		c, ok, err := s.Counters(name)
		text += fmt.Sprintln(name, c, ok, err)
	}
	return text
}

// TestEachStepOfPassFails fails a pass at each of its changes to the tables. The next pass leaves
// the tables, the numbers of mappings and blocks, and the counters of an undisturbed run.
func TestEachStepOfPassFails(t *testing.T) {
	steps := 0
	for seed := range uint64(10) {
		s := grown(t, seed)
		before := s.tables()
		s.steps = 0
		s.must(s.pass(true).PassEnded())
		total, want := s.steps, s.state()
		for n := 1; n <= total; n++ {
			s.reset(before)
			p := s.pass(true)
			s.steps, s.failing = 0, n
			err := p.PassEnded()
			if s.failing = 0; err == nil {
				t.Fatalf("seed %d: step %d of %d failed, and the pass did not", seed, n, total)
			}
			s.must(s.pass(false).PassEnded())
			if got := s.state(); got != want {
				t.Fatalf("seed %d, step %d of %d: %s\nwant %s", seed, n, total, got, want)
			}
		}
		steps += total
	}
	if t.Logf("%d steps", steps); steps < 100 {
		t.Error("too few steps")
	}
}

// TestUsedDuringPass: a mapping or block that a new connection begins to use while a pass deletes
// others stays, with both sides, and its end is not logged.
func TestUsedDuringPass(t *testing.T) {
	for name, idle := range map[datapath.NATName]uint32{"mapped": mappingTimeout, "block": blockTimeout} {
		t.Run(string(name), func(t *testing.T) {
			s := newPassSite(t, 1)
			use := func(host byte) {
				inner := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), 5000)
				if name == "block" {
					s.portOfBlock(s.ids[name], inner.Addr(), 0)
				} else {
					s.mappedTo(translated{nat: s.ids[name], proto: 17, inner: inner}, false)
				}
			}
			for host := range byte(3) {
				use(host)
			}
			s.must(s.NewPass().PassEnded())
			if len(s.book.open) != 3 {
				t.Fatalf("logged as open: %v", s.book.open)
			}
			s.clock += idle + 1
			p := &passing{Pass: s.NewPass(), began: s.clock}
			s.clock += 5
			s.hook = func() { use(2) } // the first has just been selected for deletion
			s.must(p.PassEnded())
			s.wantMappings(p, false)
			s.wantBlocks(p, false)
			if s.hook != nil || len(s.book.open) != 1 || len(s.mappings)+len(s.blocks) != 1 {
				t.Errorf("logged as open: %v, want one", s.book.open)
			}
		})
	}
}

// TestGoneDuringPass: if the programs delete a mapping during a pass, the pass ends the other
// unused mappings nevertheless.
func TestGoneDuringPass(t *testing.T) {
	s := newPassSite(t, 1)
	for host := range byte(3) {
		s.mappedTo(translated{nat: s.ids["mapped"], proto: 17, inner: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), 5000)}, false)
	}
	s.clock += mappingTimeout + 1
	p := &passing{Pass: s.NewPass(), began: s.clock}
	s.hook = func() { // the first is about to be deleted
		for t := range s.mappings {
			if t.inner.Addr().As4()[3] == 1 {
				inner, outer := t.keys()
				s.must(s.all.MappingOuter.Delete(outer))
				s.must(s.all.Mapping.Delete(inner))
			}
		}
	}
	s.must(p.PassEnded())
	s.wantMappings(p, false)
}

// TestOwnerBeforeBlock: the programs insert the owner of a block, then the block. A pass in between
// keeps the owner if the block exists before the owner would be deleted.
func TestOwnerBeforeBlock(t *testing.T) {
	s := newPassSite(t, 1)
	var keys [2]kernel.BlockKey
	var owners [2]kernel.BlockOwnerKey
	for i := range keys {
		h := &holding{translated: translated{nat: s.ids["block"], inner: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 0), outer: s.freshOuter(), size: blockSize}}
		keys[i], owners[i] = h.blockKeys()
		s.must(s.all.BlockOwner.Put(owners[i], keys[i]))
	}
	s.hook = func() { // it is too late for the owner that is about to be deleted
		for i, k := range owners {
			s.must(s.all.Block.Put(keys[i], kernel.Block{Outer: k.Outer, First: k.First, Size: blockSize, CreatedTick: s.clock, UsedTick: s.clock}))
		}
	}
	s.must(s.NewPass().PassEnded())
	if left := entriesOf(&s.all.BlockOwner); len(left) != 1 {
		t.Errorf("%d owners are left, want one", len(left))
	}
	if _, blocks := s.Entries(); blocks != 1 {
		t.Errorf("reported are %d blocks, want one", blocks)
	}
}

// TestNewerThanPass: a pass that began before a rule took effect does not end the mappings and
// blocks that the rule has created since.
func TestNewerThanPass(t *testing.T) {
	for _, name := range []datapath.NATName{"mapped", "block"} {
		s := newPassSite(t, 1)
		v := s.desired.Rules[name]
		delete(s.desired.Rules, name)
		s.configure()
		p := &passing{Pass: s.NewPass(), began: s.clock}
		s.desired.Rules[name] = v
		s.configure()
		if inner := netip.MustParseAddrPort("10.0.0.1:5000"); name == "block" {
			s.portOfBlock(s.ids[name], inner.Addr(), 0)
		} else {
			s.mappedTo(translated{nat: s.ids[name], proto: 17, inner: inner}, false)
		}
		s.must(p.PassEnded())
		s.wantMappings(p, false)
		s.wantBlocks(p, false)
		if len(s.mappings)+len(s.blocks) != 1 {
			t.Errorf("%s: %d mappings and %d blocks", name, len(s.mappings), len(s.blocks))
		}
	}
}

// TestAddressGone: a connection ends if it was translated to an address that its device no longer
// has, unless it is newer than the list of addresses, or its namespace is not in the list.
func TestAddressGone(t *testing.T) {
	s := newPassSite(t, 1)
	has := netip.MustParseAddr("203.0.113.1")
	s.local = map[kernel.LocalKey]bool{{Addr: kernel.AddrOf(has)}: true, {Addr: kernel.AddrOf(has), Netns: 1}: true}
	s.netns = map[uint8]bool{0: true, 1: true}
	gone := netip.MustParseAddr("203.0.113.2")
	for _, tt := range []struct {
		name      string
		outer     netip.Addr
		namespace uint8
		age       uint32
		flags     uint16
		ends      bool
	}{
		{"the address stays", has, 0, 100, kernel.CtDevice, false},
		{"the address is gone", gone, 0, 100, kernel.CtDevice, true},
		{"it stays in the switch", has, 1, 100, kernel.CtDevice, false},
		{"it is gone in the switch", gone, 1, 100, kernel.CtDevice, true},
		{"another namespace", gone, 2, 100, kernel.CtDevice, false},
		{"from a pool", gone, 0, 100, 0, false},
		{"as old as the list", gone, 0, 0, kernel.CtDevice, true},
		{"newer than the list", gone, 0, ^uint32(0), kernel.CtDevice, false},
	} {
		p := s.NewPass()
		c := open(translated{nat: 9, proto: 17, inner: netip.MustParseAddrPort("10.0.0.1:5000"), outer: netip.AddrPortFrom(tt.outer, 61000)},
			netip.MustParseAddrPort("192.0.2.7:53"), false, s.clock-tt.age)
		for i, e := range c.entries {
			e.namespace = tt.namespace
			if e.meta.Flags |= tt.flags; p.Ends(e) != tt.ends {
				t.Errorf("%s, direction %d: ends %t, want %t", tt.name, i, !tt.ends, tt.ends)
			}
		}
	}
}
