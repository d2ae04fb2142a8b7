// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// expiredKept is how long addresses are kept after new connections may no longer use them: a denial names
// the name to which they belonged, and connections that run may be evaluated again.
const expiredKept = 24 * time.Hour

const sweepInterval = time.Minute

// SweepNames deletes the addresses of names that expired long ago, and the addresses of names of no policy,
// if that was not done for a minute.
func (p *Policies) SweepNames() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.swept) < sweepInterval || p.domains.last == 0 {
		return nil
	}
	p.swept = time.Now()
	return p.sweep(expiredKept)
}

// sweep deletes the addresses that expired longer ago than a time. A program does so, since it updates the
// number of addresses of a name without losing a change by another program.
func (p *Policies) sweep(kept time.Duration) error {
	if p.sweeper == nil {
		program, err := loadSweeper(p.Maps)
		if err != nil {
			return fmt.Errorf("load program %s: %w", kernel.NamesProgLlNamesSweep, err)
		}
		p.sweeper = program
	}
	var ctx [44]uint32 // struct __sk_buff
	ctx[2] = uint32(kept >> kernel.TickShift)
	if _, err := p.sweeper.Run(&ebpf.RunOptions{Data: make([]byte, 64), Context: ctx[:]}); err != nil {
		return fmt.Errorf("delete expired addresses of names: %w", err)
	}
	return nil
}

// Close releases what the table needs of the kernel; policies stay in force.
func (p *Policies) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sweeper == nil {
		return nil
	}
	err := p.sweeper.Close()
	p.sweeper = nil
	return err
}

func loadSweeper(maps map[string]*ebpf.Map) (*ebpf.Program, error) {
	s, err := kernel.LoadNames()
	if err != nil {
		return nil, err
	}
	delete(s.Programs, kernel.NamesProgLlTcNames)
	replace := make(map[string]*ebpf.Map)
	for name, m := range s.Maps {
		m.Pinning = ebpf.PinNone
		if !strings.HasPrefix(name, "ll_") {
			continue // constants
		}
		if !uses(s.Programs[kernel.NamesProgLlNamesSweep], name) {
			delete(s.Maps, name)
		} else if shared := kernel.SharedMap(maps, name); shared != nil {
			replace[name], m.MaxEntries = shared, shared.MaxEntries()
		}
	}
	c, err := ebpf.NewCollectionWithOptions(s, ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	program := c.DetachProgram(kernel.NamesProgLlNamesSweep)
	if program == nil {
		return nil, errors.New("it is not in its object")
	}
	return program, nil
}

// uses reports whether a program refers to a map.
func uses(p *ebpf.ProgramSpec, name string) bool {
	for i := range p.Instructions {
		if ins := &p.Instructions[i]; ins.IsLoadFromMap() && ins.Reference() == name {
			return true
		}
	}
	return false
}
