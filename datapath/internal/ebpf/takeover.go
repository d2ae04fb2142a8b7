// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"fmt"

	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// This run's programs replace an earlier run's in one of two ways. If both use the same maps, the
// programs are exchanged, which loses nothing. If maps differ, shadow programs of this run first
// run before the old programs (config_shadow): they open new connections, and leave connections
// that only the old programs know to the old programs. From then on the old maps no longer grow, so
// they can be copied; then the old programs are removed.

// takeOver replaces the programs of all hooks.
func (p *ports) takeOver(r *pin.Replacements) error {
	defer kernel.Synchronize() // the next step removes what earlier programs call
	if !r.Apart() {
		return p.each(replaceHook)
	}
	if err := p.loadFirst(); err != nil {
		return err
	}
	// Copy entries that were added since the copy began; the shadow programs cannot distinguish the
	// next datagram of a new flow from its first.
	if err := r.CatchUp(); err != nil {
		return err
	}
	if err := p.each(p.precedeHook); err != nil {
		return err
	}
	kernel.Synchronize()
	if err := r.CatchUp(); err != nil {
		return err
	}
	if err := p.each(replaceHook); err != nil {
		return err
	}
	return r.CatchUp()
}

func replaceHook(_ *port, h hook.Attachment) error {
	return kernel.Step("replace "+h.Name(), h.Replace)
}

// precedeHook attaches the shadow program to a hook. It skips a hook before which no program can
// run: there the exchange loses connections that are just being opened.
func (p *ports) precedeHook(_ *port, h hook.Attachment) error {
	if err := kernel.AtStep("precede " + h.Name()); err != nil {
		return err
	}
	if err := h.AttachShadow(); err != nil {
		p.options.Log.Warn("the programs of an earlier run are replaced without a transition; connections that are being opened may be lost", "hook", h.Name(), "error", err)
	}
	return nil
}

// announceFirst records whether shadow programs run before others: if so, programs honour the mark
// of a handled packet.
func (p *ports) announceFirst(there bool) error {
	var value uint32
	if there {
		value = 1
	}
	if err := p.options.Tables.Shadow.Put(uint32(0), value); err != nil {
		return fmt.Errorf("publish which programs run first: %w", err)
	}
	return nil
}

// loadFirst loads and announces the shadow programs in all namespaces that have hooks.
func (p *ports) loadFirst() error {
	return p.each(func(t *port, _ hook.Attachment) error {
		z, err := p.namespaces.Open(t.namespace)
		if err != nil {
			return err
		}
		if err := z.LoadShadow(p.options.Programs, p.options.Maps); err != nil {
			return err
		}
		return p.announceFirst(true)
	})
}
