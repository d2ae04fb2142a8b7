// SPDX-License-Identifier: Apache-2.0

package port

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/namespace"
)

// xdp returns the XDP program on the device of a port, or nil.
func (t *port) xdp() *hook.XDP {
	for _, h := range t.hooks {
		if x, ok := h.(*hook.XDP); ok {
			return x
		}
	}
	return nil
}

// fitXDP adapts the XDP program to the wanted mode and the current state of the device.
func (p *Table) fitXDP(z *namespace.Namespace, name datapath.PortName, t *port, l netlink.Link, mode datapath.XDPMode) (err error) {
	t.mode, t.mirrored = mode, p.options.IsMirrored(t.namespace, t.ifindex)
	mode = t.xdpMode()
	x := t.xdp()
	if x != nil && (x.Mode() != mode || !x.Attached()) {
		if err := x.Detach(); err != nil {
			return fmt.Errorf("device %q: detach %s: %w", t.device, x.Name(), err)
		}
		t.hooks = slices.DeleteFunc(slices.Clone(t.hooks), func(h hook.Attachment) bool { return h == x })
		x = nil
	}
	z.Devices.SetXDP(t.ifindex, mode)
	if mode == datapath.XDPOff {
		return nil
	}
	if x != nil {
		return x.Fit(l)
	}
	if x, err = z.AttachXDP(l, mode, p.Folder(z.ID, name)); err != nil {
		return err
	}
	t.hooks = append(t.hooks, x)
	return nil
}

// xdpMode returns the mode in which a port has the XDP program: off while packets of the port are
// copied, since XDP bypasses the programs of mirrors.
func (t *port) xdpMode() datapath.XDPMode {
	if t.mirrored {
		return datapath.XDPOff
	}
	return t.mode
}

// RefitXDP detaches the XDP programs of ports that are mirrored now, and attaches those of ports that
// are no longer mirrored. If the latter fails, this is not a fault of a mirror: the port's own
// verification finds the program missing.
func (p *Table) RefitXDP() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, t := range p.byName {
		mirrored := p.options.IsMirrored(t.namespace, t.ifindex)
		if len(t.hooks) == 0 || t.mode == datapath.XDPOff || mirrored == t.mirrored && (!mirrored || t.xdp() == nil) {
			continue
		}
		e := p.refitXDP(name, t)
		if e != nil && !mirrored {
			p.options.Log.Warn("a port that is no longer mirrored lacks its XDP program; retrying", "port", describe(name), "error", e)
			p.options.Signal()
			continue
		}
		err = errors.Join(err, e)
	}
	return err
}

func (p *Table) refitXDP(name datapath.PortName, t *port) error {
	z, err := p.namespaces.Open(t.namespace)
	if err != nil {
		return err
	}
	l, err := z.Netlink.LinkByIndex(t.ifindex)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.fitXDP(z, name, t, l, t.mode)
}

// fitsXDP reports whether fitXDP has nothing to do.
func (t *port) fitsXDP(l netlink.Link) bool {
	x, mode := t.xdp(), t.xdpMode()
	if x == nil || mode == datapath.XDPOff {
		return x == nil && mode == datapath.XDPOff
	}
	return x.Mode() == mode && x.Fits(l)
}
