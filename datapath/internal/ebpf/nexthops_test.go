// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/nexthop"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// begin sends the first packet of a TCP connection from the client's device.
func (r *rig) begin(client, frontend netip.AddrPort) {
	r.t.Helper()
	frame := testpkt.Build(r.in.arrives(), ipHeader(client.Addr(), frontend.Addr(), 64), testpkt.TCP{
		Source: client.Port(), Destination: frontend.Port(), Seq: 1, Window: 501, Flags: testpkt.SYN, Options: synOptions,
	})
	r.ns.Do(r.t, func() error {
		_, _, err := timeOne(r.ingress, frame, r.in)
		return err
	})
}

// nexthops takes over the next hops of the rig, as loxilightd does.
func (r *rig) nexthops() *nexthop.Table {
	return nexthop.Adopt(nexthop.Options{Tables: r.tables, Free: r.maps[kernel.MapLlNexthopFree], Shares: new(kernel.Shares)}, false)
}

// TestVoidWhileInUse: a next hop becomes invalid while a packet is about to be sent to it. The
// packet takes the next hop as it was, or the slow path, but is never sent to a zero MAC, which
// would lose it.
func TestVoidWhileInUse(t *testing.T) {
	r := newRig(t)
	f := families[0]
	p := r.connect(f, testpkt.ProtoUDP, natModes[0])
	r.slow("opening", p, stageOpen)
	r.nexthop(5, r.out, 0, p.forth())
	var valid kernel.Nexthop
	r.ok(r.maps[kernel.MapLlNexthop].Lookup(uint32(5), &valid))
	valid.CheckedTick += 1 << 20 // not confirmed again while the test runs

	hops := r.nexthops()
	only := kernel.NexthopKey{Ifindex: 99} // the key by which it is invalidated
	quit, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-quit:
				done <- nil
				return
			default:
			}
			err := r.tables.Nexthop.Put(uint32(5), valid)
			if err == nil {
				err = r.tables.NexthopId.Put(only, 5)
			}
			if err == nil {
				err = hops.Invalidate(func(key kernel.NexthopKey) bool { return key == only })
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	in := packet(r.in.arrives(), p.proto, p.client, p.vip, stageData, 61)
	sent := 0
	for range 200_000 {
		action, out := r.run(r.ingress, r.in, in)
		if action != actRedirect {
			continue
		}
		sent++
		if got := [6]byte(out[:6]); got != r.out.other {
			t.Errorf("after %d packets one went to %x, want %x", sent, got, r.out.other)
			break
		}
	}
	close(quit)
	r.ok(<-done)
	if sent < 1000 {
		t.Errorf("only %d packets took the fast path", sent)
	}
}

// TestNextHopIsWhatTheRoutesSay opens connections one after the other: they reuse the next hop of
// earlier connections only if it is valid and agrees with the kernel's routes and neighbours.
func TestNextHopIsWhatTheRoutesSay(t *testing.T) {
	r := newRig(t)
	frontend, backend := netip.MustParseAddrPort("198.51.100.10:80"), netip.MustParseAddrPort("10.0.1.11:8080")
	r.service(rigService{id: 1, proto: testpkt.ProtoTCP, frontend: frontend, backends: []rigBackend{{id: 1, addr: backend}}})
	for i := range uint32(8) {
		r.ok(r.maps[kernel.MapLlNexthopFree].Put(nil, 100+i))
	}
	neighbour := func(mac string) {
		r.ns.Run(t, "ip", "neigh", "replace", "10.0.1.11", "lladdr", mac, "dev", "out0", "nud", "permanent")
	}
	var port uint16 = 1024
	open := func() (index uint16) { // opens eight connections, which all have the same next hop
		for i := range 8 {
			port++
			client := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.10"), port)
			r.begin(client, frontend)
			c, found := r.conn(rigTuple{testpkt.ProtoTCP, client, frontend})
			if !found || c.Nexthop == 0 || i > 0 && c.Nexthop != index {
				t.Fatalf("connection %d: found %v, next hop %d, of those before %d", i, found, c.Nexthop, index)
			}
			index = c.Nexthop
		}
		return index
	}
	neighbour("02:00:5e:10:02:34")
	first := open()
	neighbour("02:00:5e:10:02:54") // uses the same slot of the next hop cache
	second := open()
	if second == first {
		t.Errorf("the neighbour has another address, and the next hop is %d as before", first)
	}
	neighbour("02:00:5e:10:02:34")
	if again := open(); again != first {
		t.Errorf("next hop of the first neighbour is %d, and was %d", again, first)
	}
	// Invalidate the next hops as loxilightd does.
	r.ok(r.nexthops().Invalidate(func(kernel.NexthopKey) bool { return true }))
	if third := open(); third == first || third == second {
		t.Errorf("next hop %d is not valid, and new connections have it", third)
	}
}

