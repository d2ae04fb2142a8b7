// SPDX-License-Identifier: Apache-2.0

// Package capacity follows how full the tables are, forecasts when they will be full, and finds the
// largest owners of their entries.
package capacity

import (
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/loxilight/loxilight/datapath"
)

// The periods over which growth is reported.
const (
	Short = 5 * time.Minute
	Long  = time.Hour
)

// Interval is the time between two readings of the usage.
const Interval = time.Minute

// kept is the number of readings that are kept: enough for the growth over [Long].
const kept = int(Long/Interval) + 1

// The thresholds from which a table is reported as nearly full.
const (
	// NearlyFull is how full a table is, as a fraction.
	NearlyFull = 0.9
	// Soon is how long it takes until a table is full, if it continues to grow as in the last
	// five minutes.
	Soon = 15 * time.Minute
	// soonFrom is how full, as a fraction, a table must be for its growth to be reported: a node
	// whose traffic has just begun fills its tables quickly, but not for long.
	soonFrom = 0.5
)

// longest is the longest time that is forecast.
const longest = 365 * 24 * time.Hour

// growing are the tables and resources that packets or other programs fill. All others change when
// objects or pods change, all at once, which says nothing about the next minutes.
var growing = map[string]bool{
	"connections": true, "affinity": true, "natMappings": true, "natBlocks": true, "nextHops": true, "nameAddresses": true,
	"disk": true, "descriptors": true,
}

// grows reports whether the growth of a table can be extrapolated.
func grows(table string) bool {
	name, _, _ := strings.Cut(table, " ") // connections IPv4
	return growing[name]
}

// History contains readings of how full the tables were. It is safe for concurrent use.
type History struct {
	mu       sync.Mutex
	readings []reading // oldest first
}

type reading struct {
	at    time.Time
	usage map[string]datapath.Usage
}

// Add records how full the tables are at a time. A reading that follows another one too soon is not
// kept.
func (h *History) Add(at time.Time, usage map[string]datapath.Usage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.readings); n > 0 && at.Sub(h.readings[n-1].at) < Interval/2 {
		return
	}
	if len(h.readings) == kept {
		h.readings = h.readings[:copy(h.readings, h.readings[1:])]
	}
	h.readings = append(h.readings, reading{at, maps.Clone(usage)})
}

// Growth returns by how many entries a table has grown in the given period. ok is false if there is
// no reading from that time, or if the table had a different size then.
func (h *History) Growth(table string, now datapath.Usage, at time.Time, period time.Duration) (entries int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.readings) - 1; i >= 0; i-- {
		took := at.Sub(h.readings[i].at)
		if took < period-Interval/2 {
			continue
		}
		then, known := h.readings[i].usage[table]
		if !known || then.Size != now.Size || took >= 2*period {
			return 0, false
		}
		// Readings are not exactly one period apart.
		grown := float64(int64(now.Used)-int64(then.Used)) * period.Seconds() / took.Seconds()
		return int64(math.Round(grown)), true
	}
	return 0, false
}

// FullIn returns after what time a table is full if it continues to grow as in the last five
// minutes. ok is false if it is full, does not grow, takes more than a year, or cannot be forecast.
func (h *History) FullIn(table string, u datapath.Usage, at time.Time) (left time.Duration, ok bool) {
	if u.Used >= u.Size || !grows(table) {
		return 0, false
	}
	grown, ok := h.Growth(table, u, at, Short)
	if !ok || grown <= 0 {
		return 0, false
	}
	seconds := float64(u.Size-u.Used) / float64(grown) * Short.Seconds()
	if seconds > longest.Seconds() {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

// Fills reports whether a table is at least 90 % full, or half full and growing such that it is full
// within 15 minutes; left is that time, or 0.
func (h *History) Fills(table string, u datapath.Usage, at time.Time) (left time.Duration, fills bool) {
	if u.Size == 0 {
		return 0, false
	}
	if float64(u.Used) >= NearlyFull*float64(u.Size) {
		return 0, true
	}
	left, ok := h.FullIn(table, u, at)
	if !ok || left >= Soon || float64(u.Used) < soonFrom*float64(u.Size) {
		return 0, false
	}
	return left, true
}
