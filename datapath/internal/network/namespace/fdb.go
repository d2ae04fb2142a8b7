// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const ntfSticky = 0x40 // NTF_STICKY of linux/neighbour.h

// FDBEntry is an entry of the FDB of a bridge.
type FDBEntry struct {
	Port  int // index; the bridge's index for its own address
	State uint16
	Flags uint8
}

// Pinned reports whether the entry points to port and no frame can move it.
func (e *FDBEntry) Pinned(port int) bool {
	return e != nil && e.Port == port && e.State&unix.NUD_NOARP != 0 && e.Flags&ntfSticky != 0
}

// FDBEntry returns the FDB entry of a MAC in a bridge; nil: no such entry exists.
func (h *Handle) FDBEntry(bridge int, mac net.HardwareAddr) (*FDBEntry, error) {
	const length = 12 // of struct ndmsg
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER})
	req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, mac))
	req.AddData(nl.NewRtAttr(netlink.NDA_MASTER, nl.Uint32Attr(uint32(bridge))))
	msgs, err := h.Execute(req, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s in the FDB: %w", mac, err)
	}
	if len(msgs) == 0 || len(msgs[0]) < length {
		return nil, fmt.Errorf("look up %s in the FDB: no answer", mac)
	}
	m := msgs[0]
	return &FDBEntry{int(nl.NativeEndian().Uint32(m[4:])), nl.NativeEndian().Uint16(m[8:]), m[10]}, nil
}

// PinMAC directs frames for a MAC to a port, regardless of learning.
func (h *Handle) PinMAC(port int, mac net.HardwareAddr) error {
	err := h.Netlink.NeighSet(&netlink.Neigh{
		LinkIndex: port, Family: unix.AF_BRIDGE, State: unix.NUD_NOARP, Flags: netlink.NTF_MASTER | ntfSticky, HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("enter %s in the FDB: %w", mac, err)
	}
	return nil
}

// unpin removes the entry of a MAC from a port.
func (h *Handle) unpin(port int, mac net.HardwareAddr) error {
	err := h.Netlink.NeighDel(&netlink.Neigh{LinkIndex: port, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER, HardwareAddr: mac})
	if err != nil && !IsAbsent(err) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s from the FDB: %w", mac, err)
	}
	return nil
}

// learns reports whether a port of a bridge learns.
func (h *Handle) learns(port int) (bool, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(port)
	req.AddData(msg)
	msgs, err := h.Execute(req, unix.RTM_NEWLINK)
	if err != nil || len(msgs) == 0 {
		return false, err
	}
	b := msgs[0][msg.Len():]
	for _, number := range []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_SLAVE_DATA, nl.IFLA_BRPORT_LEARNING} {
		attrs, err := nl.ParseRouteAttr(b)
		if err != nil {
			return false, err
		}
		b = nil
		for _, a := range attrs {
			if a.Attr.Type&^unix.NLA_F_NESTED == number {
				b = a.Value
			}
		}
	}
	return len(b) == 0 || b[0] != 0, nil
}

// IsPortSecure reports whether the port of an endpoint is configured as SecurePort does it.
func (h *Handle) IsPortSecure(port, bridge netlink.Link, mac net.HardwareAddr) (bool, error) {
	index := port.Attrs().Index
	entry, err := h.FDBEntry(bridge.Attrs().Index, mac)
	if err != nil || !entry.Pinned(index) {
		return false, err
	}
	learns, err := h.learns(index)
	return !learns, err
}

// SecurePort disables learning on the port of an endpoint and adds its MAC to the bridge's FDB.
// before is the endpoint's previous MAC; nil: none.
func (h *Handle) SecurePort(port, bridge netlink.Link, before, mac net.HardwareAddr) error {
	index := port.Attrs().Index
	if ok, err := h.IsPortSecure(port, bridge, mac); err != nil || ok {
		return err
	}
	if before != nil && !slices.Equal(before, mac) {
		if err := h.unpin(index, before); err != nil {
			return err
		}
	}
	if err := h.PinMAC(index, mac); err != nil {
		return err
	}
	if err := h.Netlink.LinkSetLearning(port, false); err != nil {
		return fmt.Errorf("disable MAC learning: %w", err)
	}
	return nil
}
