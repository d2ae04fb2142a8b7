// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/loxilight/loxilight/internal/testpkt"
)

// TestOpenedOnTwoCPUs: if two processors receive the first packets of a connection at once, one
// connection is opened, and no place of the table is lost.
func TestOpenedOnTwoCPUs(t *testing.T) {
	eachMode(t, func(t *testing.T, r *rig, f family, m natMode) {
		const n = 1500
		p := r.connect(f, testpkt.ProtoUDP, m)
		ports := make([]uint16, 4*n) // two for each connection, and each is tried once
		for i := range ports {
			ports[i] = 40000 + uint16(i)
		}
		r.ports(ports...)
		var frames [n][]byte
		for i := range frames {
			q := p.from(1000 + uint16(i))
			frames[i] = packet(q.clientPort.arrives(), q.proto, q.client, q.vip, stageOpen, 61)
		}
		var arrived, dropped atomic.Int64
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				for i, frame := range frames {
					for arrived.Add(1); arrived.Load() < int64(2*i+2) && !t.Failed(); {
						runtime.Gosched()
					}
					if action, _ := r.run(r.ingress, p.clientPort, frame); action == actShot {
						dropped.Add(1)
					}
				}
			})
		}
		both.Wait()
		if dropped.Load() > 0 {
			t.Errorf("%d packets were dropped", dropped.Load())
		}
		for i := range frames {
			c, ok := r.conn(p.from(1000 + uint16(i)).forth())
			if !ok {
				t.Fatalf("connection %d was not opened", i)
			}
			if _, ok := r.conn(c.leaves.turned()); !ok {
				t.Fatalf("connection %d leaves as %v, which has no replies", i, c.leaves)
			}
		}
		table := r.connTable(f)
		places := table.Fill(table.SegmentBlocks()) * float64(table.SegmentBlocks()*64)
		if places != 2*n {
			t.Errorf("%v places of the table are taken, want %d", places, 2*n)
		}
	})
}
