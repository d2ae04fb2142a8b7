// SPDX-License-Identifier: Apache-2.0

package control

import (
	"log/slog"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// ruleLog logs packets that match rules with log: true, at a limited rate. The zero value is ready
// for use, and safe for concurrent use.
type ruleLog struct {
	mu    sync.Mutex
	since time.Time // start of the current second
	lines int       // lines written since then
	held  uint64    // packets that have not been logged since the last line
}

// ruleLogRate is how many lines are written per second.
const ruleLogRate = 10

// write logs one packet, or counts it for the next line.
func (l *ruleLog) write(log *slog.Logger, d *datapath.Decision) {
	l.mu.Lock()
	now := time.Now()
	if now.Sub(l.since) >= time.Second {
		l.since, l.lines = now, 0
	}
	if l.lines == ruleLogRate {
		l.held++
		l.mu.Unlock()
		return
	}
	l.lines++
	held := l.held
	l.held = 0
	l.mu.Unlock()
	p := packetOf(&d.Packet)
	log.Info("firewall rule matched", slog.String("rule", string(d.Rule)), slog.String("action", d.Action.String()),
		slog.String("protocol", p.Protocol), slog.String("source", p.Source), slog.String("destination", p.Destination),
		slog.String("device", p.Device), slog.String("hook", p.Hook), slog.Int("length", d.Length), slog.Uint64("not_logged", held))
}
