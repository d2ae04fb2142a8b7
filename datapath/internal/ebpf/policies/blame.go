// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"maps"
	"sync"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

// blame finds the policy that dropped a packet. It has a lock of its own, so that samples do not wait
// for a change that is being compiled.
type blame struct {
	mu    sync.RWMutex
	cells map[policy.CellID]policy.Cell // of the image in force
	next  map[policy.CellID]policy.Cell // of a new image, until it is in force; nil: none
	ports map[kernel.PolicyPortID]datapath.EndpointName
}

func newBlame() *blame {
	return &blame{cells: make(map[policy.CellID]policy.Cell), ports: make(map[kernel.PolicyPortID]datapath.EndpointName)}
}

// reset begins a new image, whose cells have other ids.
func (b *blame) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = make(map[policy.CellID]policy.Cell)
}

// publish records that the latest image is in force.
func (b *blame) publish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		b.cells, b.next = b.next, nil
	}
}

func (b *blame) add(cells map[policy.CellID]policy.Cell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	into := b.cells
	if b.next != nil {
		into = b.next
	}
	maps.Copy(into, cells)
}

func (b *blame) remove(cells []policy.CellID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range cells {
		delete(b.cells, id)
	}
}

// move records the port of an Endpoint. before: its earlier port.
func (b *blame) move(endpoint datapath.EndpointName, before, port kernel.PolicyPortID, attached bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ports[before] == endpoint {
		delete(b.ports, before)
	}
	if attached {
		b.ports[port] = endpoint
	}
}

// Blame returns the policy that dropped the packet of a sample; nil: it is unknown.
func (p *Policies) Blame(s *kernel.Sample) *datapath.PolicyDrop {
	b := p.blame
	b.mu.RLock()
	defer b.mu.RUnlock()
	cell, found := b.cells[policy.CellID(s.PolicyCell)]
	if !found {
		return nil
	}
	d := &datapath.PolicyDrop{Endpoint: b.ports[kernel.PolicyPortID(s.PolicyPort)], Direction: policy.Direction(s.PolicyWay & 1), Verdict: cell.Others.Enforced}
	if s.PolicyWay&2 != 0 {
		d.Verdict = cell.Self.Enforced
	}
	return d
}
