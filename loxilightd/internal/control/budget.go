// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/loxilight/loxilight/api"
)

// Limits on the memory that one request may use while it is decoded and checked.
const (
	maxReaderMemory = 16 << 20
	maxAdminMemory  = 192 << 20
)

// prefixMemory is the charge for one parsed prefix, in bytes: the prefix itself, and the spare
// capacity of a growing list.
const prefixMemory = 64

// budget limits how far a request expands: 13 bytes of text can become 128 prefixes, and 3 bytes an
// object. A nil budget is unlimited; it is used to decode stored objects.
type budget struct {
	memory   int // bytes left
	prefixes int // prefixes left
	limit    budgetLimit
}

// budgetLimit is the initial content of a budget.
type budgetLimit struct{ memory, prefixes int }

func newBudget(memory, prefixes int) *budget {
	return &budget{memory: memory, prefixes: prefixes, limit: budgetLimit{memory, prefixes}}
}

// budgetOf returns the budget for one request from c. A request may not have more prefixes than the
// table has room for, unless the table is already overfull.
func (s *Server) budgetOf(c Caller) *budget {
	prefixes := max(int(s.Store.Tables().Prefixes), s.Store.Snapshot().Cost().Prefixes)
	if c.Admin {
		return newBudget(maxAdminMemory, prefixes)
	}
	return newBudget(maxReaderMemory, prefixes)
}

// used returns how much of the budget is spent.
func (b *budget) used() budgetLimit {
	if b == nil {
		return budgetLimit{}
	}
	return budgetLimit{b.limit.memory - b.memory, b.limit.prefixes - b.prefixes}
}

// left subtracts the prefixes that earlier requests of the same transaction used.
func (b *budget) left(before budgetLimit) {
	if b != nil {
		b.prefixes -= before.prefixes
		b.limit.prefixes -= before.prefixes
	}
}

// grow takes the given number of bytes from the memory budget, and reports whether they were
// available.
func (b *budget) grow(bytes int) bool {
	if b == nil {
		return true
	}
	b.memory -= bytes
	return b.memory >= 0
}

// tooMuch returns the error text for a budget that has no memory left.
func (b *budget) tooMuch() string {
	return fmt.Sprintf("up to here the request needs more than %d MiB of memory: split it into several requests", b.limit.memory>>20)
}

// take charges the prefixes of one element of a list to the budget; field is the path of that list.
func (b *budget) take(list []netip.Prefix, field string) *api.Error {
	if b == nil {
		return nil
	}
	if b.prefixes -= len(list); b.prefixes < 0 {
		return api.Errorf(api.ReasonCapacity, "up to here the request is more than %d prefixes, which is what table prefixes has room for: "+
			"a range of addresses can be many prefixes; use fewer or rounder ranges, or raise tables.prefixes in the configuration",
			b.limit.prefixes).At("", field)
	}
	if !b.grow(len(list) * prefixMemory) {
		return api.Errorf(api.ReasonCapacity, "%s", b.tooMuch()).At("", field)
	}
	return nil
}

// budgetOfFiles returns the budget of the object files, which root writes: only their prefixes are
// limited here, because everything else is limited by the file sizes.
func (s *Server) budgetOfFiles() *budget {
	b := s.budgetOf(Caller{Admin: true})
	return newBudget(math.MaxInt, b.prefixes)
}
