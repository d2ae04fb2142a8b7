// SPDX-License-Identifier: Apache-2.0

package port

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/pin"
)

// This run's programs replace an earlier run's in one of two ways. If both use the same maps, the
// programs are exchanged, which loses nothing. If maps differ, shadow programs of this run first
// run before the old programs (config_shadow): they open new connections, and leave connections
// that only the old programs know to the old programs. From then on the old maps no longer grow, so
// they can be copied; then the old programs are removed.

// Adopt takes over the ports of an earlier run, and replaces its programs by this run's: all in one
// go, since until then some programs may use different maps from the rest.
func (p *Table) Adopt(r *pin.Replacements) error {
	p.mu.Lock() // devices are followed already, and removed filters reported
	defer p.mu.Unlock()
	for _, namespace := range []uint8{hook.Host, hook.Switch} {
		folders, err := os.ReadDir(filepath.Join(p.options.Dir, strconv.Itoa(int(namespace))))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, f := range folders {
			if err := p.openOne(namespace, pin.PortOf(f.Name())); err != nil {
				return fmt.Errorf("take over port %q of an earlier run: %w", pin.PortOf(f.Name()), err)
			}
		}
	}
	p.options.InUse.Store(slices.ContainsFunc(slices.Collect(maps.Values(p.byName)), func(t *port) bool { return len(t.hooks) > 0 }))
	if err := p.takeOver(r); err != nil {
		return err
	}
	kernel.Synchronize() // Finish removes what earlier programs call
	attached := make(map[uint8]map[int]bool)
	err := p.each(func(t *port, h hook.Attachment) error {
		if err := kernel.Step("settle "+h.Name(), h.Finish); err != nil || t.ifindex == 0 || t.ifindex == hook.LoopbackIndex {
			return err
		}
		z, err := p.namespaces.Open(t.namespace)
		if err != nil {
			return err
		}
		if attached[t.namespace] == nil {
			attached[t.namespace] = make(map[int]bool)
		}
		attached[t.namespace][t.ifindex] = true
		if x := t.xdp(); x != nil {
			z.Devices.SetXDP(t.ifindex, x.Mode())
		}
		return nil
	})
	for _, z := range p.namespaces.InUse() {
		if err == nil && z.Devices != nil {
			err = z.Devices.KeepPorts(attached[z.ID])
		}
	}
	if err != nil {
		return err
	}
	for name, t := range p.byName {
		if of, is := name.Endpoint(); is && t.ifindex != 0 && len(t.hooks) > 0 {
			p.options.EndpointKept(of, t.namespace, t.ifindex)
		}
	}
	return p.forgetGuards()
}

// WarnOfOtherHooks logs the ports that keep a kind of hook from an earlier run although another
// kind is configured.
func (p *Table) WarnOfOtherHooks() {
	want := p.options.Attach
	if want == "" {
		return
	}
	for name, t := range p.byName {
		for _, h := range t.hooks {
			if !strings.HasPrefix(h.Name(), want+"-") && !strings.HasPrefix(h.Name(), "xdp") {
				p.options.Log.Warn("a port keeps the hooks of an earlier run instead of the configured datapath.attach; stop loxilightd, run llcli detach, and start loxilightd again",
					"port", string(name), "hook", h.Name(), "configured", want)
				break
			}
		}
	}
}

// each calls f for every hook of every port.
func (p *Table) each(f func(*port, hook.Attachment) error) error {
	for name, t := range p.byName {
		for _, h := range t.hooks {
			if err := f(t, h); err != nil {
				return fmt.Errorf("take over port %q of an earlier run, %s: %w", name, h.Name(), err)
			}
		}
	}
	return nil
}

// openOne opens the pins of a port, and changes nothing.
func (p *Table) openOne(id uint8, name datapath.PortName) error {
	t := &port{namespace: id}
	p.byName[name] = t
	z, err := p.namespaces.Open(id)
	if errors.Is(err, datapath.ErrAbsent) {
		return nil // its namespace is gone, and the device with it
	}
	if err != nil {
		return err
	}
	t.hooks, t.ifindex, err = z.OpenAttachments(p.Folder(id, name))
	return err
}

// takeOver replaces the programs of all hooks.
func (p *Table) takeOver(r *pin.Replacements) error {
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
func (p *Table) precedeHook(_ *port, h hook.Attachment) error {
	if err := kernel.AtStep("precede " + h.Name()); err != nil {
		return err
	}
	if err := h.AttachShadow(); err != nil {
		p.options.Log.Warn("the programs of an earlier run are replaced without a transition; connections that are being opened may be lost", "hook", h.Name(), "error", err)
	}
	return nil
}

// AnnounceFirst records whether shadow programs run before others: if so, programs honour the mark
// of a handled packet.
func (p *Table) AnnounceFirst(there bool) error {
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
func (p *Table) loadFirst() error {
	return p.each(func(t *port, _ hook.Attachment) error {
		z, err := p.namespaces.Open(t.namespace)
		if err != nil {
			return err
		}
		if err := z.LoadShadow(p.options.Programs, p.options.Maps); err != nil {
			return err
		}
		return p.AnnounceFirst(true)
	})
}
