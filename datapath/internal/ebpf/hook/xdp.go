// SPDX-License-Identifier: Apache-2.0

package hook

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

// XDP is the XDP program on a device: the fast path, and nothing else. All other packets take the
// tc hooks, so the program can be attached and detached at any time.
type XDP struct {
	pinnedLink
	namespace *Netns
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

// XDPPin returns the name of the pin of a program in a mode.
func XDPPin(mode datapath.XDPMode) string { return "xdp_" + mode.String() }

// XDPModes returns the modes with a program.
func XDPModes() []datapath.XDPMode {
	return []datapath.XDPMode{datapath.XDPGeneric, datapath.XDPNative}
}

// openXDP opens the XDP pins in a folder: one, or none during a change of mode.
func openXDP(z *Netns, folder string, pins []fs.DirEntry) (found []*XDP, err error) {
	for _, mode := range XDPModes() {
		if !slices.ContainsFunc(pins, func(e fs.DirEntry) bool { return e.Name() == XDPPin(mode) }) {
			continue
		}
		p, err := openLink(filepath.Join(folder, XDPPin(mode)))
		if err != nil {
			return nil, err
		}
		found = append(found, &XDP{pinnedLink: p, namespace: z, mode: mode})
	}
	return found, nil
}

// Mode returns the mode in which the program is attached.
func (x *XDP) Mode() datapath.XDPMode { return x.mode }

// Frags reports whether the program supports multi-buffer frames (BPF_F_XDP_HAS_FRAGS). It is false
// if an earlier run attached the program.
func (x *XDP) Frags() bool { return x.made.pieces != 0 }

// Fits reports whether the program is attached, and has the constants that the state of its device
// requires.
func (x *XDP) Fits(l netlink.Link) bool {
	want, err := x.namespace.xdpConstants(l, x.mode)
	return err == nil && x.Attached() && x.isMade(want)
}

// Fit replaces the program if the state of its device requires other constants.
func (x *XDP) Fit(l netlink.Link) error {
	want, err := x.namespace.xdpConstants(l, x.mode)
	if err != nil || x.isMade(want) {
		return err
	}
	return x.exchange(want)
}

// isMade reports whether the program was loaded with these constants.
func (x *XDP) isMade(want xdpConstants) bool {
	want.pieces = x.made.pieces
	return x.made == want
}

// installXDP loads the program with constants, and attaches it with put. If that fails, it tries
// the program for frames in several buffers.
func (z *Netns) installXDP(want xdpConstants, put func(*ebpf.Program) error) (xdpConstants, error) {
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

func (z *Netns) putXDP(c xdpConstants, put func(*ebpf.Program) error) error {
	program, err := z.loadXDP(c)
	if err != nil {
		return err
	}
	defer program.Close() // the device or link holds it
	return put(program)
}

// exchange replaces the program by a copy with other constants.
func (x *XDP) exchange(want xdpConstants) error {
	made, err := x.namespace.installXDP(want, x.update)
	if err == nil {
		x.made = made
	}
	return err
}

func (z *Netns) xdpConstants(l netlink.Link, mode datapath.XDPMode) (c xdpConstants, err error) {
	bounded, err := z.BoundedDevices()
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
func (z *Netns) loadXDP(c xdpConstants) (*ebpf.Program, error) {
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
	program, _, err := loadProgram(copyOf{Program{kernel.ShortestProgLlXdp, load}, z.ID, false}, z.maps)
	if err != nil {
		return nil, refusedProgram(kernel.ShortestProgLlXdp, z.ID, err)
	}
	return program, nil
}

// AttachXDP loads the program for a device, attaches it and pins it in folder. An XDP program that
// is already attached is not replaced. The error contains the reason and what to do; it wraps
// [datapath.ErrAbsent] if the device is gone.
func (z *Netns) AttachXDP(l netlink.Link, mode datapath.XDPMode, folder string) (x *XDP, err error) {
	want, err := z.xdpConstants(l, mode)
	if err != nil {
		return nil, err
	}
	made, err := z.installXDP(want, func(program *ebpf.Program) (err error) {
		x, err = z.linkXDP(l, mode, program, folder)
		return err
	})
	if err != nil {
		return nil, z.refusedXDP(l.Attrs(), mode, err)
	}
	x.made = made
	return x, nil
}

// linkXDP attaches the program if no other program is attached, and pins it.
func (z *Netns) linkXDP(l netlink.Link, mode datapath.XDPMode, program *ebpf.Program, folder string) (*XDP, error) {
	a := l.Attrs()
	flags := link.XDPDriverMode
	if mode == datapath.XDPGeneric {
		flags = link.XDPGenericMode
	}
	var raw link.Link
	err := z.Do(func() (err error) {
		raw, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: a.Index, Flags: flags})
		return err
	})
	if err != nil {
		return nil, err
	}
	x := &XDP{pinnedLink: pinnedLink{raw, a.Index, filepath.Join(folder, XDPPin(mode))}, namespace: z, mode: mode}
	if err := raw.Pin(x.path); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return x, nil
}

// refusedXDP returns the error for a failed attachment: the reason, and what to do.
func (z *Netns) refusedXDP(a *netlink.LinkAttrs, mode datapath.XDPMode, err error) error {
	what := fmt.Sprintf("device %q: spec.xdp: %s", a.Name, mode)
	if l, e := z.Netlink.LinkByIndex(a.Index); e == nil {
		if x := l.Attrs().Xdp; x != nil && x.Attached && x.ProgId != 0 {
			return fmt.Errorf("%s: another program's XDP program %s (id %d) is attached, and only one is possible: detach it (ip link set dev %s xdp off, or with the program that attached it), or set spec.xdp to off: %w",
				what, ProgramName(ebpf.ProgramID(x.ProgId)), x.ProgId, a.Name, err)
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

// Name implements [Attachment].
func (x *XDP) Name() string { return "xdp-" + x.mode.String() }

// AttachShadow implements [Attachment]. It does nothing: an earlier run's program continues to
// handle the connections that it knows, and passes all other packets to the shadow programs.
func (x *XDP) AttachShadow() error { return nil }

// Finish implements [Attachment].
func (x *XDP) Finish() error { return nil }

// Replace implements [Attachment]. It exchanges the program for one with the current constants
// of the device.
func (x *XDP) Replace() error {
	if !x.inPlace() {
		return nil
	}
	l, err := x.namespace.Netlink.LinkByIndex(x.index)
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
