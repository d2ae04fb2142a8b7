// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// budget limits one call of Maintain, which runs once a second, while the tables are not full;
// hurried is the limit when they are.
const (
	budget  = 50 * time.Millisecond
	hurried = 500 * time.Millisecond
)

// budgetFor returns how long one call of Maintain may take, given the used fraction of the fuller
// table: entries must be deleted as fast as new ones arrive.
func budgetFor(used float64) time.Duration {
	const from, to = 0.5, 0.9
	part := min(max((used-from)/(to-from), 0), 1)
	return budget + time.Duration(part*float64(hurried-budget))
}

// Used returns the used fraction of the fuller table as of the last pass.
func (s *Sweeper) Used() float64 {
	n, tables := s.Entries(), s.options.Tables
	used := func(entries uint64, places uint32) float64 {
		return float64(entries) / float64(2*kernel.ConnCapacity(places))
	}
	return max(used(n[IPv4], tables.Ct4.MaxEntries()), used(n[IPv6], tables.Ct6.MaxEntries()))
}
