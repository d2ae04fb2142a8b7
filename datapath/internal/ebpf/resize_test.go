// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testpkt"
)

// fastConnections opens connections with a next hop from ports 1000 to 1000+n-1 of the client.
func (r *rig) fastConnections(f family, n uint16) (p path) {
	r.t.Helper()
	p = r.connect(f, testpkt.ProtoUDP, natModes[0])
	for port := range n {
		q := p.from(1000 + port)
		for s := stageOpen; s <= stageData; s++ {
			r.slow(f.name, q, s)
		}
		r.nexthop(5, q.beport, 0, q.forth())
	}
	return p
}

func (r *rig) connTable(f family) kernel.ConnTable {
	return r.tables.ConnTables()[kernel.FamilyOf(f.client.Addr())]
}

// TestResizedStepByStep: between the steps of doubling and halving the table, each packet of each
// connection takes the fast path, new connections are opened, and each packet is counted once.
func TestResizedStepByStep(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			const n = 60
			r := newRig(t, sized(160))
			p := r.fastConnections(f, n)
			before, _ := r.conn(p.from(1000).forth())
			table := r.connTable(f)
			sent := uint64(0)
			look := func(step string) {
				for port := range uint16(n) {
					r.fast(fmt.Sprint(step, ": ", port), p.from(1000+port))
				}
				sent++
				q := p.from(3000 + uint16(sent))
				r.slow("opening", q, stageOpen)
				r.slow("again", q, stageOpen)
				if c, ok := r.conn(q.forth()); !ok || c.PacketCount != 2 {
					t.Errorf("%s: a connection opened now: %+v (there: %t)", step, c, ok)
				}
			}
			for _, double := range []bool{true, true, true, false, false, false, true} {
				steps := countSteps(t, func(int) error { look("at a step"); return nil })
				r.ok(table.Resize(double))
				if all := steps(); !slices.Contains(all, "remove moved connections") {
					t.Errorf("steps %q move nothing", all)
				}
				look("afterwards")
			}
			for port := range uint16(n) {
				c, ok := r.conn(p.from(1000 + port).forth())
				if want := before.PacketCount + sent; !ok || c.PacketCount != want || c.State != before.State || c.Nexthop != 5 {
					t.Errorf("connection %d: %+v, want %d packets", port, c, want)
				}
			}
		})
	}
}

// TestResizedUnderLoad: while the table is doubled and halved, each packet takes the fast path, and
// is counted once. The programs count without atomic instructions, so that a packet that is counted
// at the same moment as a moved entry's may be missing.
func TestResizedUnderLoad(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			const n = 300
			r := newRig(t, sized(500))
			p := r.fastConnections(f, n)
			before, _ := r.conn(p.from(1000).forth())
			var frames [n][]byte
			for port := range frames {
				q := p.from(1000 + uint16(port))
				frames[port] = packet(q.clientPort.arrives(), q.proto, q.client, q.vip, stageData, 61)
			}
			var sent [n]atomic.Uint64
			var stop, slow atomic.Uint64
			var all sync.WaitGroup
			for sender := range 2 {
				all.Go(func() {
					for stop.Load() == 0 {
						port := 2*rand.IntN(n/2) + sender
						action, _ := r.run(r.ingress, p.clientPort, frames[port])
						if sent[port].Add(1); action != actRedirect {
							slow.Add(1)
						}
					}
				})
			}
			table, changes := r.connTable(f), 0
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end) || changes%2 != 0; changes++ {
				if err := table.Resize(changes%2 == 0); err != nil {
					t.Fatal(err)
				}
			}
			stop.Store(1)
			all.Wait()
			wrong, total := 0, uint64(0)
			for port := range sent {
				total += sent[port].Load()
				c, ok := r.conn(p.from(1000 + uint16(port)).forth())
				if want := before.PacketCount + sent[port].Load(); !ok || c.PacketCount != want {
					if wrong++; !ok || c.PacketCount != want-1 || wrong > n/100 {
						t.Errorf("connection %d: %d packets (there: %t), want %d", port, c.PacketCount, ok, before.PacketCount+sent[port].Load())
					}
				}
			}
			t.Logf("%d changes of size, %d packets", changes, total)
			if slow.Load() > 0 || changes < 10 {
				t.Errorf("%d packets did not take the fast path; %d changes", slow.Load(), changes)
			}
		})
	}
}
