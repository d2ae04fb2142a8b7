// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// idleUnit is 2^CT_IDLE_SHIFT ticks.
const idleUnit = 64

// age makes the entries look as if their last packets were so many ticks earlier.
func (r *rig) age(ticks uint32, tuples ...rigTuple) {
	r.t.Helper()
	for _, tuple := range tuples {
		r.change(tuple, func(m *rigMeta) { m.LastSeenTick -= ticks })
	}
}

// TestEndedIsNotCounted: a connection counts for its client from the packet that makes it lasting to
// the packet that ends it. No daemon is needed for that.
func TestEndedIsNotCounted(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for _, end := range [][]string{{"cFIN", "sFIN"}, {"sFIN", "cFIN"}, {"cRST"}, {"sRST"}, {"cFIN", "sRST"}} {
			t.Run(fmt.Sprintf("%s/%v", f.name, end), func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, testpkt.ProtoTCP, natModes[3])
				counted := func(when string, want uint32) {
					t.Helper()
					s := r.shares()
					total := s.Total[kernel.FamilyOf(p.client.Addr())]
					if n := s.Count[conn.ShareIndex(&s, p.client.Addr())]; n != want || total != want {
						t.Errorf("%s: %d of %d connections count for the client, want %d", when, n, total, want)
					}
				}
				for range 2 {
					r.send(p, segments["cSYN"])
					r.send(p, segments["sSYNA"])
					counted("half-open", 0)
					r.send(p, segments["cACK"])
					counted("established", 1)
					for _, name := range end {
						r.send(p, segments[name])
					}
					counted("ended", 0)
				}
				r.send(p, segments["sFIN"])
				counted("a packet later", 0)
			})
		}
	}
}

// TestLastAcknowledgementIsFast: the packets that follow the FINs of both sides take the fast path.
func TestLastAcknowledgementIsFast(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		r := base.fresh(t)
		p := r.connect(f, testpkt.ProtoTCP, natModes[0])
		r.play(p, lifeOfFive...)
		r.nexthop(5, p.beport, 0, p.forth())
		ack := segments["cACK"]
		build := func(from, to netip.AddrPort, eth testpkt.Ethernet, ttl uint8) []byte {
			return testpkt.Build(eth, ipHeader(from.Addr(), to.Addr(), ttl), testpkt.TCP{Source: from.Port(),
				Destination: to.Port(), Flags: ack.flags, Seq: ack.seq, Ack: ack.ack, Window: ack.window})
		}
		r.step("ACK", r.in, build(p.client, p.vip, r.in.arrives(), 61), actRedirect, build(p.source, p.backend, p.beport.leaves(), 60))
		if c := r.counters(); c["VERDICT_FAST"] != 1 {
			t.Errorf("%s: %d packets took the fast path, want 1", f.name, c["VERDICT_FAST"])
		}
		if got := r.stateOf(p); got != "TIME_WAIT" {
			t.Errorf("%s: state %s, want TIME_WAIT", f.name, got)
		}
	}
}

// TestManyEndWithoutDaemon: no daemon sweeps, and a client opens and closes far more connections than the
// table holds, or leaves them: new ones become lasting.
func TestManyEndWithoutDaemon(t *testing.T) {
	const capacity = 200
	base := newRig(t, sized(capacity))
	for _, f := range families {
		for _, end := range [][]string{{"cFIN", "sFIN"}, {"sRST"}, nil} {
			t.Run(fmt.Sprintf("%s/%v", f.name, end), func(t *testing.T) {
				r := base.fresh(t)
				s := r.shares()
				s.CapacityOf = [2]uint32{capacity, capacity}
				r.put(kernel.MapLlShares, uint32(0), s)
				p := r.connect(f, testpkt.ProtoTCP, natModes[0])
				var over []uint16
				for i := range uint16(10 * capacity) {
					q := p.from(1000 + i)
					r.open(q)
					if got := r.stateOf(q); got != "ESTABLISHED+" {
						over = append(over, i)
					}
					for _, name := range end {
						r.send(q, segments[name])
					}
					if end == nil && i >= 20 {
						r.age(uint32(rigIdle[0])*idleUnit+1, p.from(1000+i-20).forth(), p.from(1000+i-20).back())
					}
				}
				// Expired ones make room once the blocks are full, somewhat later than the shares.
				if end == nil {
					over = slices.DeleteFunc(over, func(i uint16) bool { return i < 2*capacity })
				}
				if len(over) > 0 && (end != nil || len(over) > capacity/10) {
					t.Errorf("connections %v did not become lasting", over)
				}
			})
		}
	}
}

