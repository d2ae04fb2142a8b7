// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/conn"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// fill enters IPv4 connections (both directions) that were last seen at tick.
func (n *network) fill(connections int, state uint8, tick uint32) {
	n.t.Helper()
	const batch = 4096
	keys, values := make([]kernel.Ct4Key, 0, batch), make([]kernel.Ct4Val, 0, batch)
	addr := func(b ...byte) uint32 { return binary.NativeEndian.Uint32(b) }
	vip, backend := addr(198, 51, 100, 10), addr(10, 0, 1, 11)
	for i := range connections {
		client := addr(172, 16+byte(i>>16), byte(i>>8), byte(i))
		meta := kernel.CtMeta{LastSeenTick: tick, CreatedTick: tick, State: state, Flags: kernel.CtLasting, PacketCount: 1, ByteCount: 60}
		keys = append(keys, kernel.Ct4Key{Saddr: client, Daddr: vip, Sport: 1, Dport: 2, Proto: uint8(datapath.UDP)},
			kernel.Ct4Key{Saddr: backend, Daddr: client, Sport: 3, Dport: 1, Proto: uint8(datapath.UDP)})
		reply := meta
		reply.Flags |= kernel.CtReply
		values = append(values, kernel.Ct4Val{Meta: meta, Saddr: client, Daddr: backend, Sport: 1, Dport: 3},
			kernel.Ct4Val{Meta: reply, Saddr: vip, Daddr: client, Sport: 2, Dport: 1})
		if len(keys) == batch || i == connections-1 {
			n.ok(n.d.tables.Ct4.PutBatch(keys, values))
			keys, values = keys[:0], values[:0]
		}
	}
}

// cpuTime returns the CPU time that this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestSweepIsCheap: the best of five sweeps over 262,144 entries takes less than 150 ms of
// one CPU; maintenance is divided into parts of limited length, and all expired connections are
// deleted in a limited number of parts.
func TestSweepIsCheap(t *testing.T) {
	const connections = 1 << 17
	n := newNetwork(t)
	n.config.Tables.Connections = 2 * connections
	n.config.SweepInterval = time.Nanosecond // each pass follows the one before
	n.restart("tcx")
	n.fill(connections, uint8(kernel.CtStateCT_FIN), kernel.NowTick())
	best := time.Hour
	for range 5 {
		begin := cpuTime()
		n.ok(n.d.sweeper.Whole())
		best = min(best, cpuTime()-begin)
	}
	if got := n.d.sweeper.Entries()[conn.IPv4]; got != 2*connections {
		t.Fatalf("%d entries were seen, want %d", got, 2*connections)
	}
	t.Logf("%d entries are looked through in %s of a processor", 2*connections, best)

	begin := cpuTime()
	n.ok(n.d.tables.Ct4.Batches(func([]kernel.Ct4Key, []kernel.Ct4Val) error { return nil }))
	// On an emulated CPU, reading alone takes longer.
	if bare := cpuTime() - begin; best > 150*time.Millisecond && best > 5*bare {
		t.Errorf("that is more than 150 ms, and reading alone takes %s", bare)
	}

	n.fill(connections, uint8(kernel.CtStateCT_FIN), kernel.NowTick()-kernel.TicksOf(datapath.FINTimeout)-10)
	calls, longest := 0, time.Duration(0)
	for left := uint64(1); left > 0 && calls < 1000; calls++ {
		begin := cpuTime()
		n.ok(n.d.sweeper.Maintain(t.Context()))
		longest = max(longest, cpuTime()-begin)
		left = n.d.sweeper.Entries()[conn.IPv4]
	}
	t.Logf("all ended in %d pieces, the longest of %s", calls, longest)
	if calls < 3 || calls >= 1000 {
		t.Errorf("want several pieces, and fewer than 1,000")
	}
}

// TestUsedFraction: passes determine how full the tables are.
func TestUsedFraction(t *testing.T) {
	n := newNetwork(t)
	n.fill(3300, uint8(kernel.CtStateCT_FIN), kernel.NowTick()) // of 4096
	n.ok(n.d.sweeper.Whole())
	if used := n.d.sweeper.Used(); used < 0.8 || used > 0.82 {
		t.Errorf("%.2f of the table is in use, want 0.81", used)
	}
}
