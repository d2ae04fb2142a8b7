// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/ebpf/kernel"
)

// xdp is the XDP program on a device: the fast path, and nothing else. All other packets take the
// tc hooks, so the program can be attached and detached at any time.
type xdp struct {
	pinnedLink
	namespace *namespace
	mode      datapath.XDPMode
	made      xdpConstants // constants of this run's program; zero: an earlier run's program
}

// xdpConstants are the constants of a device's own copy of the program.
type xdpConstants struct {
	ifindex       uint32
	macHigh       uint32
	macLow        uint16
	leave         uint32 // required flag of a next hop
	turn, generic uint8
	pieces        uint8 // frames may consist of several buffers
}

// inPieces enables frames in several buffers, for an MTU that exceeds one buffer. This costs some
// speed and requires Linux 5.18, so it is tried last.
func (c xdpConstants) inPieces() xdpConstants {
	c.pieces = 1
	return c
}

// xdpPin returns the name of the pin, which contains the mode.
func xdpPin(mode datapath.XDPMode) string { return "xdp_" + mode.String() }

// xdpModes are the modes with a program.
var xdpModes = []datapath.XDPMode{datapath.XDPGeneric, datapath.XDPNative}

// openXDP opens the XDP pins in a folder: one, or none during a change of mode.
func openXDP(z *namespace, folder string, pins []fs.DirEntry) (found []*xdp, err error) {
	for _, mode := range xdpModes {
		if !slices.ContainsFunc(pins, func(e fs.DirEntry) bool { return e.Name() == xdpPin(mode) }) {
			continue
		}
		p, err := openLink(filepath.Join(folder, xdpPin(mode)))
		if err != nil {
			return nil, err
		}
		found = append(found, &xdp{pinnedLink: p, namespace: z, mode: mode})
	}
	return found, nil
}

// xdp returns the XDP hook, or nil.
func (t *port) xdp() *xdp {
	for _, h := range t.hooks {
		if x, ok := h.(*xdp); ok {
			return x
		}
	}
	return nil
}

// fitXDP adapts the XDP program to the wanted mode and the current state of the device.
func (p *ports) fitXDP(z *namespace, name datapath.PortName, t *port, l netlink.Link, mode datapath.XDPMode) error {
	t.mode = mode
	x := t.xdp()
	if x != nil && (x.mode != mode || !x.attached()) {
		if err := x.detach(); err != nil {
			return fmt.Errorf("device %q: detach %s: %w", t.device, x.name(), err)
		}
		t.hooks = slices.DeleteFunc(t.hooks, func(h hook) bool { return h == x })
		x = nil
	}
	z.devices.setXDP(t.ifindex, mode)
	if mode == datapath.XDPOff {
		return nil
	}
	want, err := z.xdpConstants(l, mode)
	if err != nil || x != nil && x.isMade(want) {
		return err
	}
	if x != nil {
		return x.exchange(want)
	}
	made, err := z.installXDP(want, func(program *ebpf.Program) (err error) {
		x, err = z.attachXDP(l, mode, program, p.folder(z.id, name))
		return err
	})
	if err != nil {
		return z.refusedXDP(l.Attrs(), mode, err)
	}
	x.made = made
	t.hooks = append(t.hooks, x)
	return nil
}

// isMade reports whether the program was loaded with these constants.
func (x *xdp) isMade(want xdpConstants) bool {
	want.pieces = x.made.pieces
	return x.made == want
}

// installXDP loads the program with constants, and attaches it with put. If that fails, it tries
// the program for frames in several buffers.
func (z *namespace) installXDP(want xdpConstants, put func(*ebpf.Program) error) (xdpConstants, error) {
	err := z.putXDP(want, put)
	if err == nil || want.generic != 0 || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENODEV) {
		return want, err
	}
	want = want.inPieces()
	if z.putXDP(want, put) == nil {
		return want, nil
	}
	return want, err // of the first attempt
}

func (z *namespace) putXDP(c xdpConstants, put func(*ebpf.Program) error) error {
	program, err := z.loadXDP(c)
	if err != nil {
		return err
	}
	defer program.Close() // the device or link holds it
	return put(program)
}

// exchange replaces the program by a copy with other constants.
func (x *xdp) exchange(want xdpConstants) error {
	made, err := x.namespace.installXDP(want, x.update)
	if err == nil {
		x.made = made
	}
	return err
}

// fitsXDP reports whether fitXDP has nothing to do.
func (z *namespace) fitsXDP(t *port, l netlink.Link) bool {
	x := t.xdp()
	if x == nil || t.mode == datapath.XDPOff {
		return x == nil && t.mode == datapath.XDPOff
	}
	want, err := z.xdpConstants(l, t.mode)
	return err == nil && x.mode == t.mode && x.attached() && x.isMade(want)
}

