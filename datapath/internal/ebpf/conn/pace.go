// SPDX-License-Identifier: Apache-2.0

package conn

import "time"

// Budget limits the duration of one call to Maintain, which runs once a second, as long as the
// tables are not full; Hurry limits it when they are full.
const (
	Budget = 50 * time.Millisecond
	Hurry  = 500 * time.Millisecond
)

// budgetFor returns how long one call of Maintain may take, given the used fraction of the fuller
// established table: entries must be deleted as fast as new ones arrive.
func budgetFor(used float64) time.Duration {
	const from, to = 0.5, 0.9
	hurry := min(max((used-from)/(to-from), 0), 1)
	return Budget + time.Duration(hurry*float64(Hurry-Budget))
}

// Used returns the used fraction of the fuller established table as of the last pass.
func (s *Sweeper) Used() float64 {
	n, size := s.Entries(), float64(s.Tables.Ct4.MaxEntries())
	return max(float64(n[Established4])/size, float64(n[Established6])/size)
}
