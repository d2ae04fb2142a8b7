// SPDX-License-Identifier: Apache-2.0

package packetlog

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// Policies reports the decisions of Policies that log: at most one event per second for each rule, pair
// of addresses, protocol and destination port, with the number of packets. It is safe for concurrent
// use.
type Policies struct {
	report func(of *datapath.PolicyDecision, p *datapath.Packet, count uint64)
	woken  chan struct{}

	mu     sync.Mutex
	recent map[key]*entry // reported in the last second
}

type key struct {
	decision            datapath.PolicyDecision
	source, destination netip.Addr
	protocol            datapath.Protocol
	port                uint16
}

// entry are the packets since the last report.
type entry struct {
	reported time.Time
	count    uint64
	last     datapath.Packet
}

const (
	span = time.Second
	// most limits the entries: beyond, packets are reported one by one.
	most = 4096
)

// NewPolicies returns a log that calls report, in Add and in Run.
func NewPolicies(report func(*datapath.PolicyDecision, *datapath.Packet, uint64)) *Policies {
	return &Policies{report: report, woken: make(chan struct{}, 1), recent: make(map[key]*entry)}
}

// Add reports a packet at once, or adds it to the next report.
func (l *Policies) Add(d *datapath.PolicyDecision, p *datapath.Packet, now time.Time) {
	k := key{*d, p.Tuple.Source.Addr(), p.Tuple.Destination.Addr(), p.Protocol, p.Tuple.Destination.Port()}
	l.mu.Lock()
	if e := l.recent[k]; e != nil {
		e.count++
		e.last = *p
		l.mu.Unlock()
		return
	}
	if len(l.recent) < most {
		l.recent[k] = &entry{reported: now}
	}
	l.mu.Unlock()
	select {
	case l.woken <- struct{}{}:
	default: // it is awake
	}
	l.report(d, p, 1)
}

// flush reports the packets of entries whose second has passed, and returns the number of entries left.
func (l *Policies) flush(now time.Time) int {
	type report struct {
		key key
		entry
	}
	var due []report
	l.mu.Lock()
	for key, e := range l.recent {
		if now.Sub(e.reported) < span {
			continue
		}
		if e.count == 0 {
			delete(l.recent, key)
			continue
		}
		due = append(due, report{key, *e})
		e.reported, e.count = now, 0
	}
	left := len(l.recent)
	l.mu.Unlock()
	for i := range due {
		l.report(&due[i].key.decision, &due[i].last, due[i].count)
	}
	return left
}

// Run reports packets that were added, until ctx ends.
func (l *Policies) Run(ctx context.Context) {
	tick := time.NewTicker(span / 4)
	defer tick.Stop()
	for {
		tick.Stop()
		select {
		case <-ctx.Done():
			return
		case <-l.woken:
		}
		tick.Reset(span / 4)
		for left := 1; left > 0; {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				left = l.flush(now)
			}
		}
	}
}
