// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

// linkInterval is the interval at which the link between host and switch is checked although the kernel
// has reported no change that concerns us.
const linkInterval = 5 * time.Second

// linkCheck is when the link must be checked again.
type linkCheck struct {
	of      *namespace.Handle
	signals uint64    // more: the kernel has reported a change
	due     time.Time // at the latest
}

// checkLink calls tendLink if that is due. n.mu is held.
func (n *Network) checkLink(s *namespace.Handle) error {
	now, signals := time.Now(), n.signals.count.Load()
	if c := n.linkNext; c.of == s && c.signals == signals && now.Before(c.due) {
		return nil
	}
	err := n.tendLink(s)
	if err == nil {
		n.linkNext = linkCheck{s, signals, now.Add(linkInterval)}
	}
	return err
}

// tendLink ensures that the link between host and switch exists: a veth with one end in the host.
// An existing link is used, whichever program created it. n.mu is held.
func (n *Network) tendLink(s *namespace.Handle) error {
	err := n.ensureLink(s)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != n.linkError && err != nil {
		n.log.Warn("cannot create or restore the link between host and switch", slog.Any("error", err))
	}
	n.linkError = text
	return err
}

func (n *Network) ensureLink(s *namespace.Handle) error {
	hostName, switchName := n.cfg.HostDevice, n.cfg.SwitchDevice
	if hostName == "" || switchName == "" {
		return nil
	}
	outer, err := n.host.Link(hostName)
	if err != nil {
		return err
	}
	inner, err := s.Link(switchName)
	if err != nil {
		return err
	}
	if outer != nil && inner != nil && arePeers(outer, inner) {
		n.linked = true
		return errors.Join(n.tendEnd(n.host, outer), n.tendEnd(s, inner))
	}
	switch {
	case outer != nil && !isOurs(n.cfg, outer):
		return fmt.Errorf("device %q (switch.hostDevice) already exists and is not ours: rename it, or configure another name", hostName)
	case inner != nil && !isOurs(n.cfg, inner):
		return fmt.Errorf("device %q (switch.switchDevice) already exists in namespace %q and is not ours: rename it, or configure another name",
			switchName, n.cfg.SwitchNamespace)
	}
	// One end alone is useless: the other was deleted or moved.
	for _, end := range []struct {
		of   *namespace.Handle
		link netlink.Link
	}{{n.host, outer}, {s, inner}} {
		if end.link == nil {
			continue
		}
		if err := end.of.Netlink.LinkDel(end.link); err != nil && !namespace.IsAbsent(err) {
			return fmt.Errorf("device %q: %w", end.link.Attrs().Name, err)
		}
	}
	return n.makeLink(s)
}

// tendEnd restores the settings of one end of the link, if we created it.
func (n *Network) tendEnd(s *namespace.Handle, end netlink.Link) error {
	a := end.Attrs()
	if !isOurs(n.cfg, end) {
		return nil
	}
	changed := false
	change := func(differs bool, set func() error) error {
		if !differs {
			return nil
		}
		changed = true
		return set()
	}
	mac := macOf(n.cfg, a.Name)
	err := errors.Join(
		change(a.Alias != mark(n.cfg), func() error { return s.Netlink.LinkSetAlias(end, mark(n.cfg)) }),
		change(!bytes.Equal(a.HardwareAddr, mac), func() error { return s.Netlink.LinkSetHardwareAddr(end, mac) }),
		change(!isUp(end), func() error { return s.Netlink.LinkSetUp(end) }))
	if err != nil {
		return fmt.Errorf("restore device %q, which another program changed: %w", a.Name, err)
	}
	if changed {
		n.repairs.Add(1)
		n.log.Warn("a device of the link between host and switch was changed by another program and is restored", slog.String("device", a.Name))
	}
	return nil
}

// arePeers reports whether a and b are the two ends of one veth.
func arePeers(a, b netlink.Link) bool {
	return a.Type() == "veth" && b.Type() == "veth" &&
		a.Attrs().ParentIndex == b.Attrs().Index && b.Attrs().ParentIndex == a.Attrs().Index
}

func (n *Network) makeLink(s *namespace.Handle) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.cfg.HostDevice
	attrs.HardwareAddr = macOf(n.cfg, n.cfg.HostDevice)
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: n.cfg.SwitchDevice, PeerNamespace: netlink.NsFd(s.NS),
		PeerHardwareAddr: macOf(n.cfg, n.cfg.SwitchDevice),
	}
	if err := n.host.Netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create %s and %s: %w", n.cfg.HostDevice, n.cfg.SwitchDevice, err)
	}
	inner, err := s.Link(n.cfg.SwitchDevice)
	if err != nil {
		return err
	}
	if inner == nil {
		return absent("device %q", n.cfg.SwitchDevice)
	}
	outer, err := n.host.Link(n.cfg.HostDevice)
	if err != nil || outer == nil {
		return errors.Join(err, absent("device %q", n.cfg.HostDevice))
	}
	err = errors.Join(s.Netlink.LinkSetAlias(inner, mark(n.cfg)), n.host.Netlink.LinkSetAlias(outer, mark(n.cfg)), s.Netlink.LinkSetUp(inner), n.host.Netlink.LinkSetUp(outer))
	if err != nil {
		return fmt.Errorf("%s and %s: %w", n.cfg.HostDevice, n.cfg.SwitchDevice, err)
	}
	if n.linked {
		n.repairs.Add(1) // another program deleted it
	}
	n.linked = true
	n.log.Info("link between host and switch created",
		slog.String("host_device", n.cfg.HostDevice), slog.String("switch_device", n.cfg.SwitchDevice))
	return nil
}
