// SPDX-License-Identifier: Apache-2.0

package port

import (
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
	t.mode = mode
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

// fitsXDP reports whether fitXDP has nothing to do.
func (t *port) fitsXDP(l netlink.Link) bool {
	x := t.xdp()
	if x == nil || t.mode == datapath.XDPOff {
		return x == nil && t.mode == datapath.XDPOff
	}
	return x.Mode() == t.mode && x.Fits(l)
}
