// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/overlay"
)

// loopbackPort is the port for packets from the host to its own addresses. It has only the egress
// program.
const loopbackPort = datapath.PortName(overlay.InnerPrefix + "link lo")

// followLoopback keeps our program attached to the host's loopback device while it may be needed:
// if a frontend or a DNAT rule exists, and the host has ports.
func (p *ports) followLoopback() error {
	if err := p.holdLoopback(p.options.NeedsLoopback()); err != nil {
		return fmt.Errorf("loopback, for packets of the host to its own addresses: %w", err)
	}
	return nil
}

// soonOnLoopback is followLoopback after a change that may need it. Errors are ignored: the next
// followLoopback tries again and reports them.
func (p *ports) soonOnLoopback() {
	if !p.onLoopback.Load() {
		_ = p.followLoopback()
	}
}

// holdLoopback attaches the program to the loopback device, or detaches it.
func (p *ports) holdLoopback(wanted bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	others := 0
	for name, t := range p.byName {
		if name != loopbackPort && t.namespace == netnsHost && len(t.hooks) > 0 {
			others++
		}
	}
	t := p.byName[loopbackPort]
	if !wanted || others == 0 {
		if t == nil {
			return nil
		}
		delete(p.byName, loopbackPort)
		p.onLoopback.Store(false)
		return p.detach(loopbackPort, t)
	}
	z, err := p.namespaces.Open(netnsHost)
	if err != nil {
		return err
	}
	folder := p.folder(netnsHost, loopbackPort)
	if t != nil {
		if err := p.mend(loopbackPort, t); err != nil {
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
func (p *ports) attachLoopback(z *namespace.Namespace, t *port, folder string) (err error) {
	if t != nil {
		if err := p.detach(loopbackPort, t); err != nil {
			return err
		}
	}
	t = &port{namespace: netnsHost, device: "lo", ifindex: hook.LoopbackIndex}
	if t.hooks, err = z.Attach(p.options.Attach, folder, hook.LoopbackIndex); err != nil {
		return err
	}
	p.byName[loopbackPort] = t
	return nil
}
