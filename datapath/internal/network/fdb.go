// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// The pods' ports, and the port of the link to the host, have static FDB entries in their bridge,
// which no frame can move to another port (sticky). The pods' ports learn nothing. So a forged
// source MAC neither diverts another host's frames nor fills the FDB, even if the source guard did
// not drop the frame. On a bridge with VLAN filtering, where an entry belongs to one VLAN, only the
// source guard protects.

// checkMAC rejects an endpoint's MAC if it belongs to the switch or to the host's end of the link:
// otherwise the endpoint would receive their frames.
func (n *Network) checkMAC(s *namespace.Handle, port, bridge netlink.Link, mac net.HardwareAddr) error {
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
	entry, err := s.FDBEntry(bridge.Attrs().Index, mac)
	if err != nil || entry == nil || entry.State&unix.NUD_PERMANENT == 0 {
		return err
	}
	if link, err := s.Netlink.LinkByIndex(entry.Port); err == nil {
		return taken(fmt.Sprintf("device %q of the switch", link.Attrs().Name))
	}
	return taken("another device of the switch")
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
	link, err := host.Link(u.n.cfg.HostDevice)
	if err != nil || link == nil {
		return err
	}
	index, mac := port.Attrs().Index, link.Attrs().HardwareAddr
	entry, err := u.s.FDBEntry(u.bridge.Attrs().Index, mac)
	if err != nil || entry.Pinned(index) || entry != nil && entry.State&unix.NUD_PERMANENT != 0 {
		return err
	}
	return u.change("enter the MAC of "+u.n.cfg.HostDevice, func() error { return u.s.PinMAC(index, mac) })
}
