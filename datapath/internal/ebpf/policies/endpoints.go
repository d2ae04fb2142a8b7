// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"fmt"
	"net/netip"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/policy"
)

// Attach reports that an Endpoint has a port, to which no programs are attached yet: its policies are
// in force when it returns.
func (p *Policies) Attach(endpoint datapath.EndpointName, port kernel.PolicyPortID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.portOf[string(endpoint)] == port {
		return nil
	}
	if err := p.rewrite(); err != nil {
		return err
	}
	if p.image == nil && (p.word != 0 || p.failed) {
		return fmt.Errorf("policies exist and are not in force yet; the endpoint is attached once they are")
	}
	p.place(endpoint, port)
	return p.refresh(string(endpoint))
}

// place records the port of an Endpoint.
func (p *Policies) place(endpoint datapath.EndpointName, port kernel.PolicyPortID) {
	p.ledger.move(endpoint, p.portOf[string(endpoint)], port, true)
	p.portOf[string(endpoint)] = port
}

// Keep reports the port of an Endpoint that an earlier run has attached.
func (p *Policies) Keep(endpoint datapath.EndpointName, port kernel.PolicyPortID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.place(endpoint, port)
}

// Detach reports that an Endpoint has no port any more.
func (p *Policies) Detach(endpoint datapath.EndpointName) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	port, attached := p.portOf[string(endpoint)]
	if !attached {
		return nil
	}
	if err := p.rewrite(); err != nil {
		return err
	}
	p.ledger.move(endpoint, port, 0, false)
	delete(p.portOf, string(endpoint))
	return p.refresh(string(endpoint))
}

// refresh writes what depends on the port of an Endpoint.
func (p *Policies) refresh(endpoint string) error {
	if p.image == nil {
		return nil // the first change of this run writes all
	}
	if err := p.writeRecord(0); err != nil {
		return err
	}
	p.rest()
	change := &policy.Change{Node: p.node, Addrs: make(map[netip.Addr]policy.Address), Concerned: map[string]bool{endpoint: true}}
	for addr, of := range p.names {
		if of == endpoint {
			change.Addrs[addr] = policy.Address{Class: policy.Class(p.addrs[addr].Class[p.side()]), Endpoint: endpoint}
		}
	}
	err := p.commit(change)
	if p.failed = err != nil; p.failed {
		p.drop()
	}
	return err
}
