// SPDX-License-Identifier: Apache-2.0

package port

import (
	"errors"
	"os"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/keeper"
)

// KeepWith makes a keeper preserve the pins of all ports.
func (p *Table) KeepWith(k *keeper.Keeper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keeper = k
	for name, t := range p.byName {
		k.Noted(p.Folder(t.namespace, name))
	}
}

// AreAttached reports whether programs are attached to a port, and sets Options.InUse accordingly.
func (p *Table) AreAttached() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, t := range p.byName {
		if len(t.hooks) > 0 {
			p.options.InUse.Store(true)
			return true
		}
	}
	p.options.InUse.Store(false)
	return false
}

// Each implements [keeper.Ports].
func (p *Table) Each(f func(keeper.Port)) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for name, t := range p.byName {
		if len(t.hooks) > 0 && t.ifindex != 0 {
			f(p.kept(name, t))
		}
	}
}

// Locked implements [keeper.Ports].
func (p *Table) Locked(names []datapath.PortName, f func(keeper.Port)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		if t := p.byName[name]; t != nil && len(t.hooks) > 0 {
			f(p.kept(name, t))
		}
	}
}

// Describe implements [keeper.Ports].
func (p *Table) Describe(name datapath.PortName) string { return describe(name) }

func (p *Table) kept(name datapath.PortName, t *port) keeper.Port {
	return keeper.Port{Name: name, Netns: t.namespace, Folder: p.Folder(t.namespace, name), Hooks: t.hooks}
}

// mend restores pins that another program removed, so that no hook has to be detached. p.mu is
// held.
func (p *Table) mend(name datapath.PortName, t *port) error {
	if p.keeper != nil {
		return p.keeper.Mend(p.kept(name, t))
	}
	err := os.MkdirAll(p.Folder(t.namespace, name), 0o700)
	for _, h := range t.hooks {
		_, e := h.Repin()
		err = errors.Join(err, e)
	}
	return err
}

// Attached is a port as others see it.
type Attached struct {
	Netns   uint8
	Device  string // empty: from an earlier run
	Ifindex int    // 0: the device is gone
	Hooks   []hook.Attachment
	XDP     datapath.XDPMode // wanted mode
	// Mirrored: packets of the port are copied, so that it has no XDP program.
	Mirrored bool
}

// Get returns a port with the programs on its device, even if these belong to another port.
func (p *Table) Get(name datapath.PortName) (Attached, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	t := p.byName[name]
	if t == nil {
		return Attached{}, false
	}
	return p.withHooks(t).seen(), true
}

// All returns all ports, each with the programs that belong to it.
func (p *Table) All() map[datapath.PortName]Attached {
	p.mu.RLock()
	defer p.mu.RUnlock()
	all := make(map[datapath.PortName]Attached, len(p.byName))
	for name, t := range p.byName {
		all[name] = t.seen()
	}
	return all
}

// Of returns the port that has the programs on a device.
func (p *Table) Of(namespace uint8, index int) (Attached, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	t := p.byName[p.holder(namespace, index)]
	if t == nil {
		return Attached{}, false
	}
	return t.seen(), true
}

func (t *port) seen() Attached {
	return Attached{Netns: t.namespace, Device: t.device, Ifindex: t.ifindex, Hooks: t.hooks, XDP: t.mode, Mirrored: t.mirrored}
}
