// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

func TestResizedTablesKeepTheirConnections(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := context.Background()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	c := n.dial("198.51.100.10:80")
	n.config.Tables.Connections *= 2
	n.config.Tables.Backends *= 2
	n.restart("tcx")
	if got := segmentBlocks(t, n.d.maps[kernel.MapLlCt4]); got != kernel.ConnBlocks(2*4096) {
		t.Errorf("%d blocks, want %d", got, kernel.ConnBlocks(2*4096))
	}
	c.echo(t, "in a larger table")
	list, _, err := n.d.Connections().List(ctx, datapath.ConnectionFilter{}, "", 10)
	if err != nil || len(list) != 1 || list[0].Service != "web" {
		t.Errorf("connections after the change: %v (%v)", list, err)
	}
	if _, err := n.ask("198.51.100.10:80"); err != nil {
		t.Error(err)
	}
}

// TestTableTooSmallForWhatItHoldsKeepsItsSize: a table whose configured size is too
// small for its entries keeps its size, which is reported as long as it is in force.
func TestTableTooSmallForWhatItHoldsKeepsItsSize(t *testing.T) {
	n := newNetwork(t)
	n.attach()
	n.serve()
	ctx := context.Background()
	n.ok(n.d.Services().Update(ctx, "web", web(3)))
	talks := make([]*conversation, 6)
	for i := range talks {
		talks[i] = n.dial("198.51.100.10:80")
	}
	n.fill(1000, uint8(kernel.CtStateCT_FIN), kernel.NowTick())
	n.config.Tables.Connections = 4
	n.restart("tcx")
	if got := segmentBlocks(t, n.d.maps[kernel.MapLlCt4]); got != kernel.ConnBlocks(4096) {
		t.Errorf("%d blocks, want %d as before", got, kernel.ConnBlocks(4096))
	}
	for i, c := range talks {
		c.echo(t, fmt.Sprint("connection ", i))
	}
	f, err := n.d.Telemetry().Features(ctx)
	if err != nil || len(f.Warnings) != 1 || !strings.Contains(f.Warnings[0], "ll_ct4 keeps 9216 entries instead of 64") {
		t.Errorf("reported: %q, %v; want one warning about the size", f.Warnings, err)
	}
}

// segmentBlocks returns the number of blocks of a segment of a connection table.
func segmentBlocks(t *testing.T, table *ebpf.Map) uint32 {
	t.Helper()
	m, err := kernel.SegmentOf(table)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close() // nothing was written
	return m.MaxEntries()
}
