// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath"
)

// endSuffix is what the other end of a tunnel's device is called behind its name. What
// the kernel sends by the device comes in by it, where the data plane encapsulates it.
const endSuffix = "-e"

// tunnelMAC is the address of all devices of tunnels, to which all inner Ethernet headers
// are.
var tunnelMAC = net.HardwareAddr{0x02, 0x4c, 0x4c, 0, 0, 0x01}

const (
	addrGenNone = 1    // IN6_ADDR_GEN_MODE_NONE
	defaultMTU  = 1500 // of an underlay that is not known yet
)

// tunnels is the table of tunnels, as far as the kernel's own forwarding is concerned:
// the devices that routes to peers lead to.
type tunnels struct {
	n *Network

	mu     sync.Mutex
	wanted map[datapath.TunnelName]datapath.Tunnel
	peers  map[datapath.PeerName]datapath.Peer
	outs   map[string]bool           // devices of the host that lead to peers
	fits   map[datapath.PeerName]int // MTU of what is to be encapsulated for a peer, as of seen
	seen   uint64                    // of signals.count
}

func newTunnels(n *Network) *tunnels {
	return &tunnels{n: n, wanted: map[datapath.TunnelName]datapath.Tunnel{}, peers: map[datapath.PeerName]datapath.Peer{},
		outs: map[string]bool{}, fits: map[datapath.PeerName]int{}}
}

func (t *tunnels) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.wanted)
}

// names says whether a tunnel depends on the device.
func (t *tunnels) names(device string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outs[device] {
		return true
	}
	for _, w := range t.wanted {
		if w.Device == device || w.Device+endSuffix == device {
			return true
		}
	}
	return false
}

// peer notes what a peer is; nil: it is gone.
func (t *tunnels) peer(name datapath.PeerName, p *datapath.Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.fits, name)
	if p == nil {
		delete(t.peers, name)
	} else {
		t.peers[name] = *p
	}
}

func (t *tunnels) get(name datapath.TunnelName) (datapath.Tunnel, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.wanted[name]
	return w, ok
}

// Update implements [datapath.Table].
func (t *tunnels) Update(_ context.Context, name datapath.TunnelName, value datapath.Tunnel) error {
	t.mu.Lock()
	t.wanted[name] = value
	t.mu.Unlock()
	s, err := t.n.space(true)
	if err != nil {
		return err
	}
	defer t.n.done(s)
	record := &tunnelRecord{Device: value.Device, Space: s.id}
	if old := t.n.journal.tunnel(string(name)); old != nil && *old != *record {
		if err := t.remove(string(name), old); err != nil {
			return err
		}
	}
	if err := t.n.journal.note(line{Kind: kindTunnel, Name: string(name), Tunnel: record}); err != nil {
		return err
	}
	if err := t.ensure(s, value.Device); err != nil {
		return fmt.Errorf("device %q: %w", value.Device, err)
	}
	_, err = t.setMTU(s, name, value, false)
	return err
}

// ensure has the device and its other end be there.
func (t *tunnels) ensure(s *space, device string) error {
	outer, inner, err := s.ends(device)
	if err != nil || outer != nil && inner != nil && arePeers(outer, inner) && isUp(outer) && isUp(inner) && isOurs(t.n.cfg, outer) {
		return err
	}
	for _, end := range []netlink.Link{outer, inner} {
		if end == nil {
			continue
		}
		if !isOurs(t.n.cfg, end) && end.Attrs().Alias != "" || end.Type() != "veth" {
			return fmt.Errorf("%s is there and not ours: remove it, or give the tunnel another device", end.Attrs().Name)
		}
	}
	switch {
	case outer != nil && inner != nil && arePeers(outer, inner):
	default:
		for _, end := range []netlink.Link{outer, inner} {
			if end == nil {
				continue
			}
			if err := s.nl.LinkDel(end); err != nil && !isGone(err) {
				return err
			}
		}
		if outer, inner, err = t.make(s, device); err != nil {
			return err
		}
	}
	return errors.Join(s.nl.LinkSetAlias(outer, mark(t.n.cfg)), s.nl.LinkSetAlias(inner, mark(t.n.cfg)),
		s.nl.LinkSetARPOff(outer), s.nl.LinkSetARPOff(inner), addressless(s, outer), addressless(s, inner),
		s.nl.LinkSetUp(inner), s.nl.LinkSetUp(outer))
}

// addressless keeps a device from having an address of IPv6 that nobody gave it.
func addressless(s *space, l netlink.Link) error {
	err := s.nl.LinkSetIP6AddrGenMode(l, addrGenNone)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a kernel without IPv6
	}
	return err
}

func isUp(l netlink.Link) bool { return l.Attrs().Flags&net.FlagUp != 0 }

// ends returns the device and its other end; nil where it is not there.
func (s *space) ends(device string) (outer, inner netlink.Link, err error) {
	if outer, err = s.link(device); err == nil {
		inner, err = s.link(device + endSuffix)
	}
	return outer, inner, err
}

func (t *tunnels) make(s *space, device string) (outer, inner netlink.Link, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = device, tunnelMAC
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: device + endSuffix, PeerHardwareAddr: macOf(t.n.cfg, device+endSuffix)}
	if err := s.nl.LinkAdd(veth); err != nil {
		return nil, nil, fmt.Errorf("make: %w", err)
	}
	outer, inner, err = s.ends(device)
	if err == nil && (outer == nil || inner == nil) {
		err = absent("device %q", device)
	}
	if err == nil {
		t.n.log.Info("device of a tunnel made", slog.String("device", device))
	}
	return outer, inner, err
}

