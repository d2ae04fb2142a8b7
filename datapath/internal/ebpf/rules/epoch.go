// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"sync"

	"github.com/loxilight/loxilight/datapath/internal/bpfmap"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// Epoch is the number of the rule set in force. Connections that an older rule set allowed are
// evaluated again.
type Epoch struct {
	table *bpfmap.Map[uint32, kernel.Epoch]
	mu    sync.Mutex
}

// NewEpoch returns the epoch in the tables.
func NewEpoch(t *kernel.Tables) *Epoch { return &Epoch{table: &t.Epoch} }

// Raise causes all existing connections to be evaluated again.
func (e *Epoch) Raise() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var epoch kernel.Epoch
	if err := e.table.Lookup(uint32(kernel.EpochOfEPOCH_RULES), &epoch); err != nil {
		return fmt.Errorf("epoch of the rules: %w", err)
	}
	epoch.Count++
	epoch.ChangedTick = kernel.NowTick()
	if err := e.table.Put(uint32(kernel.EpochOfEPOCH_RULES), epoch); err != nil {
		return fmt.Errorf("epoch of the rules: %w", err)
	}
	return nil
}
