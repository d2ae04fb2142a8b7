// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// kickPause is the minimum time between two requested passes.
const kickPause = 100 * time.Millisecond

// Sweeper reads all connections in batches, shows them to the judges, and deletes those that are
// idle or that a judge ends.
type Sweeper struct {
	options Options
	tables  []table
	stop    chan struct{}
	kicked  chan struct{}
	wg      sync.WaitGroup

	expirer deleter
	shares  *shares
	sizes   *sizes

	mu     sync.Mutex // one pass at a time
	pass   *pass      // current; nil: none
	begins time.Time  // start of the next periodic pass

	numbers sync.Mutex
	number  uint64             // of the current or the last pass
	ended   time.Time          // end of the last complete pass
	took    time.Duration      // and its duration
	worked  time.Duration      // of that, without the pauses
	seen    [tableCount]uint64 // entries by table, as of that pass
}

// pass is one sweep over all connections.
type pass struct {
	s        *Sweeper
	began    time.Time
	table    int // index into tables of the table being swept
	expiring int // index of the table whose entries are being deleted
	cursor   *bpfmap.Cursor
	now      uint32
	idle     *idleTimeouts
	parts    []Part
	counts   [tableCount]uint64 // entries by table
	worked   time.Duration

	match   func(*datapath.Connection) bool // selects connections to be ended; nil: none
	matched uint64
}

// deleter is an [Expirer], or the substitute for it in a test.
type deleter interface {
	Run(all []kernel.ExpirerExpire) error
	Close() error
}

// NewSweeper loads the program that deletes connections. Passes are started by [Sweeper.Maintain],
// or on request.
func NewSweeper(o Options) (*Sweeper, error) {
	x, err := NewExpirer(o.Maps)
	if err != nil {
		return nil, err
	}
	return newSweeper(o, x), nil
}

func newSweeper(o Options, x deleter) *Sweeper {
	s := &Sweeper{
		options: o,
		stop:    make(chan struct{}),
		kicked:  make(chan struct{}, 1),
		expirer: x,
		shares:  newShares(o.Shares),
	}
	s.tables = s.options.newTables()
	s.sizes = newSizes(s)
	s.wg.Add(1)
	go s.sweepWhenKicked()
	return s
}

// Close aborts a requested pass, waits for its end, and unloads the program. The sweeper must not
// be used afterwards.
func (s *Sweeper) Close() error {
	close(s.stop)
	s.sizes.close()
	s.wg.Wait()
	return s.expirer.Close()
}

// FollowLoad begins to keep the sizes of the tables between their limits. No program of an earlier
// run may be in use any more: it might have a table of its own, whose number of segments is the
// same.
func (s *Sweeper) FollowLoad() { s.sizes.start() }

// Wake makes the sweeper look at the tables at once, since programs have been attached.
func (s *Sweeper) Wake() {
	select {
	case s.sizes.woken <- struct{}{}:
	default: // already woken
	}
}

// Kick requests an immediate pass.
func (s *Sweeper) Kick() {
	select {
	case s.kicked <- struct{}{}:
	default: // one is already requested
	}
}

func (s *Sweeper) sweepWhenKicked() {
	defer s.wg.Done()
	for {
		select {
		case <-s.stop:
			return
		case <-s.kicked:
		}
		began := time.Now()
		if err := s.Whole(); err != nil {
			s.options.Log.Warn("cannot sweep the connections; retrying", "error", err)
		}
		// Thousands of changes should cost an occasional pass, not one each.
		select {
		case <-s.stop:
			return
		case <-time.After(max(kickPause, 5*time.Since(began))):
		}
	}
}

// Whole runs a complete pass that begins now, unless the sweeper is closed.
func (s *Sweeper) Whole() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.run(s.stop, nil)
	return err
}

// between runs a function while no pass runs. The current pass begins anew.
func (s *Sweeper) between(do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pass != nil {
		s.pass, s.begins = nil, time.Time{}
	}
	return do()
}

// passedSince reports whether a pass that began after t has ended.
func (s *Sweeper) passedSince(t time.Time) bool {
	s.numbers.Lock()
	defer s.numbers.Unlock()
	return s.ended.Add(-s.took).After(t)
}

// Problems describes tables of connections that cannot grow.
func (s *Sweeper) Problems() []string { return s.sizes.problems() }

// Capacity returns the number of connections of each family that its table can hold, if it grows.
func (s *Sweeper) Capacity() [tableCount]uint32 { return s.sizes.capacity() }

// flush ends the connections for which match returns true.
func (s *Sweeper) flush(ctx context.Context, match func(*datapath.Connection) bool) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.run(ctx.Done(), match)
	return p.matched, errors.Join(err, context.Cause(ctx))
}

func (s *Sweeper) run(stop <-chan struct{}, match func(*datapath.Connection) bool) (*pass, error) {
	s.begin() // a pass that has already begun may have missed entries
	p := s.pass
	p.match = match
	for {
		done, err := s.step(time.Now().Add(budget))
		if done || err != nil {
			return p, err
		}
		select {
		case <-stop:
			s.pass = nil
			return p, nil
		default:
		}
	}
}

