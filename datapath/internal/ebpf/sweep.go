// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
)

// kickPause is the least time between two sweeps for backends that have gone.
const kickPause = 100 * time.Millisecond

// sweeper looks through all connections, a batch at a time: it ends those that
// are idle or whose backend is gone, and counts what the others carry.
type sweeper struct {
	d      *DataPlane
	tables []connTable
	stop   chan struct{}
	kicked chan struct{}
	wg     sync.WaitGroup

	expirer *expirer
	shares  *shares

	mu     sync.Mutex // one sweep at a time
	closed closed
	pass   *pass     // under way; nil: none
	begins time.Time // of the next, by itself

	numbers sync.Mutex
	number  uint64 // of the pass under way or the last one
	totals  map[uint32]backendTotals
	ended   time.Time     // when the last whole pass did
	took    time.Duration // and how long it was
	seen    [4]uint64     // entries by table, as of then
}

// closed is what connections carried that passes deleted, and that is in no table yet: by
// backend, and by what translated them.
type closed struct{ backends, nats map[uint32]*backendTotals }

func newClosed() closed {
	return closed{make(map[uint32]*backendTotals), make(map[uint32]*backendTotals)}
}

// pass is one sweep over all connections.
type pass struct {
	number   uint64
	began    time.Time
	table    int // index into sweeper.tables, of what is looked through
	expiring int // the same, of what is deleted
	cursor   *ebpf.MapBatchCursor
	now      uint32
	idle     idleTimeouts
	dead     map[uint32]bool // backends whose connections end: all (true), or those of UDP
	live     map[uint32]*backendTotals
	closed   map[uint32]*backendTotals
	used     [nexthopCount]bool
	nat      *natPass
	departed map[zoneAddr]departure
	taken    map[datapath.Frontend]uint64
	seen     [4]uint64 // entries by table

	match   func(*datapath.Connection) bool // connections to end; nil: none
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
		shares:  newShares(d.shared.value, d.maps[kernelMapLlCt4].MaxEntries()/2, d.maps[kernelMapLlHalf4].MaxEntries()/2),
		closed:  newClosed(),
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

// kick asks for a sweep without delay: backends have gone.
func (w *sweeper) kick() {
	select {
	case w.kicked <- struct{}{}:
	default: // one is asked for already
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
			w.d.log.Warn("cannot look through the connections; trying again", "error", err)
		}
		// What changes by the thousand is to cost one sweep now and then, not one each.
		select {
		case <-w.stop:
			return
		case <-time.After(max(kickPause, 5*time.Since(began))):
		}
	}
}

// whole runs a pass that begins now, to its end.
func (w *sweeper) whole(stop <-chan struct{}) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.run(stop, nil)
	return err
}

// flush ends the connections that match chooses.
func (w *sweeper) flush(ctx context.Context, match func(*datapath.Connection) bool) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.run(ctx.Done(), match)
	return p.matched, errors.Join(err, context.Cause(ctx))
}

func (w *sweeper) run(stop <-chan struct{}, match func(*datapath.Connection) bool) (*pass, error) {
	w.begin() // a pass under way has not seen what this one is to see
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

// refresh runs a pass where the figures are old and that costs little.
func (w *sweeper) refresh() error {
	w.numbers.Lock()
	fresh := time.Since(w.ended) < 10*w.took || w.took > sweepBudget
	w.numbers.Unlock()
	if fresh {
		return nil
	}
	return w.whole(w.stop)
}

// maintain goes on with the pass under way, or begins one when it is time.
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

// nextPass returns the number of the first pass that begins from now on.
func (w *sweeper) nextPass() uint64 {
	w.numbers.Lock()
	defer w.numbers.Unlock()
	return w.number + 1
}

// step does a piece of a pass; done reports that it is whole.
func (w *sweeper) step(until time.Time) (done bool, err error) {
	if w.pass == nil {
		w.begin()
	}
	p := w.pass
	p.now = nowTick()
	w.d.services.stillDead(p.dead)
	for p.table < len(w.tables) {
		more, err := w.tables[p.table].sweep(p)
		if err != nil {
			w.pass = nil
			return false, fmt.Errorf("sweep connections: %w", err)
		}
		if !more {
			p.table++
			p.cursor = new(ebpf.MapBatchCursor)
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
	idle, dead := w.d.services.forSweep()
	for _, t := range w.tables {
		t.spare()
	}
	w.pass = &pass{
		number:   number,
		began:    time.Now(),
		cursor:   new(ebpf.MapBatchCursor),
		idle:     idle,
		dead:     dead,
		live:     make(map[uint32]*backendTotals),
		closed:   w.closed.backends,
		nat:      w.d.nats.passBegins(),
		departed: w.d.guards.departed.passBegins(),
		taken:    w.d.services.forHandover(),
	}
	w.pass.nat.closed = w.closed.nats
}

// end writes down what the pass found out.
func (w *sweeper) end(p *pass) error {
	totals := make(map[uint32]backendTotals, len(p.live))
	err := w.addClosed(p)
	for id, t := range p.live {
		reused, failed := w.d.reused(id)
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
	err = errors.Join(err, w.d.nexthops.sweepEnded(w.d.overlay.refersTo(func(index uint32) bool { return index < nexthopCount && p.used[index] })))
	err = errors.Join(err, w.d.services.passEnded(p), w.d.nats.passEnded(p.nat))
	w.closed = newClosed()
	return err
}

// entries returns how many entries a table had as of the last pass.
func (w *sweeper) entries(table int) uint64 {
	w.numbers.Lock()
	defer w.numbers.Unlock()
	return w.seen[table]
}

// stillDead takes those out of dead that have come back.
func (s *services) stillDead(dead map[uint32]bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id := range dead {
		if _, ok := s.backends.dead[id]; !ok {
			delete(dead, id)
		}
	}
}

func (s *services) passEnded(p *pass) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handedOver(p.number)
	return s.backends.passEnded(p.number, func(id uint32) bool {
		t := p.live[id]
		return t != nil && t.active > 0
	})
}
