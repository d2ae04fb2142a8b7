// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/testmap"
	"github.com/loxilight/loxilight/datapath/internal/testtables"
)

// site is a sweeper over tables in memory, with a judge that ends connections to dead backends.
type site struct {
	*Sweeper
	t       *testing.T
	random  *rand.Rand
	fails   float64 // probability that a deletion fails
	dead    map[uint32]bool
	leaves  map[datapath.Tuple]datapath.Tuple // of every entry, by arriving tuple
	last    *recorder                         // of the last pass that began
	resumed int
	port    uint16
}

func newSite(t *testing.T, seed uint64) *site {
	t.Helper()
	s := &site{t: t, random: rand.New(rand.NewPCG(seed, 7)), dead: map[uint32]bool{}, leaves: map[datapath.Tuple]datapath.Tuple{}}
	tables, _ := testtables.New(t, datapath.Tables{
		Connections: 1024, Services: 64, Backends: 64, Affinity: 16, Ranges: 16, Rules: 16, Prefixes: 16,
	}, &testmap.Faults{})
	s.Sweeper = newSweeper(Options{
		Tables: tables, Shares: new(kernel.Shares), Interval: time.Hour, Log: slog.New(slog.DiscardHandler), Judges: []Judge{s, second{s}},
		IsIdle:      func() bool { return false },
		IdleTimes:   func() map[uint32]datapath.IdleTimeout { return nil },
		ServiceOf:   func(uint32) uint32 { return 0 },
		ServiceName: func(uint32) datapath.ServiceName { return "" },
		NATName:     func(uint16) datapath.NATName { return "" },
		BeforeRules: func() (func(uint32) bool, error) { return func(uint32) bool { return false }, nil },
		RuleName:    func(uint32) datapath.RuleName { return "" },
	}, s)
	t.Cleanup(func() { _ = s.Sweeper.Close() })
	return s
}

// recorder is the judge's part in a pass.
type recorder struct {
	*site
	seen, deleted map[datapath.Tuple]int // by arriving tuple
	complete      bool
}

func (s *site) PassBegins(uint64) Part {
	s.last = &recorder{site: s, seen: map[datapath.Tuple]int{}, deleted: map[datapath.Tuple]int{}}
	return s.last
}

func (r *recorder) Resumed() {}

func (r *recorder) Seen(e Entry) {
	comes, _ := e.Tuples()
	r.seen[comes]++
}

func (r *recorder) Ends(e Entry) bool {
	return r.dead[e.Meta().BackendId]
}

// second is a judge that ends nothing.
type second struct{ *site }

func (j second) PassBegins(uint64) Part { return secondPart(j) }

type secondPart struct{ *site }

func (p secondPart) Resumed()         { p.resumed++ }
func (p secondPart) Seen(Entry)       {}
func (p secondPart) Deleted(Entry)    {}
func (p secondPart) PassEnded() error { return nil }

func (p secondPart) Ends(e Entry) bool {
	if p.dead[e.Meta().BackendId] {
		p.t.Errorf("a judge is asked about a connection that a judge before it ends")
	}
	return false
}

func (r *recorder) Deleted(e Entry) {
	comes, leaves := e.Tuples()
	r.deleted[comes]++
	if m := e.Meta(); m.PacketCount != uint64(comes.Source.Port()) || leaves != r.leaves[comes] || e.Protocol() != datapath.UDP || e.Namespace() != 0 {
		r.t.Errorf("%v: deleted with %d packets as %v, want %v", comes, m.PacketCount, leaves, r.leaves[comes])
	}
}

func (r *recorder) PassEnded() error {
	r.complete = true
	return nil
}

// Close implements deleter.
func (s *site) Close() error { return nil }

// Run deletes connections as expire.bpf.c does.
func (s *site) Run(all []kernel.ExpirerExpire) error {
	if s.random.Float64() < s.fails {
		return errors.New("cannot run")
	}
	for i := range all {
		e := &all[i]
		e.Result = kernel.ExpirerExpireResultEXPIRE_ABSENT
		if e.Family == 4 {
			k := kernel.Ct4Key{Saddr: e.Key4.Saddr, Daddr: e.Key4.Daddr, Sport: e.Key4.Sport, Dport: e.Key4.Dport, Proto: e.Key4.Proto}
			deleteBoth[kernel.Ct4Key, kernel.Ct4Val](s, e, k, &s.options.Tables.Ct4)
		} else {
			k := kernel.Ct6Key{Sport: e.Key6.Sport, Dport: e.Key6.Dport, Proto: e.Key6.Proto}
			k.Saddr.Word, k.Daddr.Word = e.Key6.Saddr.Word, e.Key6.Daddr.Word
			deleteBoth[kernel.Ct6Key, kernel.Ct6Val](s, e, k, &s.options.Tables.Ct6)
		}
	}
	return nil
}

