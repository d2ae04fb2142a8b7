// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestTicksWrap is H11: after 18 years the ticks begin again at 0. Nothing expires
// for that, and what is older than its time does.
func TestTicksWrap(t *testing.T) {
	for _, tt := range []struct {
		now, seen, idle uint32
	}{
		{5, math.MaxUint32 - 4, 10},
		{0, math.MaxUint32, 1},
		{math.MaxUint32, math.MaxUint32 - 7, 7},
		{math.MaxUint32, 0, 0}, // another CPU was a tick ahead
		{1 << 31, 1<<31 + 1, 0},
		{1<<31 + 3, 1<<31 - 3, 6},
		{100, 101, 0},
	} {
		m := kernelCtMeta{LastSeenTick: tt.seen}
		if got := idleSince(tt.now, &m); got != tt.idle {
			t.Errorf("at %d, seen at %d: idle for %d ticks, want %d", tt.now, tt.seen, got, tt.idle)
		}
		if got, want := since(tt.now, tt.seen), time.Duration(tt.idle)<<27; got != want {
			t.Errorf("at %d, seen at %d: idle for %s, want %s", tt.now, tt.seen, got, want)
		}
	}
	if got := ticksOf(10 * 365 * 24 * time.Hour); got > math.MaxInt32+1<<28 || durationOf(got) < 10*365*24*time.Hour {
		t.Errorf("ten years are %d ticks, %s", got, durationOf(got))
	}
}

// TestClockOfTheMaps is H11: daemon and programs go by CLOCK_MONOTONIC, which setting
// the date does not move.
func TestClockOfTheMaps(t *testing.T) {
	var wall, mono unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME, &wall) // the clocks are always there
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
	if wall.Sec-mono.Sec < 3600 {
		t.Skip("the date is not set: the clocks cannot be told apart")
	}
	if now, want := nowTick(), uint32(mono.Nano()>>27); now-want > 8 {
		t.Errorf("the daemon's clock is at %d, CLOCK_MONOTONIC at %d", now, want)
	}
	r := newRig(t)
	p := r.connect(families[0], testpkt.ProtoTCP, natModes[0])
	r.open(p)
	v, found := r.conn(p.forth())
	if now := nowTick(); !found || now-v.LastSeenTick > 100 || now-v.CreatedTick > 100 {
		t.Errorf("the programs' clock is at %d, the daemon's at %d (%v)", v.LastSeenTick, now, found)
	}
}

// TestTicksOfAnotherCPU is H11: what another CPU has written a tick ahead of the one
// that this packet began in is new, and not as old as can be.
func TestTicksOfAnotherCPU(t *testing.T) {
	r := newRig(t)
	f := families[0]
	s := rigService{id: 7, proto: testpkt.ProtoUDP, frontend: f.vip, backends: backendsOf(f, 5),
		algorithm: kernelAlgorithmALG_ROUND_ROBIN, affinity: 1000}
	r.service(s)
	first := r.chosen(s, netip.AddrPortFrom(f.client.Addr(), 1000))
	key := kernelAffinityKey{ServiceId: 7}
	key.Client.Word = rigWords(f.client.Addr().String())
	var known kernelAffinity
	r.ok(r.maps[kernelMapLlAffinity].Lookup(key, &known))
	for i := range uint16(4) {
		known.UsedTick = rigTick() + 20 // more than this test takes
		r.put(kernelMapLlAffinity, key, known)
		if got := r.chosen(s, netip.AddrPortFrom(f.client.Addr(), 2000+i)); got != first {
			t.Errorf("a client that was remembered just now went to %s, not to %s", got, first)
		}
	}

	p := r.connect(f, testpkt.ProtoTCP, natModes[0])
	action, ttl := p.outcome(61)
	in := big(p.clientPort.arrives(), p.proto, p.client, p.vip, 61)
	want := big(p.clientPort.arrives(), p.proto, p.source, p.backend, ttl)
	ins, wants := testpkt.Fragments(in, 1400, 9), testpkt.Fragments(want, 1400, 9)
	r.step("first fragment", p.clientPort, ins[0], action, wants[0])
	var id kernelFragmentKey
	var ports kernelFragment
	it := r.maps[kernelMapLlFragment].Iterate()
	for it.Next(&id, &ports) {
		ports.SeenTick = rigTick() + 20
		r.put(kernelMapLlFragment, id, ports)
	}
	for i := 1; i < len(ins); i++ {
		r.step(fmt.Sprint("fragment ", i), p.clientPort, ins[i], action, wants[i])
	}
}

// TestDateJumps is H11: setting the date, far ahead or back, ends no connection and
// makes none older. It needs a machine of its own, as tests/kernels makes them.
func TestDateJumps(t *testing.T) {
	if os.Getenv("LOXILIGHT_OWN_MACHINE") == "" {
		t.Skip("sets the date: only where LOXILIGHT_OWN_MACHINE says that it may")
	}
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := context.Background()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	c := n.dial("198.51.100.10:80")
	const year = 365 * 24 * time.Hour // ticks wrap after 18
	for _, jump := range []time.Duration{time.Hour, year, 8 * year, -12 * year, 3 * time.Hour} {
		date := unix.NsecToTimeval(time.Now().Add(jump).UnixNano())
		n.ok(unix.Settimeofday(&date))
		for range 3 {
			n.ok(n.d.sweeper.whole(nil))
			n.ok(n.d.Maintain(ctx))
		}
		list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "", 10)
		if err != nil || len(list) != 1 || list[0].Idle > time.Minute || list[0].Age > time.Hour {
			t.Errorf("the date jumps by %s: %+v, %v; want the connection as young as it is", jump, list, err)
		}
		c.echo(t, "after "+jump.String())
	}
}
