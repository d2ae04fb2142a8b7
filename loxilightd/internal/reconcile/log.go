// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"log/slog"
	"time"
)

// Limits on log messages about single rows: if thousands of rows fail at once, the first few
// messages show why.
const (
	logBurst  = 20
	logRefill = time.Second
)

// limitedLog is a logger that allows logBurst lines, and one more line per logRefill. Only the
// goroutine of Run uses it.
type limitedLog struct {
	log        *slog.Logger
	used       int
	last       time.Time
	suppressed int
}

func (l *limitedLog) info(msg string, args ...any) {
	if l.admit() {
		l.log.Info(msg, args...)
	}
}

func (l *limitedLog) warn(msg string, args ...any) {
	if l.admit() {
		l.log.Warn(msg, args...)
	}
}

func (l *limitedLog) admit() bool {
	now := time.Now()
	if refilled := int(now.Sub(l.last) / logRefill); refilled > 0 {
		l.used, l.last = max(0, l.used-refilled), now
	}
	if l.used >= logBurst {
		l.suppressed++
		return false
	}
	if l.suppressed > 0 {
		l.log.Warn("more objects than are logged one by one: see llcli status", "suppressed", l.suppressed)
		l.suppressed = 0
	}
	l.used++
	return true
}