func deleteBoth[K comparable, V any, KP key[K], VP value[K, V]](s *site, e *kernel.ExpirerExpire, k K, table *bpfmap.Map[K, V]) {
	var v, twin V
	if ok, _ := table.Find(k, &v); !ok {
		return
	}
	twinKey := VP(&v).Twin(&k)
	both, _ := table.Find(twinKey, &twin)
	idle := func(m *kernel.CtMeta) bool { return idleSince(e.NowTick, m) > e.IdleTicks }
	if e.Force == 0 && (!idle(VP(&v).Common()) || both && !idle(VP(&twin).Common())) {
		e.Result = kernel.ExpirerExpireResultEXPIRE_STAYS
		return
	}
	e.Result, e.State = kernel.ExpirerExpireResultEXPIRE_ALONE, uint32(VP(&v).Common().State)
	VP(&v).Common().Split(&e.Meta, (*kernel.CtMore)(&e.More))
	_ = table.Delete(k)
	s.count(VP(&v).Common(), KP(&k).Tuple().Source.Addr(), -1)
	if both {
		e.Result = kernel.ExpirerExpireResultEXPIRE_BOTH
		VP(&twin).Common().Split(&e.Twin, (*kernel.CtMore)(&e.TwinMore))
		_ = table.Delete(twinKey)
		s.count(VP(&twin).Common(), KP(&twinKey).Tuple().Source.Addr(), -1)
	}
}

// count counts an entry as the programs do.
func (s *site) count(m *kernel.CtMeta, source netip.Addr, n int) {
	if shares := s.options.Shares; m.Flags&(kernel.CtLasting|kernel.CtReply) == kernel.CtLasting {
		shares.Total[familyOf(source)] += uint32(n)
		shares.Count[ShareIndex(shares, source)] += uint32(n)
	}
}

// want describes what a pass must do with a connection that was opened.
type want struct {
	arrives []datapath.Tuple // of the entries: the client's first; one of them may be missing
	backend uint32
	idle    []bool // by entry
	reply   bool   // the connection has an entry only for the replies
	half    bool   // it is half-open: no share counts it
}

func (w *want) ends(dead map[uint32]bool) bool {
	return dead[w.backend] || !slices.Contains(w.idle, false)
}

// open inserts the entries of a new connection through a service. The source port of each entry is
// the number of its packets.
func (s *site) open() want {
	s.port++
	client, frontend, backend := "192.0.2.7", "198.51.100.1", "10.0.0.9"
	if s.random.IntN(2) == 0 {
		client, frontend, backend = "2001:db8::7", "2001:db8:2::1", "2001:db8:1::9"
	}
	at := func(addr string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	}
	w := want{backend: 1 + uint32(s.random.IntN(9))}
	forth := datapath.Tuple{Source: at(client, 1024+s.port), Destination: at(frontend, 53)}
	back := datapath.Tuple{Source: at(backend, 20000+s.port), Destination: forth.Source}
	s.leaves[forth], s.leaves[back] = turned(back), turned(forth)
	half, missing := s.random.IntN(2) == 0, s.random.IntN(16) // 0, 1: the entry that is missing
	w.half = half
	for direction, tuple := range []datapath.Tuple{forth, back} {
		if direction == missing {
			w.reply = direction == 0
			continue
		}
		m := kernel.CtMeta{PacketCount: uint64(tuple.Source.Port()), BackendId: w.backend, State: uint8(kernel.CtStateCT_ESTABLISHED)}
		if half {
			m.State = uint8(kernel.CtStateCT_NEW)
		} else {
			m.Flags = kernel.CtLasting
		}
		if direction == 1 {
			m.Flags |= kernel.CtReply
		}
		m.LastSeenTick = kernel.NowTick()
		idle := s.random.IntN(2) == 0
		if idle {
			m.LastSeenTick -= plainIdle.udp + unansweredTimeout + 100
		}
		w.arrives, w.idle = append(w.arrives, tuple), append(w.idle, idle)
		s.insert(tuple, s.leaves[tuple], m)
		s.count(&m, tuple.Source.Addr(), s.random.IntN(2)) // some are not counted, as after a restart
	}
	return w
}

