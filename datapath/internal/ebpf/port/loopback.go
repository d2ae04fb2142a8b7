// SPDX-License-Identifier: Apache-2.0

package port

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// Loopback is the port for packets from the host to its own addresses. It has only the egress
// program.
const Loopback = datapath.PortName(overlay.InnerPrefix + "link lo")

// FollowLoopback keeps our program attached to the host's loopback device while it may be needed:
// if a frontend or a DNAT rule exists, and the host has ports.
func (p *Table) FollowLoopback() error {
	if err := p.holdLoopback(p.options.NeedsLoopback()); err != nil {
		return fmt.Errorf("loopback, for packets of the host to its own addresses: %w", err)
	}
	return nil
}

// SoonOnLoopback is FollowLoopback after a change that may need it. Errors are ignored: the next
// FollowLoopback tries again and reports them.
func (p *Table) SoonOnLoopback() {
	if !p.onLoopback.Load() {
		_ = p.FollowLoopback()
	}
}

// holdLoopback attaches the program to the loopback device, or detaches it.
func (p *Table) holdLoopback(wanted bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	others := 0
	for name, t := range p.byName {
		if name != Loopback && t.namespace == hook.Host && len(t.hooks) > 0 {
			others++
		}
	}
	t := p.byName[Loopback]
	if !wanted || others == 0 {
		if t == nil {
			return nil
		}
		delete(p.byName, Loopback)
		p.onLoopback.Store(false)
		return p.detach(Loopback, t)
	}
	z, err := p.namespaces.Open(hook.Host)
	if err != nil {
		return err
	}
	folder := p.Folder(hook.Host, Loopback)
	if t != nil && !t.attached() { // perhaps only its pin is missing
		if err := p.mend(Loopback, t); err != nil {
			return err
		}
	}
	if t == nil || !t.attached() {
		if err := p.attachLoopback(z, t, folder); err != nil {
			return err
		}
	}
	p.onLoopback.Store(true)
	repaired, err := z.AcceptLocalSources(folder)
	p.keeper.Noted(folder)
	p.keeper.Repaired(repaired)
	return err
}

// attachLoopback attaches to the loopback device; t is the port from an earlier attempt, or nil.
func (p *Table) attachLoopback(z *namespace.Namespace, t *port, folder string) (err error) {
	if t != nil {
		if err := p.detach(Loopback, t); err != nil {
			return err
		}
	}
	t = &port{namespace: hook.Host, device: "lo", ifindex: hook.LoopbackIndex}
	if t.hooks, err = z.Attach(p.options.Attach, folder, hook.LoopbackIndex); err != nil {
		return err
	}
	p.byName[Loopback] = t
	return nil
}