// TestExpiredMakesRoom: in a full table, a connection that both sides left makes room for a new one,
// even though no daemon removes it. A connection that has carried a packet in either direction stays.
func TestExpiredMakesRoom(t *testing.T) {
	base := newRig(t, sized(28)) // one block
	idle := uint32(rigIdle[0]) * idleUnit
	for name, tt := range map[string]struct {
		history     []string
		forth, back uint32 // ticks without packets
		units       uint16 // of the entries
		goes        bool
	}{
		"both directions":        {nil, idle + 1, idle + 1, rigIdle[0], true},
		"not yet":                {nil, idle - 2, idle - 2, rigIdle[0], false},
		"the client sends":       {nil, 0, idle + 1, rigIdle[0], false},
		"the server sends":       {nil, idle + 1, 0, rigIdle[0], false},
		"idle time unknown":      {nil, 1 << 30, 1 << 30, 0, false},
		"half-closed":            {[]string{"cFIN"}, idle + 1, idle + 1, rigIdle[0], true},
		"half-closed, a day":     {[]string{"sFIN"}, 26823 + 1, 26823 + 1, 10000, true}, // an hour
		"half-closed, 2 min":     {[]string{"sFIN"}, 890, 890, 4, false},                // a longer time than the service's
		"half-closed, not yet":   {[]string{"sFIN"}, 26823 - 2, 26823 - 2, 10000, false},
		"longer than the age":    {nil, 1 << 21, 1 << 21, 32769, false},
		"longer, and has passed": {nil, 1 << 21, 1 << 21, 32767, true},
	} {
		for _, f := range families {
			t.Run(name+"/"+f.name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, testpkt.ProtoTCP, natModes[0])
				const full = kernel.ConnBlock / 2
				for port := range uint16(full) {
					r.open(p.from(1000 + port))
				}
				left := p.from(1007)
				for _, name := range tt.history {
					r.send(left, segments[name])
				}
				r.age(tt.forth, left.forth())
				r.age(tt.back, left.back())
				for _, tuple := range []rigTuple{left.forth(), left.back()} {
					r.change(tuple, func(m *rigMeta) { m.Idle = tt.units })
				}
				syn := packet(r.in.arrives(), p.proto, p.from(2000).client, p.vip, stageOpen, 61)
				action := int32(actUnspec)
				if !tt.goes {
					action = actShot
				}
				if got, _ := r.run(r.ingress, r.in, syn); got != action {
					t.Errorf("the new connection: action %d, want %d", got, action)
				}
				for port := range uint16(full) {
					q := p.from(1000 + port)
					_, forth := r.conn(q.forth())
					_, back := r.conn(q.back())
					if want := q != left || !tt.goes; forth != want || back != want {
						t.Errorf("connection %d has entries: %t and %t, want %t", port, forth, back, want)
					}
				}
				want := uint32(full)
				if tt.goes {
					want--
				}
				if n := r.shares().Total[kernel.FamilyOf(p.client.Addr())]; n != want {
					t.Errorf("%d connections are counted, want %d", n, want)
				}
				if n := r.counters()["VERDICT_EVICTED"]; n != 0 {
					t.Errorf("%d connections count as evicted", n)
				}
			})
		}
	}
}

// TestExpiredInOneDirection: connections of which only one direction has expired do not keep half-open ones
// from making room, and stay as they were.
func TestExpiredInOneDirection(t *testing.T) {
	base := newRig(t, sized(28)) // one block
	const full = kernel.ConnBlock / 2
	idle := uint32(rigIdle[0]) * idleUnit
	for _, f := range families {
		for _, halfOpen := range []uint16{5, 0} {
			t.Run(fmt.Sprintf("%s/%d", f.name, halfOpen), func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, testpkt.ProtoTCP, natModes[0])
				for port := range uint16(full) {
					q := p.from(1000 + port)
					if port < halfOpen {
						r.send(q, segments["cSYN"])
						continue
					}
					r.open(q)
					if port%2 == 0 {
						r.age(idle+1+uint32(port), q.back())
					} else {
						r.age(idle+1+uint32(port), q.forth())
					}
				}
				idleOf := func(q path) (ticks [2]uint32) {
					for i, tuple := range []rigTuple{q.forth(), q.back()} {
						c, ok := r.conn(tuple)
						if !ok {
							t.Fatalf("%s has no entry", tuple)
						}
						ticks[i] = rigTick() - c.LastSeenTick
					}
					return ticks
				}
				for i := range uint16(20) {
					syn := packet(r.in.arrives(), p.proto, p.from(2000+i).client, p.vip, stageOpen, 61)
					want := int32(actUnspec)
					if halfOpen == 0 {
						want = actShot
					}
					if got, _ := r.run(r.ingress, r.in, syn); got != want {
						t.Errorf("new connection %d: action %d, want %d", i, got, want)
					}
				}
				for port := halfOpen; port < full; port++ {
					got, idles := idleOf(p.from(1000+port)), port%2
					if got[1-idles] <= idle || got[idles] > idle {
						t.Errorf("connection %d: its directions are idle for %v ticks", port, got)
					}
				}
			})
		}
	}
}

