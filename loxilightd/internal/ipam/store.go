// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

// errClosed is the error that a Store returns after Close.
var errClosed = errors.New("ipam: closed")

// Store contains the leases. Its methods are safe for concurrent use.
type Store struct {
	opts    Options
	file    *file
	problem string // problem with the file that Open found

	mu     sync.Mutex
	leases map[Owner]*Lease
	taken  map[netip.Addr]Owner
	rests  map[netip.Addr]time.Time    // start of the rest
	queue  []resting                   // the entries of rests, oldest first, and outdated entries
	next   map[netip.Prefix]netip.Addr // next candidate, by subnet

	pending  *batch // content of the next write
	flushing bool   // a write is in progress
	flushes  sync.WaitGroup
	closed   bool
	failure  error // error of the last write
}

// batch contains changes that are made durable together; the callers are answered afterwards.
type batch struct {
	text []byte
	undo []func() // roll the changes back; the last one is called first
	done chan struct{}
	err  error // set before done is closed
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// Open reads the leases. A damaged file is set aside and its readable records are used;
// [Store.Problem] reports that. Open fails only if the boot id is unknown.
func Open(o Options) (*Store, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Store{
		opts: o, leases: map[Owner]*Lease{}, taken: map[netip.Addr]Owner{}, rests: map[netip.Addr]time.Time{},
		next: map[netip.Prefix]netip.Addr{}, pending: newBatch(), file: &file{path: o.Path},
	}
	s.load()
	s.adopt()
	if s.failure = s.file.begin(s.whole()); s.failure != nil {
		o.Log.Error("no address can be assigned", slog.Any("error", s.failure)) // until a write succeeds
	}
	return s, nil
}

// adopt adds leases that are in use but missing from the file.
func (s *Store) adopt() {
	if s.opts.Live == nil {
		return
	}
	for _, l := range s.opts.Live() {
		if s.leases[l.Owner] != nil || len(l.Addresses) == 0 || s.anyTaken(&l) {
			continue
		}
		adopted := l.clone()
		s.grant(&adopted)
		s.opts.Log.Warn("adopted addresses in use that had no lease", slog.String("owner", l.Owner.String()), slog.Any("addresses", l.Addresses))
	}
}

// anyTaken reports whether an address of a lease is already taken.
func (s *Store) anyTaken(l *Lease) bool {
	for _, p := range l.Addresses {
		if _, ok := s.taken[p.Addr()]; ok {
			return true
		}
	}
	return false
}

// note adds a record to the next write, together with the function that rolls the change back if
// the write fails. The caller holds s.mu.
func (s *Store) note(r record, undo func()) {
	s.pending.text = r.append(s.pending.text)
	s.pending.undo = append(s.pending.undo, undo)
}

// begin locks s.mu, unless it returns an error.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	s.wake()
	return nil
}

// commit returns when all noted records are durable or rolled back. The caller holds s.mu, and
// commit unlocks it.
func (s *Store) commit(ctx context.Context) error {
	b := s.pending
	switch {
	case len(b.undo) == 0 && !s.flushing:
		s.mu.Unlock()
		return nil
	case len(b.undo) == 0:
		// The state that this call saw may not be on disk yet.
		b.undo = append(b.undo, func() {})
	}
	if !s.flushing {
		s.flushing = true
		s.flushes.Go(s.flush)
	}
	s.mu.Unlock()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// flush writes batches until no batch is left.
func (s *Store) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pending.undo) > 0 {
		b := s.pending
		s.pending = newBatch()
		write := func() error { return s.file.append(b.text) }
		if s.file.wantsRewrite(len(s.leases) + len(s.rests)) {
			text := s.whole()
			write = func() error { return s.file.rewrite(text) }
		}
		s.mu.Unlock()
		err := write()
		s.mu.Lock()
		if s.failure = err; err != nil {
			// Later decisions may depend on the decisions that are rolled back.
			s.fail(s.pending, err)
			s.pending = newBatch()
			s.fail(b, err)
			continue
		}
		close(b.done)
	}
	s.flushing = false
}

func (s *Store) fail(b *batch, err error) {
	b.takeBack()
	b.err = err
	close(b.done)
}

func (b *batch) takeBack() {
	for i := len(b.undo) - 1; i >= 0; i-- {
		b.undo[i]()
	}
}

// whole returns the content of a complete file.
func (s *Store) whole() []byte {
	text := record{Format: format}.append(nil)
	for _, l := range s.leases {
		text = record{Lease: l}.append(text)
	}
	for _, r := range s.queue {
		if since, ok := s.rests[r.addr]; ok && since.Equal(r.since) {
			text = record{Rest: &rested{Address: r.addr, At: r.since}}.append(text)
		}
	}
	for subnet, at := range s.next {
		if at.IsValid() && subnet.Contains(at) {
			text = record{Next: &turn{Subnet: subnet, Address: at}}.append(text)
		}
	}
	return text
}
