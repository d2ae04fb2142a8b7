// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// TestTableFollowsTheLoad: the table grows with the number of connections, while connections are in
// use and others are opened; also if the daemon dies in the middle, and the next one continues.
func TestTableFollowsTheLoad(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := t.Context()
	n.config.Tables.ConnectionsMin = 128
	n.restart("")
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	talks := []*conversation{n.dial("198.51.100.10:80")}
	table := func() kernel.ConnTable { return n.d.tables.ConnTables()[0] }
	first, _ := table().Segments()
	if first != 1 || table().SegmentCapacity() > 300 {
		t.Fatalf("the table begins with %d segments of %d connections", first, table().SegmentCapacity())
	}
	died := make([]string, 4)
	deaths := [...]int{0, 2, 6, 17} // a step of each kind
	for i, segments := 0, uint32(1); segments < 16; i, segments = i+1, 2*segments {
		grown := func() bool { now, changing := table().Segments(); return now == 2*segments && !changing }
		stopped := make(chan struct{})
		steps := countSteps(t, func(k int) error {
			if k == deaths[i] {
				close(stopped) // once: the next try is 10 s later
				return errKilled
			}
			return nil
		})
		connections := int(segments*table().SegmentCapacity()) * 4 / 5
		n.fill(connections, uint8(kernel.CtStateCT_FIN), kernel.NowTick())
		select {
		case <-stopped:
		case <-time.After(5 * time.Second):
			t.Fatalf("%d segments: no change of size has %d steps: %q", segments, deaths[i]+1, steps())
		}
		for k, c := range talks {
			c.echo(t, fmt.Sprintf("%d segments, in between: connection %d", segments, k))
		}
		talks = append(talks, n.dial("198.51.100.10:80"))
		all := steps()
		died[i] = all[deaths[i]]
		n.restart("")
		for end := time.Now().Add(5 * time.Second); !grown(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				now, changing := table().Segments()
				t.Fatalf("%d segments (changing: %t) after %d and death at %q", now, changing, segments, died[i])
			}
		}
		for k, c := range talks {
			c.echo(t, fmt.Sprintf("%d segments: connection %d", 2*segments, k))
		}
		if err := n.d.sweeper.Whole(); err != nil {
			t.Fatal(err)
		}
		if got := n.d.sweeper.Entries()[0]; got < uint64(2*connections) || got > uint64(2*(connections+len(talks)+3)) {
			t.Errorf("%d segments: %d entries, want two for each of %d connections", 2*segments, got, connections+len(talks))
		}
	}
	slices.Sort(died)
	if died = slices.Compact(died); len(died) < 4 {
		t.Errorf("died only at %q", died)
	}
	u, err := n.d.Telemetry().Usage(ctx)
	if err != nil || u["connections IPv4"].Size < 4096 || u["connections IPv4"].Size > 4600 {
		t.Errorf("use of the tables: %+v (%v)", u["connections IPv4"], err)
	}
	// A smaller limit is reached again once there are fewer connections.
	if _, err := n.d.Connections().Flush(ctx, datapath.ConnectionFilter{}); err != nil {
		t.Fatal(err)
	}
	n.config.Tables.Connections = 512
	n.restart("")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if now, changing := table().Segments(); now*table().SegmentCapacity() < 1024 && !changing {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d segments of %d connections, want 512 connections", now, table().SegmentCapacity())
		}
	}
	n.dial("198.51.100.10:80").echo(t, "afterwards")
}
