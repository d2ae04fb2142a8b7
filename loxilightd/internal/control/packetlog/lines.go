// SPDX-License-Identifier: Apache-2.0

// Package packetlog limits how many reports packets cause.
package packetlog

import (
	"sync"
	"time"
)

// Lines limits the lines of the log that packets cause. The zero value is ready for use, and safe
// for concurrent use.
type Lines struct {
	mu    sync.Mutex
	since time.Time // start of the current second
	lines int       // lines written since then
	held  uint64    // lines that have not been written since the last one
}

// rate is how many lines are written per second.
const rate = 10

// Take reports whether another line may be written, and how many were not since the last one.
func (l *Lines) Take(now time.Time) (held uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= time.Second {
		l.since, l.lines = now, 0
	}
	if l.lines == rate {
		l.held++
		return 0, false
	}
	l.lines++
	held, l.held = l.held, 0
	return held, true
}