// setMTU sets the MTU of the device, or says whether it is as it should be.
func (t *tunnels) setMTU(s *space, name datapath.TunnelName, value datapath.Tunnel, dry bool) (bool, error) {
	mtu, err := t.mtu(name, value)
	if err != nil {
		return false, err
	}
	outer, inner, err := s.ends(value.Device)
	if err != nil || outer == nil || inner == nil {
		return false, errors.Join(err, absent("device %q", value.Device))
	}
	for _, end := range []netlink.Link{inner, outer} {
		if end.Attrs().MTU == mtu {
			continue
		}
		if dry {
			return false, nil
		}
		if err := s.nl.LinkSetMTU(end, mtu); err != nil {
			return false, fmt.Errorf("device %q: set its MTU to %d: %w", end.Attrs().Name, mtu, err)
		}
	}
	return true, nil
}

// mtu returns what fits the underlay, encapsulated: the least of the ways to all peers.
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
	case value.MTU != 0:
		return value.MTU, nil
	case least != 0:
		return least, nil
	}
	// As by a default route.
	if mtu := w.fits(&value, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")); mtu != 0 {
		return mtu, nil
	}
	return defaultMTU - value.Overhead(true), nil
}

// fits returns the MTU of what can be sent to the first of remotes that is reached,
// encapsulated; 0: none is.
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

// peerChanged has the MTU of a tunnel follow that its peers are others now.
func (t *tunnels) peerChanged(name datapath.TunnelName) error {
	value, ok := t.get(name)
	record := t.n.journal.tunnel(string(name))
	if !ok || record == nil {
		return nil // when it comes, it knows
	}
	s, err := t.n.present(record.Space)
	if err != nil || s == nil {
		return err
	}
	defer t.n.done(s)
	_, err = t.setMTU(s, name, value, false)
	return err
}

// underlay tells MTUs of ways in the host's namespace.
type underlay struct {
	host  *space
	links map[int]netlink.Link // as they were seen
}

// mtuTo returns the MTU of the way to remote; 0: there is none.
func (u *underlay) mtuTo(remote netip.Addr) int {
	routes, err := u.host.nl.RouteGet(remote.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return 0
	}
	l := u.links[routes[0].LinkIndex]
	if l == nil {
		if l, err = u.host.nl.LinkByIndex(routes[0].LinkIndex); err != nil {
			return 0
		}
		u.links[routes[0].LinkIndex] = l
	}
	if mtu := u.routeMTU(remote); mtu != 0 && mtu < l.Attrs().MTU {
		return mtu
	}
	return l.Attrs().MTU
}

// routeMTU returns the MTU that the route to remote was given; 0: none. What the kernel has learnt from ICMP
// errors does not count: it may be about pods behind remote, whose source it translates.
func (u *underlay) routeMTU(remote netip.Addr) int {
	routes, err := u.host.nl.RouteGetWithOptions(remote.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 {
		return 0
	}
	return routes[0].MTU
}

// Delete implements [datapath.Table].
func (t *tunnels) Delete(_ context.Context, name datapath.TunnelName) error {
	t.mu.Lock()
	delete(t.wanted, name)
	t.mu.Unlock()
	record := t.n.journal.tunnel(string(name))
	if record == nil {
		return nil
	}
	return t.remove(string(name), record)
}

// remove removes the device, then forgets it.
func (t *tunnels) remove(name string, record *tunnelRecord) error {
	s, err := t.n.present(record.Space)
	if err != nil {
		return err
	}
	if s != nil {
		defer t.n.done(s)
		link, err := s.link(record.Device)
		if err == nil && link != nil && isOurs(t.n.cfg, link) {
			err = s.nl.LinkDel(link)
		}
		if err != nil && !isGone(err) {
			return fmt.Errorf("device %q: %w", record.Device, err)
		}
	}
	return t.n.journal.note(line{Kind: kindTunnel, Name: name})
}

// Keys implements [datapath.Table].
func (t *tunnels) Keys(context.Context) iter.Seq2[datapath.TunnelName, error] {
	t.n.journal.mu.Lock()
	names := slices.Sorted(maps.Keys(t.n.journal.held.Tunnels))
	t.n.journal.mu.Unlock()
	return func(yield func(datapath.TunnelName, error) bool) {
		for _, name := range names {
			if !yield(datapath.TunnelName(name), nil) {
				return
			}
		}
	}
}

// Verify implements [datapath.Table].
func (t *tunnels) Verify(_ context.Context, name datapath.TunnelName) (bool, error) {
	value, ok := t.get(name)
	record := t.n.journal.tunnel(string(name))
	if !ok || record == nil {
		return false, nil
	}
	s, err := t.n.present(record.Space)
	if err != nil || s == nil {
		return false, err
	}
	defer t.n.done(s)
	outer, inner, err := s.ends(value.Device)
	if err != nil || outer == nil || inner == nil || !arePeers(outer, inner) || !isUp(outer) || !isUp(inner) || !isOurs(t.n.cfg, outer) {
		return false, err
	}
	return t.setMTU(s, name, value, true)
}
