// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/internal/testtraffic"
)

// brief returns few on an emulated machine, where a start takes ten seconds.
func brief(many, few int) int {
	if os.Getenv("LL_TEST_BRIEF") != "" {
		return few
	}
	return many
}

// busy returns a node that balances steady traffic.
func busy(t *testing.T, attach string, load testtraffic.Load) (*network, *testtraffic.Traffic) {
	t.Helper()
	n := newNetwork(t)
	n.config.Tables.Connections = 1 << 16
	n.restart(attach)
	n.attach()
	n.serve()
	n.ok(n.d.Services().Update(context.Background(), "web", web(3)))
	return n, testtraffic.Start(t, n.client, "198.51.100.10:80", load)
}

// build runs f with this package as another build of the same version.
func build(t testing.TB, confirmTicks uint32, f func()) {
	t.Helper()
	restore := versionOf(t)
	defer restore()
	for i := range programs {
		load := programs[i].Load
		programs[i].Load = func() (*ebpf.CollectionSpec, error) {
			spec, err := load()
			if err != nil {
				return nil, err
			}
			return spec, spec.Variables[kernel.VarConfigConfirmTicks].Set(confirmTicks)
		}
	}
	f()
}

// hold prevents all programs that use the maps of the data plane from being unloaded, as of each
// step of the following starts, until release is called. Without it each start of a build would
// load the programs again, which an earlier start of the same build has loaded.
func (n *network) hold() (release func()) {
	n.t.Helper()
	own, held := make(map[ebpf.MapID]bool), make(map[ebpf.ProgramID]bool)
	for _, m := range n.d.maps {
		info, err := m.Info()
		n.ok(err)
		id, _ := info.ID()
		own[id] = true
	}
	var open []io.Closer
	done := countSteps(n.t, func(int) error {
		for id := ebpf.ProgramID(0); ; {
			var err error
			if id, err = ebpf.ProgramGetNextID(id); err != nil {
				return nil // no more programs
			}
			if p := n.programOf(id, own); p != nil && !held[id] {
				held[id], open = true, append(open, p)
				if slow := n.slowOf(p); slow != nil {
					open = append(open, slow)
				}
			} else if p != nil {
				p.Close()
			}
		}
	})
	release = sync.OnceFunc(func() {
		done()
		for _, x := range open {
			x.Close()
		}
	})
	n.t.Cleanup(release)
	return release
}

// programOf returns the program with an id if it uses one of these maps, otherwise nil.
func (n *network) programOf(id ebpf.ProgramID, own map[ebpf.MapID]bool) *ebpf.Program {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil // unloaded in the meantime
	}
	info, err := p.Info()
	n.ok(err)
	ids, _ := info.MapIDs()
	if slices.ContainsFunc(ids, func(id ebpf.MapID) bool { return own[id] }) {
		return p
	}
	p.Close()
	return nil
}

// TestReplacedUnderTraffic: two builds replace each other, 20 times by a start and 200 times
// only by exchanging the programs, and no packet is lost.
func TestReplacedUnderTraffic(t *testing.T) {
	n, traffic := busy(t, "", testtraffic.Load{Flows: 8, Packets: brief(4000, 200), Connections: brief(100, 5), Lasting: 4})
	release := n.hold()
	for i := range brief(20, 3) {
		before := n.programs()
		build(t, uint32(36+i%2), func() { n.restart("") })
		if after := n.programs(); after[0] == before[0] || after[1] == before[1] {
			t.Errorf("start %d: programs %v, %v before it", i, after, before)
		}
	}
	release()
	z := n.host()
	var other hook.Netns
	build(t, 38, func() { n.ok(other.Load(programs, n.d.maps)) })
	t.Cleanup(func() { other.Ingress.Close(); other.Egress.Close() })
	for range 200 {
		z.Ingress, other.Ingress = other.Ingress, z.Ingress
		z.Egress, other.Egress = other.Egress, z.Egress
		n.ok(n.eachHook(func(h hook.Attachment) error { return h.Replace() }))
	}
	traffic.ExpectUnharmed(t)
	drops, err := n.d.Telemetry().NodeCounters(context.Background())
	n.ok(err)
	for reason, count := range drops.Drops {
		if count != 0 {
			t.Errorf("%d packets dropped: %s", count, reason)
		}
	}
}

// slowOpens opens connections steadily, and counts the connections that took so long that a packet
// must have been retransmitted.
type slowOpens struct {
	stop         chan struct{}
	wg           sync.WaitGroup
	opened, slow atomic.Int64
	failed       atomic.Int64
}

// openSteadily opens rate connections a second, each of which exchanges one word.
func (n *network) openSteadily(rate int) *slowOpens {
	o := &slowOpens{stop: make(chan struct{})}
	o.wg.Go(func() {
		ticker := time.NewTicker(time.Second / time.Duration(rate))
		defer ticker.Stop()
		for {
			select {
			case <-o.stop:
				return
			case <-ticker.C:
				o.wg.Go(func() { n.openOne(o) })
			}
		}
	})
	return o
}

func (n *network) openOne(o *slowOpens) {
	begin := time.Now()
	if _, err := testtraffic.TalkTCP(n.client, "", "198.51.100.10:80", []byte("word")); err != nil {
		n.t.Logf("new connection: %v", err)
		o.failed.Add(1)
	}
	o.opened.Add(1)
	if time.Since(begin) > 900*time.Millisecond { // the first SYN is retransmitted after a second
		o.slow.Add(1)
	}
}

// TestConvertedUnderTraffic: under load, tables change their size, and maps their
// layout, in both directions, and no packet is lost.
func TestConvertedUnderTraffic(t *testing.T) {
	for name, how := range bothHooks {
		t.Run(name, func(t *testing.T) {
			if name == "tcx" {
				requireTCX(t)
			}
			convertUnderTraffic(t, how.attach)
		})
	}
}

func convertUnderTraffic(t *testing.T, attach string) {
	n, traffic := busy(t, attach, testtraffic.Load{Flows: 8, Packets: brief(4000, 200), Lasting: 4, Once: brief(200, 20)})
	opens := n.openSteadily(brief(500, 10))
	conversions := brief(9, 2)
	begin := time.Now()
	for i := range conversions {
		n.config.Tables.Connections = []uint32{1 << 16, 1 << 17}[i%2]
		n.config.Tables.Connections = []uint32{1 << 16, 1 << 15}[i%2]
		as(t, []string{"mark", "other", ""}[i%3], func() { n.restart(attach) })
	}
	took := time.Since(begin)
	close(opens.stop)
	opens.wg.Wait()
	t.Logf("%d conversions: %d new connections (%.0f a second), of which %d began again and %d failed", conversions,
		opens.opened.Load(), float64(opens.opened.Load())/took.Seconds(), opens.slow.Load(), opens.failed.Load())
	if opens.failed.Load() > 0 {
		t.Errorf("%d new connections failed in %d conversions", opens.failed.Load(), conversions)
	}
	traffic.ExpectUnharmed(t)
}