// Refresh runs a pass if the counters are outdated and a pass is cheap.
func (s *Sweeper) Refresh() error {
	s.numbers.Lock()
	fresh := time.Since(s.ended) < 10*s.took || s.took > budget
	s.numbers.Unlock()
	if fresh {
		return nil
	}
	return s.Whole()
}

// Maintain continues the current pass, or begins one when it is due.
func (s *Sweeper) Maintain(ctx context.Context) error {
	if !s.mu.TryLock() {
		return nil // a pass is running
	}
	defer s.mu.Unlock()
	now := time.Now()
	if s.pass == nil && now.Before(s.begins.Add(s.postponed())) {
		return nil
	}
	_, err := s.step(now.Add(budgetFor(s.Used())))
	return errors.Join(err, context.Cause(ctx))
}

// idleIntervals is the number of intervals between two passes over empty tables while no programs
// are attached.
const idleIntervals = 12

// passShare limits the processor time of periodic passes: to one part in so many of a processor, as
// long as their interval is less than Options.Longest. Expired connections make room without a
// pass.
const passShare = 300

// postponed returns for how long the next periodic pass is postponed.
func (s *Sweeper) postponed() time.Duration {
	if s.options.IsIdle() && s.Entries() == [tableCount]uint64{} && s.NextPass() > 1 {
		return (idleIntervals - 1) * s.options.Interval
	}
	s.numbers.Lock()
	defer s.numbers.Unlock()
	return max(0, min(s.options.Longest, passShare*s.worked)-s.options.Interval)
}

// NextPass returns the number of the next pass to begin.
func (s *Sweeper) NextPass() uint64 {
	s.numbers.Lock()
	defer s.numbers.Unlock()
	return s.number + 1
}

// Entries returns the number of entries of each table as of the last pass.
func (s *Sweeper) Entries() [tableCount]uint64 {
	s.numbers.Lock()
	defer s.numbers.Unlock()
	return s.seen
}

// step does a part of a pass; done reports that the pass is complete.
func (s *Sweeper) step(until time.Time) (done bool, err error) {
	if s.pass == nil {
		s.begin()
	}
	p := s.pass
	p.now = kernel.NowTick()
	for _, part := range p.parts {
		part.Resumed()
	}
	s.shares.changed()
	began := time.Now()
	done, err = p.advance(until)
	p.worked += time.Since(began)
	s.shares.changed()
	if done || err != nil {
		s.pass = nil
	}
	if err != nil {
		return false, fmt.Errorf("sweep connections: %w", err)
	}
	if done {
		err = s.end(p)
	}
	return done, err
}

// advance sweeps and expires tables until the pass is done or the time is up.
func (p *pass) advance(until time.Time) (done bool, err error) {
	for p.table < len(p.s.tables) {
		more, err := p.s.tables[p.table].sweep(p)
		if err != nil {
			return false, err
		}
		if !more {
			p.table++
			p.cursor = new(bpfmap.Cursor)
		}
		if time.Now().After(until) {
			break
		}
	}
	if p.table < len(p.s.tables) {
		return false, nil
	}
	for p.expiring < len(p.s.tables) {
		more, err := p.s.tables[p.expiring].expire(p)
		if err != nil {
			return false, err
		}
		if !more {
			p.expiring++
		}
		if p.expiring < len(p.s.tables) && time.Now().After(until) {
			return false, nil
		}
	}
	return true, nil
}

func (s *Sweeper) begin() {
	s.numbers.Lock()
	s.number++
	number := s.number
	s.numbers.Unlock()
	s.begins = time.Now().Add(s.options.Interval)
	s.shares.passBegins()
	for _, t := range s.tables {
		t.spare()
	}
	s.pass = &pass{
		s:      s,
		began:  time.Now(),
		cursor: new(bpfmap.Cursor),
		idle:   s.options.idleTimeouts(),
	}
	for _, j := range s.options.Judges {
		s.pass.parts = append(s.pass.parts, j.PassBegins(number))
	}
}

// end stores the results of a pass.
func (s *Sweeper) end(p *pass) (err error) {
	s.shares.passEnded()
	for _, part := range p.parts {
		err = errors.Join(err, part.PassEnded())
	}
	// Last: once the counters are reported as fresh, the judges must have them.
	s.numbers.Lock()
	s.ended, s.took, s.worked, s.seen = time.Now(), time.Since(p.began), p.worked, p.counts
	s.numbers.Unlock()
	return err
}

func (p *pass) see(e Entry) {
	p.counts[p.table]++
	for _, part := range p.parts {
		part.Seen(e)
	}
}

// ends reports whether a judge ends the connection of an entry.
func (p *pass) ends(e Entry) bool {
	for _, part := range p.parts {
		if part.Ends(e) {
			return true
		}
	}
	return false
}

func (p *pass) deleted(e Entry) {
	for _, part := range p.parts {
		part.Deleted(e)
	}
}
