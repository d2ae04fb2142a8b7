// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/api"
)

// prefixMemory is the charge for one parsed prefix, in bytes: the prefix itself, and the spare
// capacity of a growing list.
const prefixMemory = 64

// EntryMemory is the charge for a map entry in addition to its key, in bytes.
const EntryMemory = 96

// Budget limits how far a request expands: 13 bytes of text can become 128 prefixes, and 3 bytes an
// object. A nil budget is unlimited; it is used to decode stored objects. A budget is not safe for
// concurrent use.
type Budget struct {
	left  Amount
	limit Amount
}

// Amount is the content of a budget, or a part of it.
type Amount struct {
	Memory   int // bytes
	Prefixes int
}

// NewBudget returns a budget of so much memory, in bytes, and so many prefixes.
func NewBudget(memory, prefixes int) *Budget {
	a := Amount{Memory: memory, Prefixes: prefixes}
	return &Budget{left: a, limit: a}
}

// Used returns how much of the budget is spent.
func (b *Budget) Used() Amount {
	if b == nil {
		return Amount{}
	}
	return Amount{Memory: b.limit.Memory - b.left.Memory, Prefixes: b.limit.Prefixes - b.left.Prefixes}
}

// DeductPrefixes subtracts the prefixes that earlier requests of the same transaction used.
func (b *Budget) DeductPrefixes(count int) {
	if b != nil {
		b.left.Prefixes -= count
		b.limit.Prefixes -= count
	}
}

// TakeMemory takes the given number of bytes from the memory budget, and reports whether they were
// available.
func (b *Budget) TakeMemory(bytes int) bool {
	if b == nil {
		return true
	}
	b.left.Memory -= bytes
	return b.left.Memory >= 0
}

// TooMuch returns the error text for a budget that has no memory left.
func (b *Budget) TooMuch() string {
	return fmt.Sprintf("up to here the request needs more than %d MiB of memory: split it into several requests", b.limit.Memory>>20)
}

// TakePrefixes charges the prefixes of one element of a list to the budget; field is the path of
// that list.
func (b *Budget) TakePrefixes(list []netip.Prefix, field string) *api.Error {
	if b == nil {
		return nil
	}
	if b.left.Prefixes -= len(list); b.left.Prefixes < 0 {
		return api.Errorf(api.ReasonCapacity, "up to here the request contains more than %d prefixes, which is the size of table prefixes: "+
			"a range of addresses can be many prefixes; use fewer or rounder ranges, or raise tables.prefixes in the configuration",
			b.limit.Prefixes).At("", field)
	}
	if !b.TakeMemory(len(list) * prefixMemory) {
		return api.Errorf(api.ReasonCapacity, "%s", b.TooMuch()).At("", field)
	}
	return nil
}
