// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/hook"
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
func (p *ports) fitXDP(z *namespace, name datapath.PortName, t *port, l netlink.Link, mode datapath.XDPMode) (err error) {
	t.mode, t.mirrored = mode, p.isMirrored(t)
	mode = t.xdpMode()
	x := t.xdp()
	if x != nil && (x.Mode() != mode || !x.Attached()) {
		if err := x.Detach(); err != nil {
			return fmt.Errorf("device %q: detach %s: %w", t.device, x.Name(), err)
		}
		t.hooks = slices.DeleteFunc(slices.Clone(t.hooks), func(h hook.Attachment) bool { return h == x })
		x = nil
	}
	z.devices.setXDP(t.ifindex, mode)
	if mode == datapath.XDPOff {
		return nil
	}
	if x != nil {
		return x.Fit(l)
	}
	if x, err = z.AttachXDP(l, mode, p.folder(z.ID, name)); err != nil {
		return err
	}
	t.hooks = append(t.hooks, x)
	return nil
}

// isMirrored reports whether packets of a port must be copied from now on.
func (p *ports) isMirrored(t *port) bool {
	b := p.d.mirrors.Bypass(t.namespace, t.ifindex)
	return b.In || b.Out
}

// xdpMode returns the mode in which a port has the XDP program: off while packets of the port are
// copied, since XDP bypasses the programs of mirrors.
func (t *port) xdpMode() datapath.XDPMode {
	if t.mirrored {
		return datapath.XDPOff
	}
	return t.mode
}

// refitXDP attaches and detaches the XDP programs of ports after mirrors have changed.
func (p *ports) refitXDP() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, t := range p.byName {
		done := p.isMirrored(t) == t.mirrored && (t.xdp() == nil) == (t.xdpMode() == datapath.XDPOff)
		if len(t.hooks) == 0 || t.mode == datapath.XDPOff || done {
			continue
		}
		z, e := p.d.namespace(t.namespace)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		l, e := z.Netlink.LinkByIndex(t.ifindex)
		if errors.As(e, new(netlink.LinkNotFoundError)) {
			continue
		}
		if e == nil {
			e = p.fitXDP(z, name, t, l, t.mode)
		}
		err = errors.Join(err, e)
	}
	return err
}

// fitsXDP reports whether fitXDP has nothing to do.
func (t *port) fitsXDP(l netlink.Link) bool {
	x, mode := t.xdp(), t.xdpMode()
	if x == nil || mode == datapath.XDPOff {
		return x == nil && mode == datapath.XDPOff
	}
	return x.Mode() == mode && x.Fits(l)
}
