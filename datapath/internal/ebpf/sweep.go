// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/lb"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/nat"
)

// kickPause is the minimum time between two sweeps for deleted backends.
const kickPause = 100 * time.Millisecond

// sweeper reads all connections in batches: it deletes connections that are idle or whose backend
// is gone, and adds up the traffic of the others.
type sweeper struct {
	d      *DataPlane
	tables []connTable
	stop   chan struct{}
	kicked chan struct{}
	wg     sync.WaitGroup

	expirer *expirer
	shares  *shares

	mu     sync.Mutex                // one sweep at a time
	closed map[uint32]*backendTotals // traffic of deleted connections, not in a table yet
	pass   *pass                     // current; nil: none
	begins time.Time                 // start of the next periodic pass

	numbers sync.Mutex
	number  uint64 // of the current or the last pass
	totals  map[uint32]backendTotals
	ended   time.Time     // end of the last complete pass
	took    time.Duration // and its duration
	seen    [4]uint64     // entries by table, as of that pass
}

// pass is one sweep over all connections.
type pass struct {
	number   uint64
	began    time.Time
	table    int // index into sweeper.tables of the table being swept
	expiring int // index of the table whose entries are being deleted
	cursor   *bpfmap.Cursor
	now      uint32
	idle     idleTimeouts
	dead     map[uint32]bool // backends whose connections end: all (true), or only UDP
	live     map[uint32]*backendTotals
	closed   map[uint32]*backendTotals
	used     [kernel.NexthopCount]bool
	nat      *nat.Pass
	departed map[netnsAddr]departure
	taken    map[datapath.Frontend]uint64
	seen     [4]uint64 // entries by table

	match   func(*datapath.Connection) bool // selects connections to be ended; nil: none
	matched uint64
}

func newSweeper(d *DataPlane) (*sweeper, error) {
	x, err := newExpirer(d.maps)
	if err != nil {
		return nil, err
	}
	w := &sweeper{
		d:      d,
		stop:   make(chan struct{}),
		kicked: make(chan struct{}, 1),
		totals: make(map[uint32]backendTotals),
		tables: newConnTables(d),

		expirer: x,
		shares:  newShares(d.shared.value, d.tables.Ct4.MaxEntries()/2, d.tables.Half4.MaxEntries()/2),
		closed:  make(map[uint32]*backendTotals),
	}
	w.wg.Add(1)
	go w.sweepWhenKicked()
	return w, nil
}

func (w *sweeper) close() error {
	close(w.stop)
	w.wg.Wait()
	return w.expirer.Close()
}

// Kick requests an immediate sweep, since backends are gone.
func (w *sweeper) Kick() {
	select {
	case w.kicked <- struct{}{}:
	default: // one is already requested
	}
}

func (w *sweeper) sweepWhenKicked() {
	defer w.wg.Done()
	for {
		select {
		case <-w.stop:
			return
		case <-w.kicked:
		}
		began := time.Now()
		if err := w.whole(w.stop); err != nil {
			w.d.log.Warn("cannot sweep the connections; retrying", "error", err)
		}
		// Thousands of changes should cost an occasional sweep, not one each.
		select {
		case <-w.stop:
			return
		case <-time.After(max(kickPause, 5*time.Since(began))):
		}
	}
}

// whole runs a complete pass that begins now.
func (w *sweeper) whole(stop <-chan struct{}) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.run(stop, nil)
	return err
}

// flush ends the connections that match selects.
func (w *sweeper) flush(ctx context.Context, match func(*datapath.Connection) bool) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.run(ctx.Done(), match)
	return p.matched, errors.Join(err, context.Cause(ctx))
}

func (w *sweeper) run(stop <-chan struct{}, match func(*datapath.Connection) bool) (*pass, error) {
	w.begin() // a pass that has already begun may have missed entries
	p := w.pass
	p.match = match
	for {
		done, err := w.step(time.Now().Add(sweepBudget))
		if done || err != nil {
			return p, err
		}
		select {
		case <-stop:
			w.pass = nil
			return p, nil
		default:
		}
	}
}

// refresh runs a pass if the counters are outdated and a pass is cheap.
func (w *sweeper) refresh() error {
	w.numbers.Lock()
	fresh := time.Since(w.ended) < 10*w.took || w.took > sweepBudget
	w.numbers.Unlock()
	if fresh {
		return nil
	}
	return w.whole(w.stop)
}

