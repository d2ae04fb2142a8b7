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

// IsBefore returns a function that reports whether a direction of a connection, last seen at a tick,
// has not been evaluated since the rules were changed, as of now.
func (e *Epoch) IsBefore() (func(lastSeenTick uint32) bool, error) {
	var epoch kernel.Epoch
	if err := e.table.Lookup(uint32(kernel.EpochOfEPOCH_RULES), &epoch); err != nil {
		return nil, fmt.Errorf("epoch of the rules: %w", err)
	}
	return func(tick uint32) bool { return epoch.Count != 0 && int32(tick-epoch.ChangedTick) <= 0 }, nil
}

// RaisePorts causes the connections of ports to be evaluated again.
func (e *Epoch) RaisePorts(ports []kernel.PolicyPortID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return inOneTick(func(now uint32) error { return e.raisePorts(ports, now) })
}

// inOneTick calls raise until it begins and ends in the same tick: otherwise packets of the next tick
// could be seen before the change is, and would count as later.
func inOneTick(raise func(now uint32) error) error {
	for {
		now := kernel.NowTick()
		if err := raise(now); err != nil || kernel.NowTick() == now {
			return err
		}
	}
}

func (e *Epoch) raisePorts(ports []kernel.PolicyPortID, now uint32) error {
	change := func(of uint32, change func(*kernel.Epoch)) error {
		var epoch kernel.Epoch
		if err := e.table.Lookup(of, &epoch); err != nil {
			return fmt.Errorf("epoch of policies: %w", err)
		}
		change(&epoch)
		if err := e.table.Put(of, epoch); err != nil {
			return fmt.Errorf("epoch of policies: %w", err)
		}
		return nil
	}
	for _, port := range ports {
		if err := change(kernel.EpochOfPort(port), func(e *kernel.Epoch) { e.Count, e.ChangedTick = e.Count+1, now }); err != nil {
			return err
		}
	}
	// Last: packets read the epochs of their ports only if this one is new.
	return kernel.Step("raise last epoch", func() error {
		return change(uint32(kernel.EpochOfEPOCH_RULES), func(e *kernel.Epoch) { e.PortCount, e.PortChangedTick = e.PortCount+1, now })
	})
}

// Raise causes all existing connections to be evaluated again.
func (e *Epoch) Raise() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var epoch kernel.Epoch
	if err := e.table.Lookup(uint32(kernel.EpochOfEPOCH_RULES), &epoch); err != nil {
		return fmt.Errorf("epoch of the rules: %w", err)
	}
	epoch.Count++
	return inOneTick(func(now uint32) error {
		epoch.ChangedTick = now
		if err := e.table.Put(uint32(kernel.EpochOfEPOCH_RULES), epoch); err != nil {
			return fmt.Errorf("epoch of the rules: %w", err)
		}
		return nil
	})
}
