// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// The pods' ports, and the port of the link to the host, have static FDB entries in their bridge,
// which no frame can move to another port (sticky). The pods' ports learn nothing. So a forged
// source MAC neither diverts another host's frames nor fills the FDB, even if the source guard did
// not drop the frame. On a bridge with VLAN filtering, where an entry belongs to one VLAN, only the
// source guard protects.

const ntfSticky = 0x40 // NTF_STICKY of linux/neighbour.h

// fdbEntry is an entry of the FDB of a bridge.
type fdbEntry struct {
	port  int // index; the bridge's index for its own address
	state uint16
	flags uint8
}

// pinned reports whether the entry points to port and no frame can move it.
func (e *fdbEntry) pinned(port int) bool {
	return e != nil && e.port == port && e.state&unix.NUD_NOARP != 0 && e.flags&ntfSticky != 0
}

// fdbEntry returns the FDB entry of a MAC in a bridge, or nil if no such entry exists.
func (s *space) fdbEntry(bridge int, mac net.HardwareAddr) (*fdbEntry, error) {
	const length = 12 // of struct ndmsg
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER})
	req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, mac))
	req.AddData(nl.NewRtAttr(netlink.NDA_MASTER, nl.Uint32Attr(uint32(bridge))))
	msgs, err := s.execute(req, unix.RTM_NEWNEIGH)
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
	return &fdbEntry{int(nl.NativeEndian().Uint32(m[4:])), nl.NativeEndian().Uint16(m[8:]), m[10]}, nil
}

// pin directs frames for a MAC to a port, regardless of learning.
func (s *space) pin(port int, mac net.HardwareAddr) error {
	err := s.nl.NeighSet(&netlink.Neigh{
		LinkIndex: port, Family: unix.AF_BRIDGE, State: unix.NUD_NOARP, Flags: netlink.NTF_MASTER | ntfSticky, HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("enter %s in the FDB: %w", mac, err)
	}
	return nil
}

// unpin removes the entry of a MAC from a port.
func (s *space) unpin(port int, mac net.HardwareAddr) error {
	err := s.nl.NeighDel(&netlink.Neigh{LinkIndex: port, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER, HardwareAddr: mac})
	if err != nil && !isAbsent(err) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s from the FDB: %w", mac, err)
	}
	return nil
}

// learns reports whether a port of a bridge learns.
func (s *space) learns(port int) (bool, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(port)
	req.AddData(msg)
	msgs, err := s.execute(req, unix.RTM_NEWLINK)
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

// checkMAC rejects an endpoint's MAC if it belongs to the switch or to the host's end of the link:
// otherwise the endpoint would receive their frames.
func (n *Network) checkMAC(s *space, port, bridge netlink.Link, mac net.HardwareAddr) error {
	taken := func(by string) error {
		return fmt.Errorf("MAC %s is the MAC of %s; an Endpoint must have a MAC of its own", mac, by)
	}
	if datapath.IsTunnelMAC([6]byte(mac)) {
		return taken("tunnels")
	}
	for _, link := range []netlink.Link{port, bridge} {
		if bytes.Equal(mac, link.Attrs().HardwareAddr) {
			return taken(fmt.Sprintf("device %q of the switch", link.Attrs().Name))
		}
	}
	for _, device := range []string{n.cfg.HostDevice, n.cfg.SwitchDevice} {
		if device != "" && bytes.Equal(mac, macOf(n.cfg, device)) {
			return taken(fmt.Sprintf("device %q", device))
		}
	}
	entry, err := s.fdbEntry(bridge.Attrs().Index, mac)
	if err != nil || entry == nil || entry.state&unix.NUD_PERMANENT == 0 {
		return err
	}
	if link, err := s.nl.LinkByIndex(entry.port); err == nil {
		return taken(fmt.Sprintf("device %q of the switch", link.Attrs().Name))
	}
	return taken("another device of the switch")
}

// isPinned reports whether the port of an endpoint is configured as secure does it.
func (s *space) isPinned(port, bridge netlink.Link, mac net.HardwareAddr) (bool, error) {
	index := port.Attrs().Index
	entry, err := s.fdbEntry(bridge.Attrs().Index, mac)
	if err != nil || !entry.pinned(index) {
		return false, err
	}
	learns, err := s.learns(index)
	return !learns, err
}

// secure disables learning on the port of an endpoint and adds its MAC to the bridge's FDB. before
// is the endpoint's previous MAC, or nil if it had none.
func (s *space) secure(port, bridge netlink.Link, before, mac net.HardwareAddr) error {
	index := port.Attrs().Index
	if ok, err := s.isPinned(port, bridge, mac); err != nil || ok {
		return err
	}
	if before != nil && !slices.Equal(before, mac) {
		if err := s.unpin(index, before); err != nil {
			return err
		}
	}
	if err := s.pin(index, mac); err != nil {
		return err
	}
	if err := s.nl.LinkSetLearning(port, false); err != nil {
		return fmt.Errorf("disable MAC learning: %w", err)
	}
	return nil
}

// pinHost adds the MAC of the link's host end to the FDB of the bridge to which the other end
// belongs.
func (u *bridgeUpdate) pinHost(port netlink.Link) error {
	if port.Attrs().Name != u.n.cfg.SwitchDevice || u.value.VLANFiltering || filters(u.bridge) {
		return nil
	}
	host, err := u.n.space(false)
	if err != nil {
		return err
	}
	defer u.n.done(host)
	link, err := host.link(u.n.cfg.HostDevice)
	if err != nil || link == nil {
		return err
	}
	index, mac := port.Attrs().Index, link.Attrs().HardwareAddr
	entry, err := u.s.fdbEntry(u.bridge.Attrs().Index, mac)
	if err != nil || entry.pinned(index) || entry != nil && entry.state&unix.NUD_PERMANENT != 0 {
		return err
	}
	return u.change("enter the MAC of "+u.n.cfg.HostDevice, func() error { return u.s.pin(index, mac) })
}
