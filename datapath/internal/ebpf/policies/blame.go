// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

// blame finds the policy that dropped a packet. It has a lock of its own, so that samples do not wait
// for a change that is being compiled.
type blame struct {
	mu    sync.RWMutex
	cells cellNames  // of the image in force
	next  *cellNames // of a new image, until it is in force; nil: none
	ports map[kernel.PolicyPortID]datapath.EndpointName
}

// cellNames finds cells by their names in an image.
type cellNames struct {
	of    map[policy.CellID]policy.Cell
	named map[uint32]map[policy.CellID]bool
}

func newCellNames() cellNames {
	return cellNames{make(map[policy.CellID]policy.Cell), make(map[uint32]map[policy.CellID]bool)}
}

// nameOf returns the name of a cell in an image, which does not depend on the run that has written it.
func nameOf(cell policy.Cell) uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%#v", cell)
	return min(h.Sum32(), noCell-1)
}

const noCell = ^uint32(0) // POLICY_NO_CELL

func newBlame() *blame {
	return &blame{cells: newCellNames(), ports: make(map[kernel.PolicyPortID]datapath.EndpointName)}
}

// reset begins a new image, whose cells have other ids.
func (b *blame) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := newCellNames()
	b.next = &next
}

// publish records that the latest image is in force.
func (b *blame) publish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		b.cells, b.next = *b.next, nil
	}
}

func (b *blame) add(cells map[policy.CellID]policy.Cell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	into := b.cells
	if b.next != nil {
		into = *b.next
	}
	for id, cell := range cells {
		name := nameOf(cell)
		if into.named[name] == nil {
			into.named[name] = make(map[policy.CellID]bool)
		}
		into.of[id], into.named[name][id] = cell, true
	}
}

func (b *blame) remove(cells []policy.CellID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range cells {
		name := nameOf(b.cells.of[id])
		delete(b.cells.named[name], id)
		if len(b.cells.named[name]) == 0 {
			delete(b.cells.named, name)
		}
		delete(b.cells.of, id)
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
	named := b.cells.named[s.PolicyCell]
	if len(named) != 1 { // if several cells have the name by coincidence, it is not known which it was
		return nil
	}
	var cell policy.Cell
	for id := range named {
		cell = b.cells.of[id]
	}
	d := &datapath.PolicyDrop{Endpoint: b.ports[kernel.PolicyPortID(s.PolicyPort)], Direction: policy.Direction(s.PolicyWay & 1), Verdict: cell.Others.Enforced}
	if s.PolicyWay&2 != 0 {
		d.Verdict = cell.Self.Enforced
	}
	return d
}
