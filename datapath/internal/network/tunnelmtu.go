// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/datapath/internal/network/namespace"
)

const (
	defaultMTU = 1500 // of an underlay that is not known yet
	keepMTU    = time.Second
	minMTU6    = 1280 // with a smaller one, a device has no IPv6
)

// adopt keeps the MTU of an earlier run's device until all peers are configured, which happens one
// by one: with only some of the peers, the MTU would change for a moment, and senders would be
// notified of that MTU.
func (t *tunnels) adopt(s *namespace.Handle, name datapath.TunnelName, device string) error {
	outer, inner, err := ends(s, device)
	if err != nil || outer == nil || inner == nil || !isOurs(t.n.cfg, outer) {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mtus[name] == 0 {
		t.mtus[name], t.keep[name] = outer.Attrs().MTU, time.Now().Add(keepMTU)
		time.AfterFunc(keepMTU+signalPause, t.n.signals.raise)
	}
	return nil
}

// isKept reports whether the MTU of a device must not change for now.
func (t *tunnels) isKept(name datapath.TunnelName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.keep[name])
}

// setMTU sets the MTU of the device, or (dry) reports whether it is right; if only the path to the
// peers has changed since it was set, the error wraps [datapath.ErrOutdated]. t.devices is held.
func (t *tunnels) setMTU(s *namespace.Handle, name datapath.TunnelName, value datapath.Tunnel, dry bool) (bool, error) {
	mtu, err := t.mtu(name, value)
	if err != nil || t.isKept(name) {
		return err == nil, err
	}
	outer, inner, err := ends(s, value.Device)
	if err != nil || outer == nil || inner == nil {
		return false, errors.Join(err, absent("device %q", value.Device))
	}
	for _, end := range []netlink.Link{inner, outer} {
		if end.Attrs().MTU == mtu {
			continue
		}
		if dry && end.Attrs().MTU == t.setLast(name) {
			return false, fmt.Errorf("the MTU of the path to its peers has changed: %w", datapath.ErrOutdated)
		}
		if dry {
			return false, nil
		}
		if err := s.Netlink.LinkSetMTU(end, mtu); err != nil {
			return false, fmt.Errorf("device %q: set its MTU to %d: %w", end.Attrs().Name, mtu, err)
		}
		if end.Attrs().MTU < minMTU6 { // the larger MTU enables IPv6 again, and the kernel adds a link-local address
			if err := addressless(s, end); err != nil {
				return false, fmt.Errorf("device %q: %w", end.Attrs().Name, err)
			}
		}
	}
	t.mu.Lock()
	t.mtus[name] = mtu
	t.mu.Unlock()
	return true, nil
}

func (t *tunnels) setLast(name datapath.TunnelName) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mtus[name]
}

// mtu returns the MTU of a tunnel: the minimum over the paths to all peers, less the encapsulation.
// With a larger configured MTU, larger packets would be lost silently.
func (t *tunnels) mtu(name datapath.TunnelName, value datapath.Tunnel) (int, error) {
	host, err := t.n.space(false)
	if err != nil {
		return 0, err
	}
	defer t.n.done(host)
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.n.signals.count.Load(); t.seen != now {
		clear(t.fits)
		t.seen = now
	}
	w := underlay{host: host, links: map[int]netlink.Link{}}
	least := 0
	for peer, p := range t.peers {
		if p.Tunnel != name {
			continue
		}
		if _, known := t.fits[peer]; !known {
			t.fits[peer] = w.fits(&value, p.Underlay...)
		}
		if mtu := t.fits[peer]; mtu != 0 && (least == 0 || mtu < least) {
			least = mtu
		}
	}
	for _, l := range w.links {
		t.outs[l.Attrs().Name] = true
	}
	switch {
	case value.MTU != 0 && (least == 0 || value.MTU <= least):
		return value.MTU, nil
	case least != 0:
		return least, nil
	}
	// Use the MTU of the default route.
	if mtu := w.fits(&value, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")); mtu != 0 {
		return mtu, nil
	}
	return defaultMTU - value.Overhead(true), nil
}

// fits returns the inner MTU on the path to the first of remotes that is reachable, or 0 if none
// is.
func (u *underlay) fits(t *datapath.Tunnel, remotes ...netip.Addr) int {
	for _, remote := range remotes {
		if t.Local.IsValid() && t.Local.Is4() != remote.Is4() {
			continue
		}
		if mtu := u.mtuTo(remote); mtu != 0 {
			return mtu - t.Overhead(remote.Is6())
		}
	}
	return 0
}

// peerChanged updates the MTU of a tunnel after a change to its peers.
func (t *tunnels) peerChanged(name datapath.TunnelName) error {
	t.devices.Lock()
	defer t.devices.Unlock()
	value, ok := t.get(name)
	record := t.n.journal.tunnel(string(name))
	if !ok || record == nil {
		return nil // Update sets it when the tunnel exists
	}
	s, err := t.n.present(record.Space)
	if err != nil || s == nil {
		return err
	}
	defer t.n.done(s)
	_, err = t.setMTU(s, name, value, false)
	return err
}

// underlay finds the MTUs of paths in the host's namespace.
type underlay struct {
	host  *namespace.Handle
	links map[int]netlink.Link // as first read
}

// mtuTo returns the MTU of the path to remote, or 0 if no path exists.
func (u *underlay) mtuTo(remote netip.Addr) int {
	routes, err := u.host.Netlink.RouteGet(remote.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return 0
	}
	l := u.links[routes[0].LinkIndex]
	if l == nil {
		if l, err = u.host.Netlink.LinkByIndex(routes[0].LinkIndex); err != nil {
			return 0
		}
		u.links[routes[0].LinkIndex] = l
	}
	if mtu := u.routeMTU(remote); mtu != 0 && mtu < l.Attrs().MTU {
		return mtu
	}
	return l.Attrs().MTU
}

// routeMTU returns the configured MTU of the route to remote, or 0 if none is configured. MTUs that
// the kernel learnt from ICMP errors are ignored: they may concern pods behind the remote address,
// which translates their source.
func (u *underlay) routeMTU(remote netip.Addr) int {
	routes, err := u.host.Netlink.RouteGetWithOptions(remote.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 {
		return 0
	}
	return routes[0].MTU
}