// maintain continues the current pass, or begins one when it is due.
func (w *sweeper) maintain(ctx context.Context) error {
	if !w.mu.TryLock() {
		return nil // a sweep is running
	}
	defer w.mu.Unlock()
	now := time.Now()
	if w.pass == nil && now.Before(w.begins) {
		return nil
	}
	_, err := w.step(now.Add(budgetFor(w.used())))
	return errors.Join(err, context.Cause(ctx))
}

// NextPass returns the number of the next pass to begin.
func (w *sweeper) NextPass() uint64 {
	w.numbers.Lock()
	defer w.numbers.Unlock()
	return w.number + 1
}

// step does a part of a pass; done reports that the pass is complete.
func (w *sweeper) step(until time.Time) (done bool, err error) {
	if w.pass == nil {
		w.begin()
	}
	p := w.pass
	p.now = kernel.NowTick()
	w.d.services.StillDead(p.dead)
	for p.table < len(w.tables) {
		more, err := w.tables[p.table].sweep(p)
		if err != nil {
			w.pass = nil
			return false, fmt.Errorf("sweep connections: %w", err)
		}
		if !more {
			p.table++
			p.cursor = new(bpfmap.Cursor)
		}
		if time.Now().After(until) {
			break
		}
	}
	if p.table < len(w.tables) {
		return false, nil
	}
	for p.expiring < len(w.tables) {
		more, err := w.tables[p.expiring].expire(p)
		if err != nil {
			w.pass = nil
			return false, fmt.Errorf("sweep connections: %w", err)
		}
		if !more {
			p.expiring++
		}
		if p.expiring < len(w.tables) && time.Now().After(until) {
			return false, nil
		}
	}
	w.pass = nil
	return true, w.end(p)
}

func (w *sweeper) begin() {
	w.numbers.Lock()
	w.number++
	number := w.number
	w.numbers.Unlock()
	w.begins = time.Now().Add(w.d.config.SweepInterval)
	w.d.nexthops.sweepBegins()
	w.shares.passBegins()
	idle, dead := w.d.idleTimes()
	for _, t := range w.tables {
		t.spare()
	}
	w.pass = &pass{
		number:   number,
		began:    time.Now(),
		cursor:   new(bpfmap.Cursor),
		idle:     idle,
		dead:     dead,
		live:     make(map[uint32]*backendTotals),
		closed:   w.closed,
		nat:      w.d.nats.PassBegins(),
		departed: w.d.guards.departed.passBegins(),
		taken:    w.d.services.ForHandover(),
	}
}

// end stores the results of a pass.
func (w *sweeper) end(p *pass) error {
	totals := make(map[uint32]backendTotals, len(p.live))
	err := w.addClosed(p)
	for id, t := range p.live {
		reused, failed := lb.Reused(w.d.tables, id)
		err = errors.Join(err, failed)
		totals[id] = backendTotals{active: t.active, packets: t.packets + reused.PacketCount, bytes: t.bytes + reused.ByteCount}
	}
	w.numbers.Lock()
	before := w.totals
	w.totals, w.ended, w.took, w.seen = totals, time.Now(), time.Since(p.began), p.seen
	w.numbers.Unlock()
	w.shares.passEnded()
	w.d.guards.departed.passEnded(p.departed)
	err = errors.Join(err, w.writeLoads(before, totals))
	err = errors.Join(err, w.d.nexthops.sweepEnded(w.d.overlay.refersTo(func(index uint32) bool { return index < kernel.NexthopCount && p.used[index] })))
	err = errors.Join(err, w.d.services.PassEnded(p.number, p.isLive), w.d.nats.PassEnded(p.nat))
	w.closed = make(map[uint32]*backendTotals)
	return err
}

// entries returns the number of entries of a table as of the last pass.
func (w *sweeper) entries(table int) uint64 {
	w.numbers.Lock()
	defer w.numbers.Unlock()
	return w.seen[table]
}

// isLive reports whether a backend has connections that it still serves.
func (p *pass) isLive(id uint32) bool {
	t := p.live[id]
	return t != nil && t.active > 0
}

// isTaken reports whether a direction belongs to a UDP connection through a frontend that now
// belongs to another service. comes is the tuple of this direction, back the tuple of the other.
func (p *pass) isTaken(s *lb.Table, m *kernel.CtMeta, comes, back datapath.Tuple) bool {
	if m.Flags&kernel.CtReply != 0 {
		comes, back = back, comes
	}
	f := datapath.Frontend{Addr: comes.Destination, Protocol: datapath.UDP}
	_, taken := p.taken[f]
	return taken && !s.Keeps(f, m.ServiceId, back.Source)
}
