// SPDX-License-Identifier: Apache-2.0

// Package tick aligns the periodic work of a process, so that work that is due every second and work
// that is due every five seconds share a wake-up. A wake-up costs more than most of this work.
package tick

import "time"

var start = time.Now()

// Until returns the time until the next multiple of every since the start of the process. It is
// longer than 0 and at most every, which must be positive.
func Until(every time.Duration) time.Duration {
	past := time.Since(start) % every
	if past < 0 { // in a test with a clock of its own
		past += every
	}
	return every - past
}

// After returns a channel on which the time is sent at the next multiple of every since the start of
// the process.
func After(every time.Duration) <-chan time.Time { return time.After(Until(every)) }