// TestShareOfNextHops: a device that has used up its share of next hops gets no more, but other
// devices do.
func TestShareOfNextHops(t *testing.T) {
	r := newRig(t)
	frontend, backend := netip.MustParseAddrPort("198.51.100.10:80"), netip.MustParseAddrPort("10.0.1.11:8080")
	r.service(rigService{id: 1, proto: testpkt.ProtoTCP, frontend: frontend, backends: []rigBackend{{id: 1, addr: backend}}})
	for i := range uint32(8) {
		r.ok(r.maps[kernel.MapLlNexthopFree].Put(nil, 100+i))
	}
	at := nexthop.CounterIndex(kernel.NexthopKey{Ifindex: uint32(r.out.index)})
	for i, c := range []struct {
		total, has uint32
		gets       bool
	}{
		{0, 0, true}, {11_400, 11_400, true}, {11_600, 11_600, false}, {11_600, 1600, true}, {16_000, 71, true},
		{16_000, 72, false}, {16_383, 0, false}, {17_000, 0, false},
	} {
		use := kernel.Shares{NexthopTotal: c.total}
		use.NexthopCount[at] = c.has
		r.put(kernel.MapLlShares, uint32(0), use)
		r.ns.Run(t, "ip", "neigh", "replace", "10.0.1.11", "lladdr", fmt.Sprintf("02:00:5e:10:02:%02x", i), "dev", "out0", "nud", "permanent")
		client := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.10"), uint16(1024+i))
		r.begin(client, frontend)
		conn, found := r.conn(rigTuple{testpkt.ProtoTCP, client, frontend})
		if !found || (conn.Nexthop != 0) != c.gets {
			t.Errorf("%d in use, %d of them by its device: found %t, next hop %d, want one: %t", c.total, c.has, found, conn.Nexthop, c.gets)
		}
		r.ok(r.maps[kernel.MapLlShares].Lookup(uint32(0), &use))
		want := c.has
		if c.gets {
			want++
		}
		if use.NexthopCount[at] != want || use.NexthopTotal != c.total+want-c.has {
			t.Errorf("%d in use, %d of them by its device: %d and %d afterwards", c.total, c.has, use.NexthopTotal, use.NexthopCount[at])
		}
	}
}

// TestNextHopsAreCounted: sweeps set each device's counter to the actual number of next hops.
func TestNextHopsAreCounted(t *testing.T) {
	h := newHandover(t)
	n, use := h.d.nexthops, h.d.shared.Value
	there := func() (total uint32, counts map[int]uint32) {
		counts = make(map[int]uint32)
		var key kernel.NexthopKey
		var index uint32
		for it := h.d.tables.NexthopId.Iterate(); it.Next(&key, &index); {
			counts[nexthop.CounterIndex(key)]++
			total++
		}
		for _, at := range n.Retired() {
			total++
			if at >= 0 {
				counts[at]++
			}
		}
		return total, counts
	}
	want := func(when string) {
		t.Helper()
		total, counts := there()
		if total == 0 || use.NexthopTotal != total {
			t.Errorf("%s: %d next hops are counted, want %d", when, use.NexthopTotal, total)
		}
		for at, count := range use.NexthopCount {
			if count != counts[at] {
				t.Errorf("%s: %d next hops are counted at %d, want %d", when, count, at, counts[at])
			}
		}
	}
	want("when they are learnt")
	use.NexthopTotal, use.NexthopCount = 9, [len(use.NexthopCount)]uint32{}
	use.NexthopCount[7] = 5
	h.ok(h.d.sweeper.Whole())
	want("after the counts were lost")
	h.ok(n.Invalidate(func(kernel.NexthopKey) bool { return true }))
	h.ok(h.d.sweeper.Whole())
	want("after all were taken away")
}
