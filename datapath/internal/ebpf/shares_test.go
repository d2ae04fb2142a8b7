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
	base := newRig(t, sized(8*capacity))
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				r.put(kernel.MapLlShares, uint32(0), kernel.Shares{Seed: 1, CapacityOf: [2]uint32{capacity, capacity}})
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
				if n := r.counters()["VERDICT_OVER_SHARE"]; n == 0 {
					t.Error("no verdict counts sources above their share")
				}
			})
		}
	}
}

// TestRoomForOthers: clients that open connections endlessly displace their own connections, not
// those that another client is opening.
func TestRoomForOthers(t *testing.T) {
	const capacity = 1024
	base := newRig(t, sized(capacity))
	for _, f := range families {
		for name, proto := range protocols {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				r := base.fresh(t)
				victim := r.connect(f, proto, natModes[0])
				for i := range uint16(8) {
					r.slow("victim", victim.from(900+i), stageOpen)
				}
				evil := victim
				for n := range 2 {
					evil.client = netip.AddrPortFrom(evil.client.Addr().Next(), evil.client.Port())
					if f.client.Addr().Is6() { // another /64
						b := evil.client.Addr().As16()
						b[7] += 0x10
						evil.client = netip.AddrPortFrom(netip.AddrFrom16(b), evil.client.Port())
					}
					for i := range uint16(6000) {
						q := evil.from(1000 + i)
						r.slow("opening", q, stageOpen)
						if _, ok := r.conn(q.forth()); !ok {
							t.Fatalf("connection %d of client %d does not exist", i, n)
						}
					}
				}
				for i := range uint16(8) {
					p := victim.from(900 + i)
					r.slow("answer", p, stageAnswer)
					r.slow("confirmation", p, stageConfirm)
					if c, ok := r.conn(p.forth()); !ok || c.half {
						t.Errorf("earlier connection %d exists: %t, and half-open: %t", i, ok, c.half)
					}
				}
				if n := r.counters()["VERDICT_EVICTED"]; n == 0 {
					t.Error("no verdict counts displaced connections")
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
