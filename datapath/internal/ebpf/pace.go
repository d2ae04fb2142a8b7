// SPDX-License-Identifier: Apache-2.0

package ebpf

import "time"

// sweepBudget limits one call of maintain, which runs once a second, while the tables are not full;
// sweepHurry is the limit when they are.
const (
	sweepBudget = 50 * time.Millisecond
	sweepHurry  = 500 * time.Millisecond
)

// budgetFor returns how long one call of maintain may take, given the used fraction of the fuller
// established table: entries must be deleted as fast as new ones arrive.
func budgetFor(used float64) time.Duration {
	const from, to = 0.5, 0.9
	hurry := min(max((used-from)/(to-from), 0), 1)
	return sweepBudget + time.Duration(hurry*float64(sweepHurry-sweepBudget))
}

// used returns the used fraction of the fuller established table as of the last pass.
func (w *sweeper) used() float64 {
	size := float64(w.d.tables.Ct4.MaxEntries())
	return max(float64(w.entries(1))/size, float64(w.entries(3))/size)
}
