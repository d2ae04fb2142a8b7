// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// listBatch is the number of entries that a listing reads at once.
const listBatch = bpfmap.BatchSize

// Limits for the listings that await a request for their next page: how many are kept, and for how
// long.
const (
	maxListings = 64
	listingLife = 2 * time.Minute
)

// listing is a list of connections of which some pages have been returned. A position in a map is
// lost when its entry is deleted, so the kernel's cursor is kept.
type listing struct {
	table  int
	cursor *bpfmap.Cursor
	idle   *idleTimeouts
	path   func(*kernel.CtMeta) datapath.Way
	before func(lastSeenTick uint32) bool // the rules were changed
	rest   []datapath.Connection          // read, and not yet returned
	used   time.Time
}

// Connections implements [datapath.Connections].
type Connections struct {
	options *Options
	sweeper *Sweeper
	tables  []table

	mu       sync.Mutex
	listings map[string]*listing
}

// NewConnections returns the connections that s sweeps.
func NewConnections(s *Sweeper) *Connections {
	return &Connections{options: &s.options, sweeper: s, tables: s.options.newTables(), listings: make(map[string]*listing)}
}

// List implements [datapath.Connections]. A connection that exists during the whole listing is
// listed once.
func (c *Connections) List(ctx context.Context, f datapath.ConnectionFilter, cursor string, limit int) ([]datapath.Connection, string, error) {
	l, err := c.resume(cursor)
	if err != nil {
		return nil, "", err
	}
	for len(l.rest) < limit && l.table < len(c.tables) {
		if err := context.Cause(ctx); err != nil {
			return nil, "", err
		}
		found, more, err := c.tables[l.table].list(l, f.Match)
		if err != nil {
			return nil, "", fmt.Errorf("list connections: %w", err)
		}
		l.rest = append(l.rest, found...)
		if !more {
			l.table++
			l.cursor = new(bpfmap.Cursor)
		}
	}
	n := min(limit, len(l.rest))
	page := l.rest[:n:n]
	l.rest = l.rest[n:]
	if len(l.rest) == 0 && l.table == len(c.tables) {
		return page, "", nil
	}
	return page, c.keep(l), nil
}

// Each implements [datapath.Connections].
func (c *Connections) Each(ctx context.Context, each func(*datapath.Connection)) error {
	all := func(*datapath.Connection) bool { return true }
	l, err := c.resume("")
	if err != nil {
		return err
	}
	for l.table < len(c.tables) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		found, more, err := c.tables[l.table].list(l, all)
		if err != nil {
			return fmt.Errorf("read connections: %w", err)
		}
		for i := range found {
			each(&found[i])
		}
		if !more {
			l.table++
			l.cursor = new(bpfmap.Cursor)
		}
	}
	return nil
}

// resume removes and returns the listing that a cursor refers to, or begins a new one.
func (c *Connections) resume(cursor string) (*listing, error) {
	if cursor == "" {
		path, err := c.options.Paths()
		if err != nil {
			return nil, err
		}
		before, err := c.options.BeforeRules()
		if err != nil {
			return nil, err
		}
		return &listing{cursor: new(bpfmap.Cursor), idle: c.options.idleTimeouts(), path: path, before: before}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.listings[cursor]
	if l == nil {
		return nil, fmt.Errorf("list of connections: cursor %q is no longer valid; start again: %w", cursor, datapath.ErrAbsent)
	}
	delete(c.listings, cursor)
	return l, nil
}

// keep stores l until its next page is requested.
func (c *Connections) keep(l *listing) (cursor string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.used = time.Now()
	for cursor, other := range c.listings {
		if time.Since(other.used) > listingLife {
			delete(c.listings, cursor)
		}
	}
	for len(c.listings) >= maxListings {
		oldest := ""
		for cursor, other := range c.listings {
			if oldest == "" || other.used.Before(c.listings[oldest].used) {
				oldest = cursor
			}
		}
		delete(c.listings, oldest)
	}
	cursor = rand.Text()
	c.listings[cursor] = l
	return cursor
}

// Flush implements [datapath.Connections].
func (c *Connections) Flush(ctx context.Context, f datapath.ConnectionFilter) (uint64, error) {
	return c.sweeper.flush(ctx, f.Match)
}

// stateWords maps the state names of the C source to the API's: for TCP and SCTP, and for protocols
// without a handshake.
var stateWords = map[string][2]string{
	"new":         {"syn-sent", "unreplied"},
	"answered":    {"syn-received", "replied"},
	"established": {"established", "replied"},
	"one_way":     {"established", "one-way"},
	"fin":         {"fin-wait", "replied"},
	"time_wait":   {"time-wait", "replied"},
	"closed":      {"closed", "replied"},
	"ending":      {"closed", "replied"},
}

// stateName returns the API's name of a state, or its number if the state is unknown: a different
// version of the programs may have different states.
func stateName(states []string, state uint8, protocol datapath.Protocol) string {
	if int(state) >= len(states) {
		return fmt.Sprint(state)
	}
	words, known := stateWords[states[state]]
	switch {
	case !known:
		return fmt.Sprint(state)
	case protocol == datapath.TCP || protocol == datapath.SCTP:
		return words[0]
	default:
		return words[1]
	}
}

// since returns the time from tick to now, or 0 if tick is later.
func since(now, tick uint32) time.Duration {
	return kernel.DurationOf(kernel.TicksBetween(tick, now))
}