func (z *namespace) xdpConstants(l netlink.Link, mode datapath.XDPMode) (c xdpConstants, err error) {
	bounded, err := z.bounded()
	if err != nil {
		return c, err
	}
	a := l.Attrs()
	c.ifindex = uint32(a.Index)
	if mac := a.HardwareAddr; len(mac) == 6 {
		c.macHigh, c.macLow = binary.NativeEndian.Uint32(mac), binary.NativeEndian.Uint16(mac[4:])
	}
	c.leave = kernel.NexthopXDPXmit
	if mode == datapath.XDPGeneric {
		c.leave, c.generic = kernel.NexthopNoQdisc, 1
	}
	// All drivers with XDP support XDP_TX, but a veth only if its peer can receive frames.
	if l.Type() != "veth" && !bounded[a.Index] {
		c.turn = 1
	}
	return c, nil
}

// loadXDP loads the program for a device.
func (z *namespace) loadXDP(c xdpConstants) (*ebpf.Program, error) {
	load := func() (*ebpf.CollectionSpec, error) {
		s, err := kernel.LoadShortest()
		if err != nil {
			return nil, err
		}
		for name, value := range map[string]any{
			kernel.ShortestVarConfigIfindex: c.ifindex, kernel.ShortestVarConfigMacHigh: c.macHigh, kernel.ShortestVarConfigMacLow: c.macLow,
			kernel.ShortestVarConfigLeave: c.leave, kernel.ShortestVarConfigTurn: c.turn, kernel.ShortestVarConfigGeneric: c.generic, kernel.ShortestVarConfigPieces: c.pieces,
		} {
			if err := s.Variables[name].Set(value); err != nil {
				return nil, err
			}
		}
		if c.pieces != 0 {
			s.Programs[kernel.ShortestProgLlXdp].Flags |= unix.BPF_F_XDP_HAS_FRAGS
		}
		return s, nil
	}
	program, err := loadProgram(copyOf{load, kernel.ShortestProgLlXdp, z.id, false}, z.maps, 0)
	if err != nil {
		return nil, refusedProgram(kernel.ShortestProgLlXdp, z.id, err)
	}
	return program, nil
}

// attachXDP attaches the program if no other program is attached, and pins it.
func (z *namespace) attachXDP(l netlink.Link, mode datapath.XDPMode, program *ebpf.Program, folder string) (*xdp, error) {
	a := l.Attrs()
	flags := link.XDPDriverMode
	if mode == datapath.XDPGeneric {
		flags = link.XDPGenericMode
	}
	var raw link.Link
	err := z.do(func() (err error) {
		raw, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: a.Index, Flags: flags})
		return err
	})
	if err != nil {
		return nil, err
	}
	x := &xdp{pinnedLink: pinnedLink{raw, a.Index, filepath.Join(folder, xdpPin(mode))}, namespace: z, mode: mode}
	if err := raw.Pin(x.pin); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return x, nil
}

// refusedXDP returns the error for a failed attachment: the reason, and what to do.
func (z *namespace) refusedXDP(a *netlink.LinkAttrs, mode datapath.XDPMode, err error) error {
	what := fmt.Sprintf("device %q: spec.xdp: %s", a.Name, mode)
	if l, e := z.nl.LinkByIndex(a.Index); e == nil {
		if x := l.Attrs().Xdp; x != nil && x.Attached && x.ProgId != 0 {
			return fmt.Errorf("%s: another program's XDP program %s (id %d) is attached, and only one is possible: detach it (ip link set dev %s xdp off, or with the program that attached it), or set spec.xdp to off: %w",
				what, programNameOf(ebpf.ProgramID(x.ProgId)), x.ProgId, a.Name, err)
		}
	}
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%s: %w: %w", what, err, datapath.ErrAbsent) // the device is gone
	case mode == datapath.XDPNative:
		return fmt.Errorf("%s: refused by the driver; packets take the tc path: perhaps the MTU of %d is too large for native XDP, an offload prevents it (see ethtool -k %s and the kernel log), or the driver does not support it: then set spec.xdp to generic or off: %w",
			what, a.MTU, a.Name, err)
	}
	return fmt.Errorf("%s: refused by the kernel; packets take the tc path: %w", what, err)
}

func (x *xdp) name() string { return "xdp-" + x.mode.String() }

// precede does nothing: an earlier run's program continues to handle the connections that it knows,
// and passes all other packets to the shadow programs.
func (x *xdp) precede() error { return nil }
func (x *xdp) settle() error  { return nil }

// replace exchanges the program for one with the current constants of the device.
func (x *xdp) replace() error {
	if !x.inPlace() {
		return nil
	}
	l, err := x.namespace.nl.LinkByIndex(x.index)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	want, err := x.namespace.xdpConstants(l, x.mode)
	if err != nil {
		return err
	}
	return x.exchange(want)
}
