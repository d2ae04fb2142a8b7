// SPDX-License-Identifier: Apache-2.0

package ebpf

import "time"

// sweepBudget bounds one call of maintain, which there is one of a second, where the
// tables are not full; sweepHurry where they are.
const (
	sweepBudget = 50 * time.Millisecond
	sweepHurry  = 500 * time.Millisecond
)

// budgetFor returns how long one call of maintain may take, by the part of the fuller
// established table that is in use: what ends must go as fast as others come.
func budgetFor(used float64) time.Duration {
	const from, to = 0.5, 0.9
	hurry := min(max((used-from)/(to-from), 0), 1)
	return sweepBudget + time.Duration(hurry*float64(sweepHurry-sweepBudget))
}

// used returns which part of the fuller established table was in use as of the last
// pass.
func (w *sweeper) used() float64 {
	size := float64(w.d.maps[kernelMapLlCt4].MaxEntries())
	return max(float64(w.entries(1))/size, float64(w.entries(3))/size)
}
