// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// OnThisMachine extends limit, the time that something may take on an idle machine, according to
// the machine's current load: other tests and other programs take their share.
func OnThisMachine(limit time.Duration) time.Duration {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return limit
	}
	return extended(limit, string(text), runtime.NumCPU())
}

// extended returns the limit extended for a machine with these load averages: the number of running
// threads over the last minute, and now.
func extended(limit time.Duration, loadavg string, cpus int) time.Duration {
	var minute, five, fifteen float64
	var running int
	if _, err := fmt.Sscanf(loadavg, "%f %f %f %d/", &minute, &five, &fifteen, &running); err != nil {
		return limit
	}
	return time.Duration(float64(limit) * max(1, minute/float64(cpus), float64(running)/float64(cpus)))
}
