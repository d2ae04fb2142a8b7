// SPDX-License-Identifier: Apache-2.0

package snat

import (
	"errors"
	"fmt"
	"sync"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// portWords is the number of words with a bit for each port. ll_port_taken has so many for the ports
// that are taken, then so many for the targets.
const portWords = 1 << 16 / 64

// Targets are the ports to which services and NAT rules lead. Connections between the node itself and
// these ports are tracked, because a translated connection may have the same addresses and ports.
// Targets is safe for concurrent use.
type Targets struct {
	tables *kernel.Tables

	mu       sync.Mutex
	backends [1 << 16]uint32 // the number of backends with this port
	rules    [portWords]uint64
	written  [portWords]uint64
	settled  bool
}

// AdoptTargets returns the targets. Until [Targets.Settle], the ports that an earlier run wrote stay.
func AdoptTargets(tables *kernel.Tables) (*Targets, error) {
	t := &Targets{tables: tables}
	for i := range t.written {
		if err := tables.PortTaken.Lookup(uint32(portWords+i), &t.written[i]); err != nil {
			return nil, fmt.Errorf("ports to which services lead: %w", err)
		}
	}
	return t, nil
}

// Settle removes the ports of an earlier run to which nothing leads any more.
func (t *Targets) Settle() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled = true
	for i := range t.written {
		err = errors.Join(err, t.write(i))
	}
	return err
}

// Add records a backend with this port. The port is in force when Add returns.
func (t *Targets) Add(port uint16) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.backends[port]++
	if t.backends[port] > 1 {
		return nil
	}
	err := t.write(int(port / 64))
	if err != nil {
		t.backends[port]--
	}
	return err
}

// Remove forgets a backend with this port.
func (t *Targets) Remove(port uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.backends[port]--
	if t.backends[port] == 0 {
		_ = t.write(int(port / 64)) // a port too many does no harm
	}
}

// SetRules replaces the ports to which NAT rules lead.
func (t *Targets) SetRules(ports *[1 << 16]bool) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rules = [portWords]uint64{}
	for port, is := range ports {
		if is {
			t.rules[port/64] |= 1 << (port % 64)
		}
	}
	for i := range t.rules {
		err = errors.Join(err, t.write(i))
	}
	return err
}

// write writes a word, if it has changed; t.mu is held.
func (t *Targets) write(i int) error {
	word := t.rules[i]
	for bit := range 64 {
		if t.backends[i*64+bit] > 0 {
			word |= 1 << bit
		}
	}
	if !t.settled {
		word |= t.written[i]
	}
	if word == t.written[i] {
		return nil
	}
	if err := t.tables.PortTaken.Put(uint32(portWords+i), word); err != nil {
		return fmt.Errorf("ports to which services lead: %w", err)
	}
	t.written[i] = word
	return nil
}
