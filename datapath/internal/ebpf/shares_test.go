// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestShareOfConnections: clients that establish as many connections as they can leave room in the
// table for other clients; connections above their share work, but stay half-open.
func TestShareOfConnections(t *testing.T) {
	const capacity = 512
	base := newRig(t, sized(2*capacity, 4096))
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				r.put(kernel.MapLlShares, uint32(0), kernel.Shares{Seed: 1, Capacity: capacity})
				p := r.connect(f, proto, natModes[0])
				opens := func(count int) (established int) {
					for i := range count {
						q := p.from(uint16(1000 + i))
						for s := stageOpen; s <= stageData; s++ {
							r.slow(f.name+" "+name, q, s)
						}
						if c, ok := r.conn(q.forth()); !ok {
							t.Fatalf("connection %d does not exist", i)
						} else if !c.half {
							established++
						}
					}
					return established
				}
				for n, bounds := range [][2]int{{480, 495}, {8, 24}, {1, 4}} {
					if n > 0 {
						p.client = netip.AddrPortFrom(p.client.Addr().Next(), p.client.Port())
					}
					if got := opens(600); got < bounds[0] || got > bounds[1] {
						t.Errorf("client %d has %d connections of %d, want %d to %d", n, got, capacity, bounds[0], bounds[1])
					}
				}
				p.client = netip.AddrPortFrom(p.client.Addr().Next(), p.client.Port())
				if got := opens(1); got != 1 {
					t.Error("there is no room for the first connection of a client beside three greedy ones")
				}
				if n := r.counters()["VERDICT_TABLE_FULL"]; n != 0 {
					t.Errorf("%d packets found the table full", n)
				}
				if n := r.counters()["VERDICT_OVER_SHARE"]; n == 0 {
					t.Error("no verdict counts sources above their share")
				}
			})
		}
	}
}

// TestShareOfHalfOpen: clients that open connections endlessly do not evict connections that other
// clients are opening; each of their new connections replaces their oldest.
func TestShareOfHalfOpen(t *testing.T) {
	const capacity, slots = 1024, 8
	base := newRig(t, sized(4096, 2*capacity))
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				r.put(kernel.MapLlShares, uint32(0), kernel.Shares{
					Seed: 1, HalfCapacity: capacity / 4 * 3, HalfSlots: slots, HalfTick: rigTick(),
				})
				victim := r.connect(f, proto, natModes[0])
				r.slow("victim", victim, stageOpen)
				evil := victim
				for n, want := range []int{648, 82} { // in addition to the entries of a crowd
					evil.client = netip.AddrPortFrom(evil.client.Addr().Next(), evil.client.Port())
					for i := range uint16(3000) {
						q := evil.from(1000 + i)
						r.slow("opening", q, stageOpen)
						if _, ok := r.conn(q.forth()); !ok {
							t.Fatalf("connection %d of client %d does not exist", i, n)
						}
					}
					for i := range uint16(slots + 1) { // the last ones, and the one before them
						q := evil.from(1000 + 3000 - 1 - i)
						if _, ok := r.conn(q.forth()); ok != (i < slots) {
							t.Errorf("client %d: the connection %d before the last exists: %t, want %t",
								n, i, ok, i < slots)
						}
					}
					held := 0
					for i := range uint16(3000) {
						if _, ok := r.conn(evil.from(1000 + i).forth()); ok {
							held++
						}
					}
					if held < want/2 || held > want+slots {
						t.Errorf("client %d has %d half-open connections, want %d at most", n, held, want+slots)
					}
				}
				r.slow("answer", victim, stageAnswer)
				r.slow("confirmation", victim, stageConfirm)
				if c, ok := r.conn(victim.forth()); !ok || c.half {
					t.Errorf("the earlier connection exists: %t, and half-open: %t", ok, c.half)
				}
				if n := r.counters()["VERDICT_CROWDED"]; n == 0 {
					t.Error("no verdict counts sources above their share")
				}
			})
		}
	}
}

// TestSharesAreCounted: the programs count established connections, and passes count all existing
// ones, also across restarts and after the counts were lost.
func TestSharesAreCounted(t *testing.T) {
	h := newHandover(t) // one UDP and one TCP connection
	client := netip.MustParseAddr("192.0.2.10")
	want := func(when string, count uint32) {
		t.Helper()
		s := h.d.shared.Value
		if n, all := s.Count[conn.ShareIndex(s, client)], s.Total[0]; n != count || all != count {
			t.Errorf("%s: %d of %d connections are counted for %s, want %d", when, n, all, client, count)
		}
	}
	whole := func() { h.ok(h.d.sweeper.Whole()) }
	want("when they are established", 2)
	whole()
	want("after a pass", 2)
	more := h.dial("198.51.100.10:80")
	more.echo(t, "another one")
	want("with another one", 3)
	h.restart("tcx")
	want("after a restart", 3)
	h.d.shared.Value.Total = [2]uint32{}
	h.d.shared.Value.Count = [65536]uint32{}
	whole()
	want("after the counts were lost", 3)
	_, err := h.d.Connections().Flush(context.Background(), datapath.ConnectionFilter{Protocol: datapath.TCP})
	h.ok(err)
	want("after a flush of TCP", 1)
}
