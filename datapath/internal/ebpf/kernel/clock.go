// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// NowTick returns the time on the programs' clock: the machine's monotonic clock, even if the
// daemon is in a time namespace.
func NowTick() uint32 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail: every kernel has this clock
	return uint32((time.Duration(ts.Nano()) - ClockOffset()) >> TickShift)
}

// ClockOffset is how far the daemon's monotonic clock is ahead of the machine's.
var ClockOffset = sync.OnceValue(func() time.Duration {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	return MonotonicOffset(string(text))
})

// MonotonicOffset parses the offset from a table of clocks: name, seconds, nanoseconds.
func MonotonicOffset(table string) time.Duration {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "monotonic" {
			continue
		}
		seconds, err1 := strconv.ParseInt(fields[1], 10, 64)
		nanos, err2 := strconv.ParseInt(fields[2], 10, 64)
		if err1 == nil && err2 == nil {
			return time.Duration(seconds)*time.Second + time.Duration(nanos)
		}
	}
	return 0
}

// TicksBetween returns the number of ticks from then to now; 0 if then is later.
func TicksBetween(then, now uint32) uint32 { return uint32(max(0, int32(now-then))) }
