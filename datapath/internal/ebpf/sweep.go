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

// What ends connections besides the idle timeout of their service.
var (
	newTimeout      = ticksOf(30 * time.Second) // nothing answered
	answeredTimeout = ticksOf(60 * time.Second) // handshake not finished
	exchangeTimeout = ticksOf(30 * time.Second) // UDP: one question and its answers, no stream
	finTimeout      = ticksOf(120 * time.Second)
	finLongest      = ticksOf(time.Hour) // of a service: its server may answer at length to who has closed
	timeWaitTimeout = ticksOf(60 * time.Second)
	closedTimeout   = ticksOf(10 * time.Second)
	echoTimeout     = ticksOf(60 * time.Second) // ICMP (RFC 5508, section 3.2)
)

// plainIdle is after how long connections end that are no service's: RFC 5382, section
// 5, for TCP, and RFC 4787, section 4.3, for UDP.
var plainIdle = idleTicks{
	tcp: ticksOf(2*time.Hour + 4*time.Minute), udp: ticksOf(5 * time.Minute), sctp: ticksOf(2*time.Hour + 4*time.Minute),
}

// sweeper looks through all connections, a batch at a time: it ends those that
// are idle or whose backend is gone, and counts what the others carry.
type sweeper struct {
	d      *DataPlane
	tables []connTable
	stop   chan struct{}
	kicked chan struct{}
	wg     sync.WaitGroup

	expirer *expirer

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

// idleTimeouts are those of the services, by id.
type idleTimeouts map[uint32]idleTicks

type idleTicks struct{ tcp, udp, sctp uint32 }

// of returns the one of a protocol.
func (t idleTicks) of(protocol datapath.Protocol) uint32 {
	switch protocol {
	case datapath.ICMP, datapath.ICMPv6:
		return echoTimeout
	case datapath.TCP:
		return t.tcp
	case datapath.SCTP:
		return t.sctp
	default:
		return t.udp
	}
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

// idleFor returns after how many idle ticks a connection ends; 0: never, it is not
// known yet what its service wants.
func (idle idleTimeouts) idleFor(m *kernelCtMeta, proto uint8) uint32 {
	if m.NatId != 0 && m.ServiceId == 0 {
		if t := translatedIdle(kernelCtState(m.State), datapath.Protocol(proto)); t != 0 {
			return t
		}
	}
	switch kernelCtState(m.State) {
	case kernelCtStateCT_NEW:
		return newTimeout
	case kernelCtStateCT_ANSWERED:
		if datapath.Protocol(proto) == datapath.UDP {
			return min(exchangeTimeout, max(1, idle[m.ServiceId].udp))
		}
		return answeredTimeout
	case kernelCtStateCT_FIN:
		if m.ServiceId == 0 {
			return finTimeout
		}
		return max(finTimeout, min(finLongest, idle[m.ServiceId].of(datapath.Protocol(proto))))
	case kernelCtStateCT_TIME_WAIT:
		return timeWaitTimeout
	case kernelCtStateCT_CLOSED, kernelCtStateCT_ENDING:
		return closedTimeout
	}
	t, ok := idle[m.ServiceId]
	if !ok {
		return closedTimeout // of a service that is gone
	}
	return t.of(datapath.Protocol(proto))
}

// forSweep returns the idle timeouts of the services and the dead backends.
func (s *services) forSweep() (idleTimeouts, map[uint32]bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	idle := make(idleTimeouts, len(s.byID)+1)
	idle[0] = plainIdle
	for id, v := range s.byID {
		if v.current {
			t := v.value.IdleTimeout
			idle[id] = idleTicks{ticksOf(t.TCP), ticksOf(t.UDP), ticksOf(t.SCTP)}
		} else {
			idle[id] = idleTicks{}
		}
	}
	dead := make(map[uint32]bool, len(s.backends.dead))
	for id, b := range s.backends.dead {
		dead[id] = b.gone
	}
	return idle, dead
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