func (s *site) insert(tuple, leaves datapath.Tuple, m kernel.CtMeta) {
	src, dst := kernel.AddrOf(tuple.Source.Addr()), kernel.AddrOf(tuple.Destination.Addr())
	sport, dport := kernel.Swap16(tuple.Source.Port()), kernel.Swap16(tuple.Destination.Port())
	to, from := kernel.AddrOf(leaves.Destination.Addr()), kernel.AddrOf(leaves.Source.Addr())
	toPort, fromPort := kernel.Swap16(leaves.Destination.Port()), kernel.Swap16(leaves.Source.Port())
	var err error
	if tuple.Source.Addr().Is4() {
		k := kernel.Ct4Key{Saddr: src.Word[3], Daddr: dst.Word[3], Sport: sport, Dport: dport, Proto: uint8(datapath.UDP)}
		err = s.options.Tables.Ct4.Put(k, kernel.Ct4Val{Meta: m, Saddr: from.Word[3], Daddr: to.Word[3], Sport: fromPort, Dport: toPort})
	} else {
		k := kernel.Ct6Key{Saddr: src, Daddr: dst, Sport: sport, Dport: dport, Proto: uint8(datapath.UDP)}
		err = s.options.Tables.Ct6.Put(k, kernel.Ct6Val{Meta: m, Saddr: from, Daddr: to, Sport: fromPort, Dport: toPort})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestPasses: a complete pass shows each entry to the judges once, and deletes exactly the
// connections that are idle in both directions or that a judge or a filter ends, both directions of
// each. If a deletion fails, the pass is abandoned, and the next one continues. The shares equal
// the number of connections.
func TestPasses(t *testing.T) {
	for seed := range uint64(20) {
		s := newSite(t, seed)
		var all []want
		for round := range 12 {
			for range s.random.IntN(60) {
				all = append(all, s.open())
			}
			s.fails = []float64{0, 0, 0.3}[round%3]
			s.dead = map[uint32]bool{1 + uint32(s.random.IntN(9)): true}
			var flushed map[datapath.Tuple]bool
			deleted := map[datapath.Tuple]int{}
			for !s.passOnce(all, &flushed, deleted) {
			}
			var left []want
			for _, w := range all {
				ends := w.ends(s.dead) || flushed[w.arrives[0]]
				gone := !slices.ContainsFunc(w.arrives, func(tuple datapath.Tuple) bool { return deleted[tuple] != 1 })
				if ends != gone || !gone && slices.ContainsFunc(w.arrives, func(tuple datapath.Tuple) bool { return deleted[tuple] > 0 }) {
					t.Fatalf("seed %d, round %d: %+v: ends %t; deleted %v", seed, round, w, ends, deleted)
				}
				if !gone {
					left = append(left, w)
				}
			}
			all = left
			s.check(all)
		}
	}
}

// passOnce runs a pass, of which some end the connections of clients with an even port, and some are
// done in many steps. It adds the directions that were deleted, and reports whether the pass is
// complete.
func (s *site) passOnce(all []want, flushed *map[datapath.Tuple]bool, deleted map[datapath.Tuple]int) bool {
	s.t.Helper()
	var err error
	switch {
	case *flushed != nil || s.random.IntN(3) == 0:
		*flushed = map[datapath.Tuple]bool{}
		for _, w := range all {
			if isEven(w.client()) {
				(*flushed)[w.arrives[0]] = true
			}
		}
		_, err = s.flush(s.t.Context(), func(c *datapath.Connection) bool { return isEven(c.Original.Source) })
	case s.random.IntN(2) == 0:
		s.resumed = 0
		s.mu.Lock()
		steps := 0
		for done := false; !done && err == nil; steps++ {
			done, err = s.step(time.Now())
		}
		s.mu.Unlock()
		if s.resumed != steps || err == nil && steps < tableCount {
			s.t.Errorf("resumed %d times in %d steps", s.resumed, steps)
		}
	default:
		err = s.Whole()
	}
	if failed := err != nil; failed == s.last.complete {
		s.t.Fatalf("complete %t: %v", s.last.complete, err)
	}
	for tuple, n := range s.last.deleted {
		deleted[tuple] += n
	}
	for tuple, n := range s.last.seen {
		if n != 1 {
			s.t.Errorf("%v was seen %d times", tuple, n)
		}
	}
	return s.last.complete
}

// client returns the client's address and port.
func (w *want) client() netip.AddrPort {
	if w.reply {
		return w.arrives[0].Destination
	}
	return w.arrives[0].Source
}

func isEven(client netip.AddrPort) bool { return client.Port()%2 == 0 }

// check compares the shares and the tables with the connections that are left after a pass.
func (s *site) check(left []want) {
	s.t.Helper()
	var count [2]uint32   // connections whose client's entry exists, by family
	var entries [2]uint64 // of both directions
	for _, w := range left {
		family := 0
		if w.client().Addr().Is6() {
			family = 1
		}
		entries[family] += uint64(len(w.arrives))
		if !w.reply && !w.half {
			count[family]++
		}
	}
	for family := range count {
		if got := s.options.Shares.Total[family]; got != count[family] {
			s.t.Errorf("%d connections of family %d are counted, want %d", got, family, count[family])
		}
	}
	s.fails = 0
	if err := s.Whole(); err != nil {
		s.t.Fatal(err)
	}
	if n := s.Entries(); n[IPv4] != entries[0] || n[IPv6] != entries[1] {
		s.t.Errorf("entries %v, want %v", n, entries)
	}
}
