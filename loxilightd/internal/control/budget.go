// SPDX-License-Identifier: Apache-2.0

package control

import (
	"math"

	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
)

// Limits on the memory that one request may use while it is decoded and checked.
const (
	maxReaderMemory = 8 << 20
	maxAdminMemory  = 192 << 20
)

// mostPrefixes returns how many prefixes a request may have: as many as the table has room for, or
// as many as it already has, if it is overfull.
func (s *Server) mostPrefixes() int {
	return max(int(s.Store.Tables().Prefixes), s.Store.Snapshot().Cost().Prefixes)
}

// budgetOf returns the budget for one request from c.
func (s *Server) budgetOf(c Caller) *decode.Budget {
	if c.Admin {
		return decode.NewBudget(maxAdminMemory, s.mostPrefixes())
	}
	return decode.NewBudget(maxReaderMemory, s.mostPrefixes())
}

// budgetOfFiles returns the budget of the object files, which root writes: only their prefixes are
// limited here, because everything else is limited by the file sizes.
func (s *Server) budgetOfFiles() *decode.Budget {
	return decode.NewBudget(math.MaxInt, s.mostPrefixes())
}