// TestExpiredOneWay: in a full table, a UDP connection in one direction makes room once the client is
// silent for long; while the client sends, half-open ones do.
func TestExpiredOneWay(t *testing.T) {
	base := newRig(t, sized(28))
	for _, f := range families {
		for _, sends := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", f.name, sends), func(t *testing.T) {
				r := base.fresh(t)
				p := r.unanswered(f, natModes[0])
				r.slow("third", p, stageOpen)
				silent := uint32(rigIdle[1])*idleUnit + 1
				r.age(silent, p.back())
				if !sends {
					r.age(silent, p.forth())
				}
				const half = kernel.ConnBlock/2 - 1
				for i := range uint16(half) {
					r.slow("half-open", p.from(3000+i), stageOpen)
				}
				for i := range uint16(500) { // one of 16 neighbours makes room
					r.slow("one more", p.from(4000+i), stageOpen)
				}
				if _, ok := r.conn(p.forth()); ok != sends {
					t.Errorf("the connection in one direction exists: %t, want %t", ok, sends)
				}
			})
		}
	}
}

// TestExpiredIsReopened: a SYN on a connection that has expired opens a new one, with a backend from the
// current tables.
func TestExpiredIsReopened(t *testing.T) {
	base := newRig(t)
	for _, f := range families {
		for name, ages := range map[string][2]uint32{"both": {3, 3}, "neither": {0, 0}, "the client's direction": {3, 0}} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				p := r.connect(f, testpkt.ProtoTCP, natModes[0])
				r.open(p)
				r.age(uint32(rigIdle[0])*idleUnit-2, p.forth(), p.back())
				r.age(ages[0], p.forth())
				r.age(ages[1], p.back())
				next, expired := p, name == "both"
				if expired {
					next.backend = netip.AddrPortFrom(p.backend.Addr(), 9031)
				}
				r.service(rigService{id: 7, proto: p.proto, frontend: p.vip, backends: []rigBackend{{id: 4, addr: netip.AddrPortFrom(p.backend.Addr(), 9031)}}})
				r.send(next, segments["cSYN"])
				want := map[bool]string{true: "NEW", false: "ESTABLISHED+"}[expired]
				if got := r.stateOf(next); got != want {
					t.Errorf("after the SYN it is %s, want %s", got, want)
				}
				if n, want := r.shares().Total[kernel.FamilyOf(p.client.Addr())], map[bool]uint32{true: 0, false: 1}[expired]; n != want {
					t.Errorf("%d connections are counted, want %d", n, want)
				}
			})
		}
	}
}

// TestIdleTimesOfEntries: entries have the idle time of their service, or of connections without one. A
// pass gives existing ones a new time.
func TestIdleTimesOfEntries(t *testing.T) {
	h := newHandover(t) // one UDP and one TCP connection of service old
	expect := func(when string, connections int, times datapath.IdleTimeout) {
		t.Helper()
		n := 0
		h.ok(h.d.tables.Ct4.Batches(func(keys []kernel.Ct4Key, values []kernel.Ct4Val) error {
			for i, v := range values {
				want := times.TCP
				if datapath.Protocol(keys[i].Proto) == datapath.UDP {
					want = times.UDP
				}
				if v.Meta.Flags&kernel.CtService == 0 {
					continue
				}
				n++
				if v.Meta.Idle != kernel.IdleUnits(want) {
					t.Errorf("%s: %v has %d units, want %s", when, keys[i].Tuple(), v.Meta.Idle, want)
				}
			}
			return nil
		}))
		if n != 2*connections {
			t.Errorf("%s: %d entries, want %d", when, n, 2*connections)
		}
	}
	expect("at first", 2, datapath.DefaultIdleTimeout())
	h.old.IdleTimeout = datapath.IdleTimeout{TCP: 17 * time.Minute, UDP: 3 * time.Minute, SCTP: time.Hour}
	h.put("old", h.old)
	h.ok(h.d.sweeper.Whole())
	expect("after a change and a pass", 2, h.old.IdleTimeout)
	h.dial("198.51.100.10:80").echo(t, "another one")
	expect("with a new connection", 3, h.old.IdleTimeout)
}
